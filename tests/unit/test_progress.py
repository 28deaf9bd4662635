"""A job's progress, read from its rows."""

from datetime import UTC, datetime, timedelta

import pytest

from stoker.compat import TaskResultStatus
from stoker.jobs.states import JobState, Progress
from stoker.models import Attempt, Job

pytestmark = pytest.mark.unit

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def attempt(number: int, **more: object) -> Attempt:
    values = {"worker_id": f"w{number}", "exception_class": "builtins.ValueError", **more}
    return Attempt(number=number, started_at=NOW + timedelta(minutes=number), **values)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (JobState.DEFERRED, TaskResultStatus.READY),
        (JobState.BLOCKED, TaskResultStatus.READY),
        (JobState.READY, TaskResultStatus.READY),
        (JobState.CLAIMED, TaskResultStatus.READY),
        (JobState.RUNNING, TaskResultStatus.RUNNING),
        (JobState.SUCCESSFUL, TaskResultStatus.SUCCESSFUL),
        (JobState.FAILED, TaskResultStatus.FAILED),
        (JobState.CANCELLED, TaskResultStatus.FAILED),
    ],
)
def test_states_map_to_djangos_four_statuses(state: JobState, status: TaskResultStatus) -> None:
    assert state.for_django is status


def test_new_job_has_no_attempts() -> None:
    progress = Progress(Job(), JobState.READY)
    assert (progress.attempts, progress.worker_ids, progress.errors) == (0, [], [])
    assert progress.started_at is progress.last_attempted_at is None


def test_first_success_has_one_attempt_without_errors() -> None:
    job = Job(status="SUCCESSFUL", attempts=1, worker_id="w1", started_at=NOW)
    progress = Progress(job, JobState.SUCCESSFUL)
    assert (progress.attempts, progress.worker_ids, progress.errors) == (1, ["w1"], [])
    assert progress.started_at == progress.last_attempted_at == NOW


def test_third_success_has_two_errors() -> None:
    job = Job(status="SUCCESSFUL", attempts=3, worker_id="w3", started_at=NOW + timedelta(hours=1))
    progress = Progress(job, JobState.SUCCESSFUL, [attempt(1), attempt(2)])
    assert progress.attempts == 3
    assert progress.worker_ids == ["w1", "w2", "w3"]
    assert [error.exception_class for error in progress.errors] == [ValueError, ValueError]
    assert progress.started_at == NOW + timedelta(minutes=1)
    assert progress.last_attempted_at == NOW + timedelta(hours=1)


def test_failed_job_has_its_last_worker_once() -> None:
    job = Job(status="FAILED", attempts=2, worker_id="w2", started_at=NOW)
    progress = Progress(job, JobState.FAILED, [attempt(1), attempt(2)])
    assert progress.worker_ids == ["w1", "w2"]
    assert len(progress.errors) == 2


def test_running_retry_has_two_attempts() -> None:
    progress = Progress(Job(), JobState.RUNNING, [attempt(1)])
    assert progress.attempts == 2
    assert progress.last_attempted_at == NOW + timedelta(minutes=1)


def test_cancelled_attempt_is_no_error() -> None:
    job = Job(status="CANCELLED", attempts=1)
    cancelled = attempt(1, exception_class="", kind=Attempt.Kind.CANCELLED)
    assert Progress(job, JobState.CANCELLED, [cancelled]).errors == []
