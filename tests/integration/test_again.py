"""The call of a job that has ended, made once more."""

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

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("mended")]


def again(job_id: object) -> Again:
    return run_again(settings_for(), uuid.UUID(str(job_id)))


def test_a_new_job_has_the_same_call_queue_and_priority() -> None:
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


def test_what_a_dead_letter_is_of_is_not_made_twice() -> None:
    letter = dead(frail.charge, "order 1")
    assert "requeue that instead" in again(letter.job_id).because
    assert not Ready.objects.exists()
    dead_letters.discard(letter.pk)
    assert again(letter.job_id).because == ""


def test_a_job_of_the_same_key_is_told() -> None:
    first = frail.fetch.enqueue("news")
    work_off()
    newer = frail.fetch.enqueue("news")
    told = again(first.id)
    assert told.result is not None
    assert (told.result.id, Ready.objects.count()) == (newer.id, 1)
    assert "same unique key" in told.because


def test_what_cannot_be_run_again_is_told() -> None:
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
