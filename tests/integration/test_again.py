"""Run again: a new job with the call of a job that has ended."""

import uuid

import pytest

from stoker import chain, dead_letters
from stoker.compat import TaskResultDoesNotExist
from stoker.conf import settings_for
from stoker.dead_letters.requeueing import Again, run_again
from stoker.models import Job, Ready

from tests.app import frail, tasks
from tests.integration.letters import dead
from tests.integration.work import work_off

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("nothing_broken")]


def again(job_id: object) -> Again:
    return run_again(settings_for(), uuid.UUID(str(job_id)))


def test_run_again_keeps_call_queue_and_priority() -> None:
    result = tasks.add.using(queue_name="mail", priority=3).enqueue(1, 2)
    assert again(result.id).because == "It has not ended."
    work_off()
    made = again(result.id)
    assert made.because == ""
    assert made.result is not None
    job = Job.objects.get(pk=made.result.id)
    assert (job.queue, job.priority) == ("mail", 3)
    work_off()
    made.result.refresh()
    assert made.result.return_value == 3


def test_open_dead_letter_is_not_run_again_but_discarded_one_is() -> None:
    letter = dead(frail.charge, "order 1")
    assert "requeue that instead" in again(letter.job_id).because
    assert not Ready.objects.exists()
    dead_letters.discard(letter.pk)
    assert again(letter.job_id).because == ""


def test_run_again_with_pending_same_key_returns_that_job() -> None:
    first = frail.fetch.enqueue("news")
    work_off()
    newer = frail.fetch.enqueue("news")
    told = again(first.id)
    assert told.result is not None
    assert (told.result.id, Ready.objects.count()) == (newer.id, 1)
    assert "same unique key" in told.because


def test_calls_of_a_map_are_not_enqueued_as_one_call() -> None:
    tasks.echo.map([1, 2]).enqueue()
    work_off()
    job = Job.objects.get()
    assert "several calls of a map" in again(job.pk).because
    assert not Ready.objects.exists()


def test_run_again_explains_why_it_is_impossible() -> None:
    chain(tasks.add.si(1, 2), tasks.add.s(1)).enqueue()
    work_off()
    work_off()
    step = Job.objects.order_by("pk").last()
    assert step is not None
    assert "another step" in again(step.pk).because
    Job.objects.update(task="tests.app.tasks.nobody")
    first = Job.objects.order_by("pk").first()
    assert first is not None
    assert "There is no task" in again(first.pk).because
    Job.objects.update(package=b"?")
    assert "cannot be opened" in again(first.pk).because
    with pytest.raises(TaskResultDoesNotExist):
        again(uuid.uuid4())
