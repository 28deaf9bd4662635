"""Waiting jobs are run now, rescheduled, held, moved, given another priority or other arguments."""

import logging
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.test import Client

from stoker import Lock, Unique, queues
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.conf import settings_for
from stoker.models import Blocked, BulkItem, BulkOperation, Deferred, Job, Ready
from stoker.operations import bulk
from stoker.operations import waiting_jobs as operations
from stoker.operations.operation import Operator
from stoker.testing import drain
from stoker.why import why

from tests.app import payments, tasks
from tests.dashboard.conftest import PREFIX
from tests.dashboard.test_pages import running_job

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


@pytest.fixture
def alice(db: None) -> Operator:
    return Operator(settings_for(), "alice", "the provider is down")


def said(client: Client, word: str, jobs: list[str], **fields: str) -> str:
    """Perform an operation in the dashboard, and return what the next page says."""
    fields = {"back": f"{PREFIX}jobs/", **fields}
    response = client.post(f"{PREFIX}jobs/{word}/", {**fields, "job": jobs}, follow=True)
    assert response.status_code == 200, response.content
    return str(response.context["notice"]["text"])


def test_deferred_job_is_run_now_and_the_undo_defers_it_again(anna: Client) -> None:
    job = tasks.add.using(run_after=3600).enqueue(1, 2)
    due_us = Deferred.objects.get().due_us
    assert "starts as soon as" in said(anna, "run", [job.id])
    assert Ready.objects.get().job_id == UUID(job.id)
    notice = anna.get(f"{PREFIX}jobs/").context["notice"]
    assert notice is None, "the notice is shown once"
    done = operations.RUN_NOW.attempt(Operator(settings_for()), job.id)
    assert done.is_good
    assert done.undo == {}, "it was ready already"
    undo(anna)
    assert abs(Deferred.objects.get().due_us - due_us) < 2
    assert not Ready.objects.exists()


def undo(client: Client) -> str:
    """Undo the operation that was recorded last and can be undone, as the notice's button does."""
    item = BulkItem.objects.latest("pk")
    row = BulkOperation.objects.get(pk=item.bulk_id)
    return said(client, row.operation.removesuffix("-job"), [], bulk=str(row.pk))


@pytest.mark.parametrize(
    ("word", "fields"),
    [
        ("hold", {}),
        ("reschedule", {"run_after": "2h"}),
        ("prioritise", {"priority": "9"}),
        ("move", {"queue": "slow"}),
        ("edit", {"arguments": '{"second": 40}'}),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_each_operation_on_waiting_jobs_is_undone(
    word: str, fields: dict[str, str], count: int, anna: Client
) -> None:
    jobs = [tasks.add.enqueue(number, 2).id for number in range(count)]
    packages = dict(Job.objects.values_list("pk", "package"))
    places = list(Ready.objects.order_by("job_id").values_list("job_id", "queue", "rank"))
    anna.post(f"{PREFIX}jobs/{word}/", {"job": jobs, **fields})
    changed = dict(Job.objects.values_list("pk", "package"))
    assert changed != packages or not Ready.objects.exists()
    assert undo(anna) == f"{count} of {count} jobs put back."
    assert list(Ready.objects.order_by("job_id").values_list("job_id", "queue", "rank")) == places
    drain()
    results = [tasks.add.get_result(job).return_value for job in jobs]
    assert results == [number + 2 for number in range(count)]


def test_operation_on_one_job_is_undone_once(anna: Client) -> None:
    job = tasks.add.enqueue(1, 2)
    said(anna, "move", [job.id], queue="slow")
    bulk_id = str(BulkItem.objects.get().bulk_id)
    assert "1 of 1 jobs put back" in said(anna, "move", [], bulk=bulk_id)
    assert "cannot be undone, or was undone" in said(anna, "move", [], bulk=bulk_id)
    anna.post(f"{PREFIX}jobs/cancel/", {"job": job.id})
    cancelled = BulkOperation.objects.get(operation="cancel-job")
    assert not bulk.can_undo(settings_for(), cancelled)


def test_held_job_does_not_run_until_it_is_run_now(anna: Client) -> None:
    job = tasks.add.enqueue(1, 2)
    assert "is held" in said(anna, "hold", [job.id])
    drain()
    job.refresh()
    assert job.state == "DEFERRED"
    assert "An operator holds it" in why(settings_for(), UUID(job.id)).sentence
    assert "An operator holds it" in anna.get(f"{PREFIX}jobs/{job.id}/").content.decode()
    said(anna, "run", [job.id])
    drain()
    job.refresh()
    assert job.return_value == 3


def test_chosen_jobs_are_moved_to_another_queue(anna: Client) -> None:
    jobs = tasks.add.enqueue_many([((n, 1), {}) for n in range(50)])
    late = tasks.add.using(run_after=3600).enqueue(1, 2)
    before = Deferred.objects.get().due_us
    ids = [*(job.id for job in jobs), late.id]
    assert said(anna, "move", ids, queue="slow") == "51 of 51 jobs moved."
    assert set(Ready.objects.values_list("queue", flat=True)) == {"slow"}
    assert set(Job.objects.values_list("queue", flat=True)) == {"slow"}
    deferred = Deferred.objects.get()
    assert (deferred.queue, abs(deferred.due_us - before) < 2) == ("slow", True)
    drain()
    assert [job.return_value for job in jobs if not job.refresh()] == [n + 1 for n in range(50)]


def test_job_with_a_higher_priority_starts_first(anna: Client) -> None:
    first, second = tasks.add.enqueue(1, 1), tasks.add.enqueue(2, 2)
    assert "priority 50" in said(anna, "prioritise", [second.id], priority="50")
    (claim,) = broker_for(settings_for()).claim(
        ClaimRequest(1, holder=UUID(int=7), lease_seconds=60, queues=["default"])
    )
    assert str(claim.job_id) == second.id != first.id


def test_blocked_job_keeps_its_guard_when_it_is_moved(alice: Operator) -> None:
    locked = tasks.add.using(lock=Lock("one"))
    locked.enqueue(1, 1)
    blocked = locked.enqueue(2, 2)
    broker = broker_for(settings_for())
    held = broker.claim(ClaimRequest(2, holder=UUID(int=7), lease_seconds=60, queues=["default"]))
    assert len(held) == 1
    assert Blocked.objects.get().job_id == UUID(blocked.id)
    assert operations.MOVE.attempt(alice, blocked.id, queue="slow").is_good
    assert (
        broker.claim(ClaimRequest(2, holder=UUID(int=7), lease_seconds=60, queues=["slow"])) == []
    )
    assert Blocked.objects.get().queue == "slow"


def test_arguments_of_a_waiting_job_are_replaced(alice: Operator) -> None:
    job = tasks.add.using(run_after=3600).enqueue(1, 2)
    assert operations.EDIT.attempt(alice, job.id, args=[5, 6]).is_good
    assert operations.RUN_NOW.attempt(alice, job.id).is_good
    drain()
    job.refresh()
    assert job.return_value == 11


def test_hidden_arguments_that_an_edit_repeats_stay_as_they_are(alice: Operator) -> None:
    job = payments.pay.enqueue(7, payments.IBAN, password=payments.PASSWORD)
    hidden = {"args": [8, "[withheld]"], "kwargs": {"password": "[withheld]"}}
    assert operations.EDIT.attempt(alice, job.id, **hidden).is_good
    edited = payments.pay.get_result(job.id)
    assert edited.args == [8, payments.IBAN]
    assert edited.kwargs == {"password": payments.PASSWORD}
    refused = operations.EDIT.attempt(alice, job.id, kwargs={"more": "[withheld]"})
    assert "write a value instead of" in refused.sentence


@pytest.mark.parametrize("args", [[1], [1, 2, 3]])
def test_arguments_that_the_task_does_not_take_are_refused(args: Any, alice: Operator) -> None:
    job = tasks.add.enqueue(1, 2)
    done = operations.EDIT.attempt(alice, job.id, args=args)
    assert not done.is_good
    assert "does not take these arguments" in done.sentence
    drain()
    job.refresh()
    assert job.return_value == 3


def test_arguments_with_another_unique_key_are_refused(alice: Operator) -> None:
    job = payments.invoice.enqueue(1, "old")
    assert operations.EDIT.attempt(alice, job.id, args=[1, "new"]).is_good
    done = operations.EDIT.attempt(alice, job.id, args=[2, "new"])
    assert "another unique key" in done.sentence
    assert payments.invoice.enqueue(1, "more").was_duplicate
    drain()
    job.refresh()
    assert job.return_value == "1 new"


def test_edited_job_waits_for_the_guard_of_its_new_arguments(alice: Operator) -> None:
    jobs = [payments.charge_till.enqueue(number) for number in (1, 2)]
    assert operations.EDIT.attempt(alice, jobs[1].id, args=[1]).is_good
    claimed = broker_for(settings_for()).claim(
        ClaimRequest(2, holder=UUID(int=7), lease_seconds=60, queues=["default"])
    )
    assert [str(one.job_id) for one in claimed] == [jobs[0].id]


def test_arguments_of_a_job_with_guards_of_its_own_are_not_replaced(alice: Operator) -> None:
    for guard in ({"unique": Unique("sum:{first}")}, {"lock": Lock("sum:{first}")}):
        job = tasks.add.using(**guard).enqueue(1, 2)
        done = operations.EDIT.attempt(alice, job.id, args=[1, 3])
        assert "cancel the job and enqueue another" in done.sentence


def test_running_ended_and_unknown_jobs_are_left_alone(alice: Operator) -> None:
    running = running_job()
    ended = tasks.add.enqueue(1, 2)
    drain()
    for job_id in (running, ended.id, str(UUID(int=1))):
        done = operations.MOVE.attempt(alice, job_id, queue="slow")
        assert not done.is_good
        assert "is not waiting" in done.sentence
    waiting = tasks.add.enqueue(1, 2)
    ids = [running, waiting.id, ended.id]
    done = bulk.perform(alice, operations.MOVE, {"ids": ids}, {"queue": "slow"})
    assert done.sentence.startswith("1 of 3 jobs moved. 2 not;")


@pytest.mark.parametrize(
    ("word", "fields"),
    [
        ("reschedule", {"run_after": "soon"}),
        ("reschedule", {"run_after": "nan"}),
        ("reschedule", {"run_after": "1e300"}),
        ("reschedule", {"run_after": "0001-01-01T00:00:00+23:59"}),
        ("prioritise", {"priority": "101"}),
        ("prioritise", {"priority": ""}),
        ("move", {"queue": ""}),
        ("move", {"queue": "x" * 101}),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_impossible_values_are_refused(
    word: str, fields: dict[str, str], count: int, anna: Client
) -> None:
    jobs = [tasks.add.enqueue(1, 2).id for _ in range(count)]
    said(anna, word, jobs, **fields)
    assert set(Ready.objects.values_list("queue", "rank")) == {("default", 0)}


@pytest.mark.parametrize("count", [1, 2])
def test_rescheduling_without_a_time_is_refused(count: int, anna: Client) -> None:
    jobs = [tasks.add.using(run_after=3600).enqueue(1, 2).id for _ in range(count)]
    for start in ("", " "):
        assert "Write the new start time" in said(anna, "reschedule", jobs, run_after=start)
    assert Deferred.objects.count() == count


def test_answer_why_links_the_holder_of_the_lock(anna: Client) -> None:
    holder, waiting = (payments.charge_till.enqueue(1) for _ in range(2))
    broker_for(settings_for()).claim(
        ClaimRequest(2, holder=UUID(int=7), lease_seconds=60, queues=["default"])
    )
    text = anna.get(f"{PREFIX}jobs/{waiting.id}/").content.decode()
    assert f'href="{PREFIX}jobs/{holder.id}/"' in text


def test_answer_why_resumes_the_paused_queue(anna: Client) -> None:
    queues.pause("mail")
    job = tasks.add.using(queue_name="mail").enqueue(1, 2)
    page = f"{PREFIX}jobs/{job.id}/"
    text = anna.get(page).content.decode()
    assert f'action="{PREFIX}queues/resume/"' in text
    anna.post(f"{PREFIX}queues/resume/", {"queue": "mail", "back": page})
    assert f'action="{PREFIX}queues/resume/"' not in anna.get(page).content.decode()


def test_operations_are_recorded_in_the_log(
    alice: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stoker.operations")
    job = tasks.add.enqueue(1, 2)
    operations.MOVE.attempt(alice, job.id, queue="slow")
    (line,) = [one.getMessage() for one in caplog.records if one.name == "stoker.operations"]
    assert line == (
        f"move-job {job.id} by alice (the provider is down): The job is in the queue slow."
    )


def test_attempts_and_place_in_line_stay(alice: Operator) -> None:
    job = tasks.add.using(run_after=timedelta(hours=1)).enqueue(1, 2)
    Deferred.objects.update(attempts=2, crashes=1)
    assert operations.RUN_NOW.attempt(alice, job.id).is_good
    place = Ready.objects.get()
    assert (str(place.job_id), place.attempts, place.crashes) == (job.id, 2, 1)
