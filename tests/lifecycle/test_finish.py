"""The state machine as a table: the outcome of an attempt, and the state of the job after it."""

import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import Broker, ClaimRequest, Delivery, Return
from stoker.conf import Retention, Settings, settings_for
from stoker.jobs.faults import Fault
from stoker.jobs.outcomes import (
    CLUSTER_GONE,
    Attempted,
    Cancelled,
    Crashed,
    Failed,
    Outcome,
    Retried,
    Snoozed,
    Succeeded,
    TimedOut,
)
from stoker.jobs.package import Package, sealer_for
from stoker.jobs.record import finish
from stoker.models import Attempt, Begun, Cancellation, Claimed, DeadLetter, Deferred, Job, Ready
from stoker.models.job import Message
from stoker.signals import dead_lettered
from stoker.store.engines import engine_of
from stoker.tasks.registry import find_task
from stoker.values.ids import LINKED, derived_job_id

from tests.app import chaos, tasks

pytestmark = pytest.mark.django_db

FAULT = Fault("builtins.ValueError", "no", "Traceback ...", "shop.tasks:send")
DONE = Succeeded(sealer_for(Settings()).seal_value(42))
CRASH = Crashed("killed by SIGKILL", None, 9)
TIME_OUT = TimedOut("it went on", 9)


@dataclass(frozen=True)
class Left:
    """The state of a job after its attempt."""

    place: str
    """claimed, ready, deferred, or none of them."""
    counts: tuple[int, int] | None = None
    """Attempts and crashes before the next claim."""
    status: str | None = None
    attempt: str | None = None
    """The kind of the recorded attempt."""
    dead_letter: str | None = None
    """The reason of the dead letter."""


OVER = Left("none", status="SUCCESSFUL")


@pytest.fixture
def settings() -> Settings:
    return settings_for()


@pytest.fixture
def broker(settings: Settings) -> Broker:
    return broker_for(settings)


def claim(broker: Broker, attempt: int = 1, crashes: int = 0) -> Delivery:
    """Claim a job in the given attempt; it has at most 3 attempts and 2 crashes."""
    tasks.add.using(max_attempts=3, max_crashes=2).enqueue(1, 2)
    (delivery,) = broker.claim(ClaimRequest(1, holder=uuid4(), lease_seconds=60))
    if (attempt, crashes) != (1, 0):
        broker.settle(again=[Return(delivery.lease, attempts=attempt - 1, crashes=crashes)])
        (delivery,) = broker.claim(ClaimRequest(1, holder=uuid4(), lease_seconds=60))
    return delivery


def attempted(delivery: Delivery, outcome: Outcome) -> Attempted:
    return Attempted(delivery, outcome, "host:1.1", 1000.0, 1001.0)


@pytest.mark.parametrize(
    ("outcome", "is_imported"),
    [
        (Failed(FAULT), True),
        (TIME_OUT, True),
        (CRASH, True),
        (replace(CRASH, has_begun=False), False),
        (CLUSTER_GONE, False),
        (Failed(FAULT, "unknown_task"), False),
    ],
)
def test_module_is_imported_only_if_its_worker_outlived_the_import(
    outcome: Outcome,
    is_imported: bool,
    settings: Settings,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A module that ends its process at import would end every monitor that imports it."""
    code = "from stoker import DeadLetters, task\n"
    code += "@task(max_attempts=1, max_crashes=1, dead_letters=DeadLetters(requeue_after=60))\n"
    code += "def work(): ...\n"
    (tmp_path / "lethal_one.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    find_task("lethal_one.work").enqueue()
    monkeypatch.delitem(sys.modules, "lethal_one")
    (delivery,) = broker.claim(ClaimRequest(1, holder=uuid4(), lease_seconds=60))

    one = replace(attempted(delivery, outcome), task="lethal_one.work")
    finish(settings, broker, [one])

    assert ("lethal_one" in sys.modules) == is_imported
    assert (DeadLetter.objects.get().requeue_due_us is not None) == is_imported


@pytest.mark.parametrize("option", ["max_attempts=1", "at_most_once=True"])
def test_module_is_not_imported_for_the_last_attempt_of_a_job_whose_cluster_is_gone(
    option: str,
    settings: Settings,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job may have been the one that imported the module."""
    code = f"from stoker import task\n@task({option})\ndef work(): ...\n"
    (tmp_path / "lethal_two.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    find_task("lethal_two.work").enqueue()
    monkeypatch.delitem(sys.modules, "lethal_two")
    (delivery,) = broker.claim(ClaimRequest(1, holder=uuid4(), lease_seconds=60))

    finish(settings, broker, [replace(attempted(delivery, CLUSTER_GONE), task="lethal_two.work")])

    assert "lethal_two" not in sys.modules
    assert DeadLetter.objects.get().reason == "crash"


@pytest.mark.parametrize("has_begun", [False, True])
def test_at_most_once_job_whose_cluster_is_gone_runs_only_if_it_had_not_begun(
    has_begun: bool, settings: Settings, broker: Broker
) -> None:
    chaos.run_once_until.enqueue("never")
    (delivery,) = broker.claim(ClaimRequest(1, holder=uuid4(), lease_seconds=60))
    if has_begun:
        Begun.objects.create(job_id=delivery.job_id, worker_id="1", begun_at=timezone.now())
    finish(settings, broker, [attempted(delivery, CLUSTER_GONE)])
    assert Ready.objects.exists() != has_begun
    assert DeadLetter.objects.exists() == has_begun


def left_of(delivery: Delivery) -> Left:
    places = {"claimed": Claimed, "ready": Ready, "deferred": Deferred}
    found = {
        name: row
        for name, model in places.items()
        if (row := model.objects.filter(pk=delivery.job_id).first()) is not None
    }
    assert len(found) <= 1, "a job is in one place"
    ((name, row),) = found.items() or [("none", None)]
    attempt = Attempt.objects.filter(job_id=delivery.job_id, number=delivery.attempt).first()
    dead_letter = DeadLetter.objects.filter(job_id=delivery.job_id).first()
    return Left(
        name,
        (row.attempts, row.crashes) if row is not None else None,
        Job.objects.get(pk=delivery.job_id).status,
        attempt.kind if attempt else None,
        dead_letter.reason if dead_letter else None,
    )


@pytest.mark.parametrize(
    ("outcome", "attempt", "crashes", "left"),
    [
        (DONE, 1, 0, OVER),
        (DONE, 3, 1, OVER),
        (Cancelled("no"), 1, 0, Left("none", status="CANCELLED", attempt="cancelled")),
        (Failed(FAULT), 1, 0, Left("none", None, "FAILED", "failed", "error")),
        (Failed(FAULT, "expired"), 1, 0, Left("none", None, "FAILED", "failed", "expired")),
        (Failed(FAULT, "timeout"), 3, 0, Left("none", None, "FAILED", "timed_out", "timeout")),
        (Retried(FAULT, 60.0), 1, 0, Left("deferred", (1, 0), None, "failed")),
        (Retried(FAULT, 0.0), 2, 1, Left("ready", (2, 1), None, "failed")),
        (Retried(FAULT, 60.0, "timeout"), 1, 0, Left("deferred", (1, 0), None, "timed_out")),
        (Snoozed(60.0), 1, 0, Left("deferred", (0, 0))),
        (Snoozed(0.0), 3, 1, Left("ready", (2, 1))),
        (CRASH, 1, 0, Left("deferred", (1, 1), None, "crashed")),
        (CRASH, 2, 0, Left("deferred", (2, 1), None, "crashed")),
        (CRASH, 3, 0, Left("none", None, "FAILED", "crashed", "crash")),
        (CRASH, 2, 1, Left("none", None, "FAILED", "crashed", "crash")),
        (TIME_OUT, 1, 0, Left("deferred", (1, 0), None, "timed_out")),
        (TIME_OUT, 2, 1, Left("deferred", (2, 1), None, "timed_out")),
        (TIME_OUT, 3, 0, Left("none", None, "FAILED", "timed_out", "timeout")),
    ],
    ids=str,
)
def test_outcome_moves_the_job_to_the_expected_place(
    outcome: Outcome, attempt: int, crashes: int, left: Left, settings: Settings, broker: Broker
) -> None:
    delivery = claim(broker, attempt, crashes)
    assert delivery.attempt == attempt
    assert finish(settings, broker, [attempted(delivery, outcome)]) == set()
    assert left_of(delivery) == left


@pytest.mark.parametrize(
    ("outcome", "attempt"),
    [
        (Retried(FAULT, 60.0), "failed"),
        (Retried(FAULT, 0.0, "timeout"), "timed_out"),
        (Snoozed(0.0), "cancelled"),
        (CRASH, "crashed"),
        (TIME_OUT, "timed_out"),
    ],
    ids=str,
)
def test_job_with_a_requested_cancellation_is_not_repeated(
    outcome: Outcome, attempt: str, settings: Settings, broker: Broker
) -> None:
    """It would run again before upkeep carries out the request, and might succeed."""
    delivery = claim(broker)
    Cancellation.objects.ask(delivery.job_id, "not needed")
    finish(settings, broker, [attempted(delivery, outcome)])
    assert left_of(delivery) == Left("none", status="CANCELLED", attempt=attempt)
    assert Job.objects.get(pk=delivery.job_id).reason == "not needed"


@pytest.mark.parametrize(
    "outcome",
    [DONE, Cancelled("no"), Failed(FAULT), Retried(FAULT, 0.0), Snoozed(0.0), CRASH, TIME_OUT],
    ids=lambda outcome: outcome.kind,
)
def test_stale_lease_moves_and_records_nothing(
    outcome: Outcome, settings: Settings, broker: Broker
) -> None:
    delivery = claim(broker, attempt=3)
    Claimed.objects.update(leased_until_us=0)
    (rescued,) = broker.claim_expired(ClaimRequest(1, holder=uuid4(), lease_seconds=60))
    stale = finish(settings, broker, [attempted(delivery, outcome)])
    assert stale == {delivery.lease}
    assert left_of(rescued) == Left("claimed", (3, 0))


@pytest.mark.parametrize("outcome", [DONE, Retried(FAULT, 0.0), CRASH], ids=lambda one: one.kind)
def test_outcome_reported_twice_counts_once(
    outcome: Outcome, settings: Settings, broker: Broker
) -> None:
    """The pusher reports again if the monitor dies after its commit, before it confirms it."""
    delivery = claim(broker)
    finish(settings, broker, [attempted(delivery, outcome)])
    before = left_of(delivery)
    assert finish(settings, broker, [attempted(delivery, outcome)]) == {delivery.lease}
    assert left_of(delivery) == before
    assert Attempt.objects.count() == (0 if outcome is DONE else 1)


def test_batch_is_recorded_without_its_stale_leases(settings: Settings, broker: Broker) -> None:
    tasks.add.enqueue_many([((1, 2), {})] * 50)
    deliveries = broker.claim(ClaimRequest(50, holder=uuid4(), lease_seconds=60))
    lost = deliveries[::10]
    broker.settle([one.lease for one in lost])
    stale = finish(settings, broker, [attempted(one, DONE) for one in deliveries])
    assert stale == {one.lease for one in lost}
    assert Job.objects.filter(status="SUCCESSFUL").count() == 45
    assert not Claimed.objects.exists()


def test_outcome_that_cannot_be_recorded_is_not_acked(
    settings: Settings, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record first, ack last; on this broker both are one transaction."""
    delivery = claim(broker)

    def refuse() -> None:
        raise DatabaseError("no room")

    monkeypatch.setattr(engine_of("default"), "finish_jobs", lambda _: refuse)
    with pytest.raises(DatabaseError):
        finish(settings, broker, [attempted(delivery, DONE)])
    assert left_of(delivery) == Left("claimed", (1, 0))


def test_crash_without_a_package_is_decided_by_the_settings(
    settings: Settings, broker: Broker
) -> None:
    """The report of a crash has no package, and the settings decide if no package can be opened."""
    delivery = claim(broker, attempt=3)
    bare = Delivery(delivery.job_id, delivery.lease_id, b"", "default", 0, 3, 0)
    finish(settings, broker, [attempted(bare, CRASH)])
    assert left_of(delivery).dead_letter == "crash"


def test_dead_lettered_is_sent_after_the_entry_is_stored(
    settings: Settings, broker: Broker
) -> None:
    told: list[tuple[str, bool]] = []

    def hear(dead_letter: DeadLetter, **_: Any) -> None:
        told.append((dead_letter.reason, DeadLetter.objects.filter(pk=dead_letter.pk).exists()))

    dead_lettered.connect(hear)
    try:
        finish(settings, broker, [attempted(claim(broker), Failed(FAULT))])
    finally:
        dead_lettered.disconnect(hear)
    assert told == [("error", True)]


def test_success_without_kept_results_leaves_no_row(settings: Settings, broker: Broker) -> None:
    delivery = claim(broker)
    keeping_none = replace(settings, keep_results=Retention(successful_seconds=0))
    finish(keeping_none, broker, [attempted(delivery, DONE)])
    assert not Job.objects.exists()
    assert not Claimed.objects.exists()


@pytest.mark.parametrize("path", ["nowhere.record", "tests.app.gone.record"])
def test_end_is_recorded_although_its_recorder_cannot_be_imported(
    path: str, settings: Settings, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The app with the recorder was removed while jobs waited."""
    hooks = json.dumps([["record", path]])
    job_id = derived_job_id(time.time(), 7, LINKED)
    package = Package(job_id, tasks.add.module_path, (1, 2), {}, "default", 0, time.time())
    package.options.hooks = hooks
    data = sealer_for(settings).seal(package)
    broker.enqueue([Message(job_id, package.task, "default", 0, data, enqueued_at=time.time())])
    (delivery,) = broker.claim(ClaimRequest(1, holder=uuid4(), lease_seconds=60))
    assert finish(settings, broker, [attempted(delivery, DONE)]) == set()
    assert left_of(delivery) == OVER
    assert f"{path} cannot be imported" in caplog.text
