"""Each failed attempt sends one attempt_failed, from the process that knows most about it."""

import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from django.test import override_settings

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery
from stoker.conf import settings_for
from stoker.jobs.execute import Executor
from stoker.jobs.failures import Failure
from stoker.jobs.outcomes import (
    CLUSTER_GONE,
    Attempted,
    Crashed,
    Failed,
    Outcome,
    Snoozed,
    TimedOut,
)
from stoker.jobs.record import finish
from stoker.jobs.states import JobState
from stoker.models import Claimed, DeadLetter, Deferred, Job
from stoker.signals import attempt_failed, pre_enqueue

from tests.app import reported, tasks
from tests.app.noting import count_quickly

pytestmark = pytest.mark.django_db


@pytest.fixture
def told() -> Iterator[list[Failure]]:
    """The failures that attempt_failed was sent for."""
    failures: list[Failure] = []

    def listen(*, failure: Failure, **_: Any) -> None:
        failures.append(failure)

    attempt_failed.connect(listen)
    yield failures
    attempt_failed.disconnect(listen)


def claim() -> Delivery:
    (delivery,) = broker_for(settings_for()).claim(
        ClaimRequest(1, holder=uuid.uuid4(), lease_seconds=60)
    )
    return delivery


def record(delivery: Delivery, outcome: Outcome) -> None:
    attempted = Attempted(delivery, outcome, "me", 1.0, 2.0)
    finish(settings_for(), broker_for(settings_for()), [attempted])


@pytest.mark.parametrize("outcome", [Crashed("killed by SIGKILL", signal=9), TimedOut("late")])
def test_lost_worker_sends_attempt_failed_when_recorded(
    outcome: Outcome, told: list[Failure]
) -> None:
    reported.fail.enqueue("A-1", password="x")
    record(claim()._replace(package=b""), outcome)  # the monitor has no package
    (failure,) = told
    assert (failure.task, failure.attempt, failure.is_final) == ("tests.app.reported.fail", 1, True)
    assert failure.reason == {"crashed": "crash", "timed_out": "timeout"}[outcome.kind]
    assert failure.package is not None
    assert failure.package.kwargs == {"password": "x"}
    assert failure.exception is None


def test_crash_before_the_task_was_called_counts_no_attempt(told: list[Failure]) -> None:
    """It counts as a crash, so a package that kills each process that opens it ends, too."""
    result = tasks.add.using(max_attempts=1).enqueue(1, 2)
    most = settings_for().max_crashes
    for crashes in range(1, most + 1):
        delivery = claim()
        assert (delivery.attempt, delivery.crashes) == (1, crashes - 1)
        record(delivery, Crashed("killed", has_begun=False))
        assert DeadLetter.objects.count() == (crashes == most)
        Deferred.objects.update(due_us=0)
    result.refresh()
    assert result.state is JobState.FAILED
    assert [one.is_final for one in told] == [True]


def test_retried_failure_is_not_final(told: list[Failure]) -> None:
    tasks.add.enqueue(1, 2)
    record(claim(), Crashed("killed"))
    assert [one.is_final for one in told] == [False]


def test_failure_signalled_by_the_worker_is_not_signalled_again(told: list[Failure]) -> None:
    reported.fail.enqueue("A-1", "x")
    attempted = Executor(settings_for(), worker_id="me").run(claim())
    (failure,) = told
    assert isinstance(failure.exception, ValueError)
    assert failure.exception.__traceback__ is not None
    finish(settings_for(), broker_for(settings_for()), [attempted])
    assert len(told) == 1


def test_unreadable_package_is_signalled_by_the_worker(told: list[Failure]) -> None:
    tasks.add.enqueue(1, 2)
    Executor(settings_for(), worker_id="me").run(claim()._replace(package=b"rubbish"))
    (failure,) = told
    assert (failure.reason, failure.package, failure.task) == ("unreadable", None, "")


def test_failure_of_a_pickled_job_unpickles_nothing(told: list[Failure]) -> None:
    entry = {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": {"SERIALIZER": "pickle"}}
    with override_settings(TASKS={"default": entry}):
        tasks.echo.enqueue(object())
        record(claim(), Crashed("killed"))
    (failure,) = told
    assert failure.task == "tests.app.tasks.echo"
    assert failure.package is not None
    assert failure.package.args == ()


class CountsOpenings:
    """An argument that counts how often it is unpickled, and refuses to after some times."""

    times: ClassVar[int] = 0
    most: ClassVar[int] = 0

    def __reduce__(self) -> Any:
        return CountsOpenings.make, ()

    @staticmethod
    def make() -> Any:
        CountsOpenings.times += 1
        if CountsOpenings.times > CountsOpenings.most:
            raise LookupError("It cannot be unpickled again.")
        return CountsOpenings()


def fail_with_counter(monkeypatch: pytest.MonkeyPatch, most: int) -> Outcome:
    """Run a job that fails, and whose argument can be unpickled a number of times."""
    monkeypatch.setattr(CountsOpenings, "times", 0)
    monkeypatch.setattr(CountsOpenings, "most", most)
    entry = {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": {"SERIALIZER": "pickle"}}
    with override_settings(TASKS={"default": entry}):
        reported.fail.enqueue(CountsOpenings(), "x")  # type: ignore[arg-type] # prints it only
        return Executor(settings_for(), worker_id="me").run(claim()).outcome


def test_failed_attempt_is_recorded_if_its_package_cannot_be_opened_again(
    told: list[Failure], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = fail_with_counter(monkeypatch, most=1)
    assert isinstance(outcome, Failed)
    assert outcome.fault.exception_class == "builtins.ValueError"
    (failure,) = told
    assert failure.package is not None
    assert failure.package.args[1] == "x", "it is as the task has left it"


def test_failed_attempt_opens_its_package_for_the_signal_only_if_it_has_receivers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_with_counter(monkeypatch, most=9)
    silent = CountsOpenings.times
    attempt_failed.connect(ignore)
    fail_with_counter(monkeypatch, most=9)
    attempt_failed.disconnect(ignore)
    assert CountsOpenings.times == silent + 1


def ignore(**_: Any) -> None:
    """Receive a signal."""


def test_unreadable_package_does_not_prevent_recording(told: list[Failure]) -> None:
    tasks.add.enqueue(1, 2)
    delivery = claim()._replace(package=b"")
    Job.objects.filter(pk=delivery.job_id).update(package=b"rubbish")
    record(delivery, Crashed("killed"))
    assert [one.task for one in told] == [""]


def test_pre_enqueue_receives_the_job_id() -> None:
    known: list[Any] = []

    def listen(*, job_id: uuid.UUID, **_: Any) -> None:
        known.append(str(job_id))

    pre_enqueue.connect(listen)
    try:
        result = tasks.add.enqueue(1, 2)
    finally:
        pre_enqueue.disconnect(listen)
    assert known == [result.id]


@pytest.mark.parametrize(
    ("outcome", "happened", "error"),
    [
        (
            CLUSTER_GONE,
            "lost its lease",
            "its cluster is gone: the lease ended without a heartbeat",
        ),
        (
            Crashed("killed by SIGKILL", signal=9),
            "failed",
            "stoker.jobs.record.WorkerCrashed: killed by SIGKILL",
        ),
    ],
)
def test_log_says_whether_the_lease_or_the_worker_was_lost(
    outcome: Outcome, happened: str, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    result = tasks.add.enqueue(1, 2)
    record(claim(), outcome)
    begin = f"tests.app.tasks.add[{result.id}] {happened} after 1.000 s, attempt 1: {error}."
    assert f"{begin} The next attempt is in 2.0 s." in caplog.messages


def test_log_of_a_job_that_another_cluster_has_announces_no_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = count_quickly.enqueue(1)
    delivery = claim()
    Claimed.objects.update(lease_id=delivery.lease_id + 1)  # type: ignore[operator] # of the store
    Executor(settings_for(), worker_id="me").run(delivery)
    (line,) = (one for one in caplog.messages if result.id in one and "attempt 1" in one)
    assert "] lost its lease after" in line
    assert line.endswith("nothing was stored. Another cluster has the job.")


def test_log_of_an_attempt_without_delay_names_no_seconds(caplog: pytest.LogCaptureFixture) -> None:
    result = tasks.ask_for_retry.enqueue(0)
    Executor(settings_for(), worker_id="me").run(claim())
    (line,) = (one for one in caplog.messages if result.id in one and "failed" in one)
    assert line.endswith("The next attempt is due now.")


@pytest.mark.parametrize(("seconds", "delay"), [(0.0, ""), (0.04, ""), (5.0, " for 5.0 s")])
def test_log_of_a_released_job_names_only_a_real_delay(
    seconds: float, delay: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "stoker")
    result = tasks.add.enqueue(1, 2)
    record(claim(), Snoozed(seconds, "its cluster is gone"))
    assert f"Job {result.id} is released{delay}: its cluster is gone" in caplog.messages
