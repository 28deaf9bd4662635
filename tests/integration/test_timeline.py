"""The timeline of a job, from what is stored about it."""

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker import chain, dead_letters, schedules
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.compat import TaskResultDoesNotExist
from stoker.conf import settings_for
from stoker.inspect.timeline import Moment, MomentKind, timeline
from stoker.jobs import outcomes
from stoker.jobs.faults import plain_fault
from stoker.jobs.outcomes import Attempted, Outcome
from stoker.jobs.record import finish
from stoker.models import Attempt, Cluster, Deferred, Job, Note
from stoker.store.written import DatabaseNow, microseconds
from stoker.tasks.schedules import Cron

from tests.app import frail, guarded, tasks
from tests.integration.letters import dead
from tests.integration.work import claim, work_off

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("nothing_broken")]


def moments(job_id: Any) -> list[Moment]:
    return list(timeline(settings_for(), uuid.UUID(str(job_id))).moments)


def kinds(job_id: Any) -> list[str]:
    return [one.kind.value for one in moments(job_id)]


def end_with(outcome: Callable[[], Outcome]) -> None:
    """End the claimed attempts with this outcome."""
    attempted = [Attempted(one, outcome(), "w", time.time(), time.time()) for one in claim()]
    finish(settings_for(), broker_for(settings_for()), attempted)


def retry(delay_seconds: float = 0) -> outcomes.Retried:
    return outcomes.Retried(plain_fault(ValueError, "no\nmore"), delay_seconds, "error")


def test_successful_job_has_begin_and_end() -> None:
    result = tasks.add.enqueue(1, 2)
    assert kinds(result.id) == ["enqueued", "waits_for_worker"]
    work_off(worker_id="w1")
    enqueued, began, succeeded = moments(result.id)
    job = Job.objects.get(pk=result.id)
    assert enqueued.at == job.enqueued_at
    assert (began.kind, began.at, began.number, began.worker_id) == (
        MomentKind.ATTEMPT_BEGAN,
        job.started_at,
        1,
        "w1",
    )
    assert (succeeded.kind, succeeded.at, succeeded.is_now) == (
        MomentKind.SUCCEEDED,
        job.finished_at,
        False,
    )
    assert succeeded.seconds is not None


def test_deferred_job_waits_for_its_moment() -> None:
    result = tasks.nothing.using(run_after=3600).enqueue()
    enqueued, deferred, waits = moments(result.id)
    assert (deferred.kind, deferred.at) == (MomentKind.DEFERRED, enqueued.at)
    assert waits.kind is MomentKind.WAITS_FOR_MOMENT
    assert waits.is_now
    assert waits.until is not None
    assert deferred.until is not None
    assert abs((waits.until - deferred.until).total_seconds()) < 1


def test_each_failed_attempt_has_its_error() -> None:
    result = tasks.nothing.using(max_attempts=5).enqueue()
    end_with(retry)
    end_with(lambda: outcomes.Crashed("signal 9", None, 9))
    Deferred.objects.update(due_us=F("due_us") + microseconds(600))  # longer than a test
    assert kinds(result.id)[-1] == "waits_for_retry", "a crash has a pause"
    failed, crashed = (one for one in moments(result.id) if one.attempt is not None)
    assert (failed.kind, failed.number, failed.text) == (MomentKind.ATTEMPT_FAILED, 1, "no")
    assert failed.attempt is not None
    assert failed.attempt.exception_class.endswith("ValueError")
    assert failed.seconds is not None
    assert (crashed.kind, crashed.number) == (MomentKind.ATTEMPT_CRASHED, 2)
    waits = moments(result.id)[-1]
    assert (waits.is_now, waits.at) == (True, crashed.at)
    assert waits.until is not None


def test_attempt_without_row_is_shown_as_unknown() -> None:
    result = tasks.nothing.enqueue()
    end_with(retry)
    end_with(retry)
    Attempt.objects.filter(number=1).delete()
    assert kinds(result.id) == [
        "enqueued",
        "attempt_unknown",
        "attempt_began",
        "attempt_failed",
        "waits_for_worker",
    ]
    assert moments(result.id)[1].at is None


def test_blocked_job_waits_for_its_guard() -> None:
    first, second = guarded.enter.enqueue(), guarded.enter.enqueue()
    (delivery,) = claim()
    assert str(delivery.job_id) == first.id
    waits = moments(second.id)[-1]
    assert (waits.kind, waits.text, waits.is_now) == (
        MomentKind.WAITS_FOR_GUARD,
        "lock door",
        True,
    )


def test_running_job_shows_progress_and_cancel_request() -> None:
    result = tasks.nothing.enqueue()
    (delivery,) = claim()
    Note.objects.write(delivery.job_id, done=1, total=4, message="half of a half")
    result.cancel("enough")
    runs, noted, asked = moments(result.id)[-3:]
    assert (runs.kind, runs.is_now, runs.number, runs.at) == (MomentKind.RUNS, True, 1, None)
    assert (noted.fraction, noted.text) == (0.25, "1 of 4: half of a half")
    assert (asked.kind, asked.text) == (MomentKind.CANCEL_ASKED, "enough")


def test_running_job_shows_its_worker() -> None:
    result = tasks.nothing.enqueue()
    holder = uuid.uuid4()
    broker_for(settings_for()).claim(ClaimRequest(1, holder=holder, lease_seconds=60))
    running = [{"job": result.id, "seconds": 30.0}]
    Cluster.objects.create(
        id=holder,
        name="stoker",
        host="one",
        pid=1,
        heartbeat_us=DatabaseNow() - microseconds(5),
        started_at=timezone.now(),
        info={"workers": [{"number": 0, "pid": 77, "jobs_done": 0, "running": running}]},
    )
    runs = moments(result.id)[-1]
    assert runs.worker_id == "one:77"
    assert runs.at is not None
    assert 30 < (timezone.now() - runs.at).total_seconds() < 90


def test_cancelled_job_shows_the_reason() -> None:
    result = tasks.nothing.enqueue()
    result.cancel("ordered twice")
    assert kinds(result.id) == ["enqueued", "cancelled"]
    assert moments(result.id)[-1].text == "ordered twice"


def test_dead_letter_shows_requeue_and_discard() -> None:
    letter = dead(frail.charge, "7")
    first = letter.job_id
    assert kinds(first)[-2:] == ["failed", "dead_lettered"]
    second = dead_letters.requeue(letter.pk, by="alice", because="the bank is back").job_id
    again = moments(first)[-1]
    assert (again.kind, again.job_id, again.by, again.text) == (
        MomentKind.REQUEUED,
        second,
        "alice",
        "the bank is back",
    )
    carries_on = moments(second)[1]
    assert (carries_on.kind, carries_on.job_id, carries_on.by) == (
        MomentKind.CARRIES_ON,
        first,
        "alice",
    )
    work_off()  # fails again: the dead letter belongs to the newer job now
    assert kinds(first)[-2:] == ["dead_lettered", "requeued"]
    assert moments(first)[-2].dead_letter_id == letter.pk
    assert kinds(second)[-2:] == ["failed", "dead_lettered"]
    dead_letters.discard(letter.pk, by="bob", because="paid in cash")
    closed = moments(second)[-1]
    assert (closed.kind, closed.by, closed.text) == (MomentKind.DISCARDED, "bob", "paid in cash")


def test_job_of_workflow_or_schedule_names_it() -> None:
    workflow = chain(tasks.nothing.si(), tasks.nothing.si()).enqueue()
    (delivery,) = claim()
    step = moments(delivery.job_id)[1]
    assert step.kind is MomentKind.IN_WORKFLOW
    assert str(step.workflow_id) == workflow.id
    schedules.create("nightly", tasks.nothing, Cron("0 3 * * *"))
    result = schedules.run_now("nightly")
    first = moments(result.id)[0]
    assert (first.kind, first.text) == (MomentKind.SCHEDULED, "nightly")


def test_unknown_job_raises_does_not_exist() -> None:
    with pytest.raises(TaskResultDoesNotExist):
        moments(uuid.uuid4())


def test_timeline_needs_few_queries() -> None:
    chain(guarded.enter.si(), tasks.nothing.si()).enqueue()
    (delivery,) = claim()
    with CaptureQueriesContext(connection) as captured:
        moments(delivery.job_id)
    assert len(captured) <= 12
