"""Outcomes recorded in one batch leave the same rows as outcomes recorded one by one."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker import Lock, chain
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import Broker, ClaimRequest, Delivery, Lease, Return
from stoker.cluster.wire import (
    Reported,
    id_bytes_of,
    open_batch,
    open_report,
    pack_for_monitor,
    pack_report,
)
from stoker.conf import Settings, settings_for
from stoker.jobs.execute import Executor
from stoker.jobs.faults import Fault
from stoker.jobs.outcomes import Attempted, Failed, Outcome, Retried, Succeeded, Tallies
from stoker.jobs.package import sealer_for
from stoker.jobs.record import Recorder, finish
from stoker.models import Attempt, Blocked, Claimed, DeadLetter, Deferred, Job, Need, Requeue, Tally
from stoker.signals import post_execute
from stoker.store.engines import engine_of
from stoker.store.statements import lock_by_key
from stoker.store.written import instant_us, instants_us
from stoker.values.ids import new_job_id

from tests.app import tasks

pytestmark = pytest.mark.django_db

KEPT = ("status", "attempts", "worker_id", "started_at", "finished_at", "value", "reason")
VALUES: list[Any] = [42, None, True, "", 'a "b" {c}, \\ and é', {"a": [1.5, "\\x00"]}, "NULL"]


@pytest.fixture
def settings() -> Settings:
    return settings_for()


@pytest.fixture
def broker(settings: Settings) -> Broker:
    return broker_for(settings)


def claim(broker: Broker, count: int) -> list[Delivery]:
    return broker.claim(ClaimRequest(count, holder=uuid4(), lease_seconds=60))


def succeeded(broker: Broker, values: list[Any]) -> list[Reported]:
    """Return reports of jobs that returned these values, as the monitor receives them."""
    tasks.add.enqueue_many([((1, 2), {}) for _ in values])
    sealer, reports = sealer_for(settings_for()), []
    claimed = claim(broker, len(values))
    for number, (delivery, value) in enumerate(zip(claimed, values, strict=True)):
        started_at = 1_700_000_000.0 + number / 7
        attempted = Attempted(
            delivery,
            Succeeded(sealer.seal_value(value)),
            'host, "1".2',
            started_at,
            started_at + 0.1,
            task="tests.app.tasks.add",
            enqueued_at=started_at - 5,
        )
        reports.append((pack_report(number, attempted), pack_for_monitor(number, delivery)))
    return reports


def record(settings: Settings, broker: Broker, reported: list[Reported]) -> set[Lease]:
    return Recorder(settings, broker).record(open_batch(reported))


def rows_of(reported: list[Reported]) -> list[tuple[Any, ...]]:
    found = {job.pk: tuple(getattr(job, name) for name in KEPT) for job in Job.objects.all()}
    return [found[UUID(bytes=id_bytes_of(job))] for _, job in reported]


def test_batch_leaves_the_same_rows_as_single_attempts(settings: Settings, broker: Broker) -> None:
    together, singly = succeeded(broker, VALUES), succeeded(broker, VALUES)
    assert record(settings, broker, together) == set()
    for one in singly:
        assert finish(settings, broker, [open_report(*one)]) == set()
    assert rows_of(together) == rows_of(singly)
    assert not Claimed.objects.exists()


def test_batch_is_counted_like_its_single_reports(settings: Settings, broker: Broker) -> None:
    (delivery,) = (one for one in claim_again(broker))
    late = open_report(*succeeded(broker, [1])[0])
    late.delivery, late.enqueued_at = delivery, 1_800_000_000.0
    failed = open_report(*succeeded(broker, [1])[0])
    failed.outcome = Failed(Fault("builtins.ValueError", "no", ""))
    reported = [
        *succeeded(broker, VALUES),
        (pack_report(9, late), pack_for_monitor(9, delivery)),
        (pack_report(10, failed), pack_for_monitor(10, failed.delivery)),
    ]
    both = [Tallies(settings), Tallies(settings)]
    for tallies, batches in zip(both, ([reported], [[one] for one in reported]), strict=True):
        for one in map(open_batch, batches):
            one.decide(one.seen)
            tallies.add(one)
    written = []
    for tallies in both:
        tallies.write()
        written.append(list(Tally.objects.order_by("task").values()))
        Tally.objects.all().delete()
    for row in (*written[0], *written[1]):
        del row["id"], row["start"]
        row["run_seconds"] = pytest.approx(row["run_seconds"])
        row["wait_seconds"] = pytest.approx(row["wait_seconds"])
    assert written[0] == written[1]
    assert (written[0][0]["successful"], written[0][0]["failed"]) == (len(reported) - 1, 1)


def claim_again(broker: Broker) -> list[Delivery]:
    """Claim a job in its second attempt; its wait is not counted."""
    tasks.add.enqueue(1, 2)
    (delivery,) = claim(broker, 1)
    broker.settle(again=[Return(delivery.lease, attempts=1)])
    return claim(broker, 1)


def test_stale_lease_in_a_batch_is_skipped(settings: Settings, broker: Broker) -> None:
    reported = succeeded(broker, [1, 2, 3])
    taken = UUID(bytes=id_bytes_of(reported[1][1]))
    Claimed.objects.filter(pk=taken).update(lease_id=1)
    stale = record(settings, broker, reported)
    assert [lease.job_id for lease in stale] == [taken]
    assert Claimed.objects.get().pk == taken
    assert Job.objects.get(status=None).pk == taken


def test_batch_that_cannot_be_recorded_is_not_acked(
    settings: Settings, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise DatabaseError("no")

    reported = succeeded(broker, [1, 2])
    monkeypatch.setattr(engine_of("default"), "finish_jobs", lambda _: fail)
    with pytest.raises(DatabaseError):
        record(settings, broker, reported)
    assert Claimed.objects.count() == 2


def test_failure_and_retry_are_recorded_with_successes(settings: Settings, broker: Broker) -> None:
    reported = succeeded(broker, [1, 2])
    tasks.fail.using(max_attempts=1).enqueue()
    tasks.fail.using(max_attempts=2).enqueue()
    for number, delivery in enumerate(claim(broker, 2), 3):
        failed = Executor(settings, worker_id="host:1.2").run(delivery)
        reported.append((pack_report(number, failed), pack_for_monitor(number, delivery)))
    assert record(settings, broker, reported) == set()
    statuses = sorted(Job.objects.values_list("status", flat=True), key=str)
    assert statuses == ["FAILED", None, "SUCCESSFUL", "SUCCESSFUL"]
    assert not Claimed.objects.exists()
    assert (DeadLetter.objects.count(), Deferred.objects.count()) == (1, 1)
    assert sorted(Attempt.objects.values_list("kind", flat=True)) == ["failed", "failed"]


def test_job_reported_twice_is_recorded_once(settings: Settings, broker: Broker) -> None:
    reported = succeeded(broker, [1])
    assert record(settings, broker, reported * 2) == set()
    assert Job.objects.get().status == "SUCCESSFUL"


def test_finished_step_enqueues_the_next(settings: Settings, broker: Broker) -> None:
    reported = succeeded(broker, [1])
    chain(tasks.add.si(1, 2), tasks.add.si(3, 4)).enqueue()
    (delivery,) = claim(broker, 1)
    attempted = Executor(settings, worker_id="host:1.2").run(delivery)
    reported.append((pack_report(1, attempted), pack_for_monitor(1, delivery)))
    assert record(settings, broker, reported) == set()
    assert Claimed.objects.count() == 0
    assert len(claim(broker, 2)) == 1


def test_post_execute_is_sent_for_each_outcome(
    settings: Settings, broker: Broker, django_capture_on_commit_callbacks: Any
) -> None:
    told: list[Any] = []

    def listen(outcome: Outcome, **_: Any) -> None:
        told.append(outcome)

    with listening(listen), django_capture_on_commit_callbacks(execute=True):
        record(settings, broker, succeeded(broker, [1, 2]))
    assert [type(one) for one in told] == [Succeeded, Succeeded]


@contextmanager
def listening(receiver: Any) -> Iterator[None]:
    post_execute.connect(receiver)
    try:
        yield
    finally:
        post_execute.disconnect(receiver)


def test_finished_job_unblocks_the_next_of_its_lock(settings: Settings, broker: Broker) -> None:
    locked = tasks.add.using(lock=Lock("one"))
    locked.enqueue(1, 2)
    locked.enqueue(3, 4)
    (delivery,) = claim(broker, 10)
    assert Blocked.objects.count() == 1
    attempted = Executor(settings, worker_id="host:1.2").run(delivery)
    reported = [(pack_report(1, attempted), pack_for_monitor(1, delivery))]
    assert record(settings, broker, reported) == set()
    assert not Blocked.objects.exists()
    assert Need.objects.count() == 1, "the needs of the finished job are deleted"


def test_success_of_a_requeue_resolves_its_dead_letter(settings: Settings, broker: Broker) -> None:
    tasks.fail.using(max_attempts=1).enqueue()
    (delivery,) = claim(broker, 1)
    finish(settings, broker, [Executor(settings, worker_id="host:1.2").run(delivery)])
    letter = DeadLetter.objects.get()
    reported = succeeded(broker, [1])
    Requeue.objects.create(
        job_id=UUID(bytes=id_bytes_of(reported[0][1])),
        identity=letter.identity,
        from_job_id=letter.job_id,
    )
    assert record(settings, broker, reported) == set()
    letter.refresh_from_db()
    assert letter.state == DeadLetter.State.RESOLVED


def test_times_in_a_batch_are_rounded_like_single_ones(seed: int) -> None:
    chance = random.Random(seed)
    moments = [time.time() + chance.uniform(-1e6, 1e6) for _ in range(5000)]
    moments += [0.0, 0.9999996, 1_700_000_000.9999998, 1_700_000_000.0000005]
    assert instants_us(moments) == [instant_us(one) for one in moments]


@pytest.mark.mariadb
def test_many_long_tracebacks_are_recorded_in_several_statements(
    settings: Settings, broker: Broker
) -> None:
    """Together they are larger than ``max_allowed_packet``."""
    tasks.add.using(max_attempts=2).enqueue_many([((1, 2), {}) for _ in range(400)])
    fault = Fault("ValueError", "no", "traceback " * 7_000)
    attempted = [
        Attempted(one, Retried(fault, 60.0), "worker", None, time.time())
        for one in claim(broker, 400)
    ]
    finish(settings, broker, attempted)
    assert Attempt.objects.count() == Deferred.objects.count() == 400


@pytest.mark.mariadb
def test_lock_reads_only_the_named_columns() -> None:
    result = tasks.add.enqueue(1, 2)
    with CaptureQueriesContext(connection) as queries:
        (job,) = lock_by_key(Job.objects.all(), [UUID(result.id)], "status")
    assert (str(job.id), job.status) == (result.id, None)
    assert "package" not in queries[0]["sql"]
    assert "narrow.*" not in queries[0]["sql"]


@pytest.mark.postgres
def test_attempt_is_not_dropped_if_the_sequence_of_ids_is_behind() -> None:
    """Logical replication copies rows, but not the state of sequences."""
    job_id, now = new_job_id(), timezone.now()
    first, second = (
        Attempt(job_id=job_id, number=number, kind=Attempt.Kind.FAILED, finished_at=now)
        for number in (1, 2)
    )
    Attempt.objects.record([first])
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT setval(pg_get_serial_sequence('stoker_attempt', 'id'), max(id), false)"
            " FROM stoker_attempt"
        )
    with pytest.raises(IntegrityError), transaction.atomic():
        Attempt.objects.record([second])
    Attempt.objects.record([first, second])
    assert list(Attempt.objects.order_by("number").values_list("number", flat=True)) == [1, 2]
