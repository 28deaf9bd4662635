"""Upkeep in this process: rescuing, pruning, and failing steps."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, ProgrammingError, connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import Broker, ClaimRequest
from stoker.cluster.board import PID, Board, lease_mark
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler import rescue as rescue_module
from stoker.cluster.scheduler import scheduler as scheduler_module
from stoker.cluster.scheduler.scheduler import Upkeep
from stoker.conf import Retention, settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.jobs import pruning as pruning_module
from stoker.models import Attempt, Claimed, Cluster, Job, LockKey
from stoker.signals import event
from stoker.store.engines import engine_of
from stoker.store.written import DatabaseNow, microseconds

from tests.app import tasks

pytestmark = pytest.mark.django_db


@pytest.fixture
def broker() -> Broker:
    return broker_for(settings_for())


@pytest.fixture
def told() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    events: list[tuple[str, dict[str, Any]]] = []

    def hear(name: str, facts: dict[str, Any], **_: Any) -> None:
        events.append((name, facts))

    event.connect(hear)
    yield events
    event.disconnect(hear)


def upkeep_with(**overrides: Any) -> Upkeep:
    plan = Plan(overrides=tuple(overrides.items()))
    return Upkeep(plan, plan.settings, broker_for(plan.settings), lambda: None)


def finished(count: int, status: str = "SUCCESSFUL", days_ago: float = 0.0) -> list[UUID]:
    """Make jobs that ended so long ago, a second apart, each with one attempt."""
    ended_at = timezone.now() - timedelta(days=days_ago)
    job_ids = [UUID(one.id) for one in tasks.add.enqueue_many([((1, 2), {})] * count)]
    broker_for(settings_for()).withdraw(job_ids)
    for number, job_id in enumerate(job_ids):
        moment = ended_at + timedelta(seconds=number)
        Job.objects.filter(pk=job_id).update(status=status, finished_at=moment)
        Attempt.objects.create(job_id=job_id, number=1, kind="failed", finished_at=moment)
    return job_ids


def test_results_are_pruned_by_age_and_failures_later() -> None:
    old = finished(3, days_ago=10)
    failed = finished(2, "FAILED", days_ago=10)
    fresh = finished(2)
    assert upkeep_with().prune() == 3
    assert set(Job.objects.values_list("pk", flat=True)) == {*failed, *fresh}
    assert not Attempt.objects.filter(job_id__in=old).exists()
    assert Attempt.objects.count() == 4


def test_oldest_results_are_pruned_by_count() -> None:
    kept = finished(7)[2:]
    keep = Retention(successful_seconds=None, successful_count=5)
    assert upkeep_with(keep_results=keep).prune() == 2
    assert set(Job.objects.values_list("pk", flat=True)) == set(kept)


def test_as_many_results_are_kept_if_all_ended_at_the_same_moment() -> None:
    kept = finished(7, "CANCELLED")[4:]
    Job.objects.update(finished_at=timezone.now())
    keep = Retention(failed_seconds=None, failed_count=3)
    assert upkeep_with(keep_results=keep).prune() == 4
    assert set(Job.objects.values_list("pk", flat=True)) == set(kept)


def test_pruning_works_in_batches_and_loads_no_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pruning_module, "BATCH", 10)
    finished(35, days_ago=10)
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert upkeep_with().prune() == 35
    statements = [query["sql"] for query in captured.captured_queries]
    deletes = [sql for sql in statements if sql.startswith("DELETE") and "stoker_job" in sql]
    assert len(deletes) == 4
    assert not [sql for sql in statements if "package" in sql]


def test_unfinished_jobs_are_never_pruned() -> None:
    result = tasks.add.enqueue(1, 2)
    keep = Retention(0.0, 0, 0.0, 0)
    assert upkeep_with(keep_results=keep).prune() == 0
    assert Job.objects.filter(pk=result.id).exists()


def test_rescue_takes_all_ended_leases_in_batches(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue_module, "BATCH", 10)
    tasks.add.enqueue_many([((1, 2), {})] * 35)
    broker.claim(ClaimRequest(35, holder=uuid4(), lease_seconds=60))
    Claimed.objects.update(leased_until_us=0)
    assert upkeep_with().rescuing.rescue() == 35
    assert not Claimed.objects.exists()
    assert Attempt.objects.filter(kind="crashed", number=1).count() == 35


def test_job_that_cannot_be_rescued_delays_no_other(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, told: list[tuple[str, dict[str, Any]]]
) -> None:
    """It is rescued again when its new lease ends."""
    results = tasks.add.enqueue_many([((1, 2), {})] * 9)
    bad = UUID(results[4].id)
    broker.claim(ClaimRequest(9, holder=uuid4(), lease_seconds=60))
    Claimed.objects.update(leased_until_us=0)
    real = rescue_module.finish

    def refuse(settings: Any, broker: Any, attempted: Any, **more: Any) -> Any:
        if bad in [one.delivery.job_id for one in attempted]:
            raise DatabaseError("not this one")
        return real(settings, broker, attempted, **more)

    monkeypatch.setattr(rescue_module, "finish", refuse)
    assert upkeep_with().rescuing.rescue() == 9
    assert Claimed.objects.get().job_id == bad
    assert Attempt.objects.count() == 8
    assert [facts["step"] for name, facts in told if name == "upkeep_failed"] == ["rescue"]


def test_rescued_job_is_not_held_by_the_clusters_pusher(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new pusher releases its cluster's jobs that no worker has; it must not see this one."""
    tasks.add.enqueue(1, 2)
    broker.claim(ClaimRequest(1, holder=uuid4(), lease_seconds=60))
    Claimed.objects.update(leased_until_us=0)
    upkeep = upkeep_with()
    held: list[int] = []
    monkeypatch.setattr(
        rescue_module,
        "finish",
        lambda *_, **__: held.append(len(broker.held_by(upkeep._plan.cluster_id))),
    )
    upkeep.rescuing.rescue()
    assert held == [0]


@pytest.mark.parametrize("error", [DatabaseError("no"), IndexError("a mistake"), OSError("full")])
def test_failing_step_stops_neither_the_others_nor_the_cluster(
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    told: list[tuple[str, dict[str, Any]]],
) -> None:
    finished(1, days_ago=10)
    upkeep = upkeep_with()
    cluster_row("elsewhere", 0)

    def fail() -> None:
        raise error

    for name in ("bury_clusters_of_this_host", "bury_silent_clusters", "rescue"):
        monkeypatch.setattr(upkeep.rescuing, name, fail)
    monkeypatch.setattr(
        connections["default"], "close", lambda: None
    )  # this test runs in its transaction
    upkeep.run()
    assert not Job.objects.exists()
    assert len([name for name, _ in told if name == "upkeep_failed"]) == 3


def test_upkeep_without_work_sends_one_short_statement_for_each_kind_of_work() -> None:
    upkeep = upkeep_with()
    upkeep.clean_up_at_start()
    upkeep.run()  # the next runs skip the steps that found nothing in this one
    with CaptureQueriesContext(connection) as captured:
        upkeep.run()
    sent = [one["sql"] for one in captured if "SAVEPOINT" not in one["sql"]]
    looks = [sql for sql in sent if sql.endswith("LIMIT 1")]
    assert len(looks) == 5, looks
    lease_clock_and_rescue = 3
    assert len(sent) == len(looks) + lease_clock_and_rescue, sent


def test_clean_up_that_failed_is_repeated_with_the_board_of_the_dead_cluster(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The broker is unreachable at first, until the cluster has been silent for a lease. A job that
    it had not started keeps its only attempt."""
    result = tasks.add.using(max_attempts=1).enqueue(1, 2)
    board = Board.create(tmp_path / "cluster.board", workers=1, slots=1)
    upkeep = upkeep_with()
    dead = Cluster.objects.create(
        id=uuid4(), name="dead", host=upkeep._plan.host, pid=7, heartbeat_us=0,
        started_at=timezone.now(), info={"board": str(board.path)},
    )  # fmt: skip
    broker.claim(ClaimRequest(1, holder=dead.pk, lease_seconds=600))
    board.close()
    with monkeypatch.context() as patch:
        patch.setattr(upkeep._broker.lessors[0], "held_by", _away)
        for bury in (
            upkeep.rescuing.bury_clusters_of_this_host,
            upkeep.rescuing.bury_silent_clusters,
        ):
            with pytest.raises(BrokerUnavailable):
                bury()
    assert upkeep.rescuing.bury_silent_clusters() == 1
    assert not board.path.exists()
    assert not Cluster.objects.exists()
    (again,) = broker.claim(ClaimRequest(1, holder=uuid4(), lease_seconds=60))
    assert (str(again.job_id), again.attempt) == (result.id, 1)


def test_unstarted_job_of_a_dead_cluster_is_cancelled_if_that_was_requested(
    broker: Broker, tmp_path: Path
) -> None:
    cancelled, waiting = (tasks.add.enqueue(1, 2) for _ in range(2))
    board = Board.create(tmp_path / "cluster.board", workers=1, slots=2)
    upkeep = upkeep_with()
    dead = cluster_row(upkeep._plan.host, 0.0)
    Cluster.objects.filter(pk=dead.pk).update(info={"board": str(board.path)})
    broker.claim(ClaimRequest(2, holder=dead.pk, lease_seconds=600))
    cancelled.cancel("not needed")
    board.close()
    upkeep.rescuing.bury_clusters_of_this_host()
    assert Job.objects.get(pk=cancelled.id).status == "CANCELLED"
    (again,) = broker.claim(ClaimRequest(2, holder=uuid4(), lease_seconds=60))
    assert str(again.job_id) == waiting.id


def test_attempt_of_a_dead_cluster_names_the_worker_that_ran_it(
    broker: Broker, tmp_path: Path
) -> None:
    """One cluster was killed and left a board. The other left only a lease that ended."""
    ran, elsewhere = (UUID(tasks.add.enqueue(1, 2).id) for _ in range(2))
    board = Board.create(tmp_path / "cluster.board", workers=1, slots=2)
    upkeep = upkeep_with()
    dead = cluster_row(upkeep._plan.host, 0.0)
    Cluster.objects.filter(pk=dead.pk).update(info={"board": str(board.path)})
    (delivery,) = broker.claim(ClaimRequest(1, holder=dead.pk, lease_seconds=600))
    broker.claim(ClaimRequest(1, holder=uuid4(), lease_seconds=60))
    Claimed.objects.filter(pk=elsewhere).update(leased_until_us=0)
    board.set_worker(0, PID, 4711)
    lease = lease_mark(delivery.lease_id)
    board.slot(0, 0).occupy(1, ran.bytes, 1, time.monotonic_ns(), 0, lease)
    board.close()
    upkeep.clean_up_at_start()
    died = f"the worker process 4711 on {upkeep._plan.host} died with its whole cluster"
    gone = "its cluster is gone: the lease ended without a heartbeat"
    found = dict(Attempt.objects.values_list("job_id", "message"))
    assert found == {ran: died, elsewhere: gone}


def test_attempt_of_a_dead_cluster_that_cannot_be_recorded_is_left_to_a_later_rescue(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job_id = UUID(tasks.add.enqueue(1, 2).id)
    board = Board.create(tmp_path / "cluster.board", workers=1, slots=2)
    upkeep = upkeep_with()
    dead = cluster_row(upkeep._plan.host, 0.0)
    Cluster.objects.filter(pk=dead.pk).update(info={"board": str(board.path)})
    (delivery,) = broker.claim(ClaimRequest(1, holder=dead.pk, lease_seconds=600))
    lease = lease_mark(delivery.lease_id)
    board.slot(0, 0).occupy(1, job_id.bytes, 1, time.monotonic_ns(), 0, lease)
    board.close()

    def refuse(*_: Any, **__: Any) -> None:
        raise DatabaseError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(rescue_module, "finish", refuse)
        assert upkeep.rescuing.bury_clusters_of_this_host() == 1
    assert not Attempt.objects.exists()
    assert upkeep.rescuing.rescue() == 1
    assert Attempt.objects.get().job_id == job_id


def cluster_row(host: str, silent_seconds: float, pk: UUID | None = None) -> Cluster:
    return Cluster.objects.create(
        id=pk or uuid4(), name="a", host=host, pid=7, started_at=timezone.now(), info={},
        heartbeat_us=DatabaseNow() - microseconds(silent_seconds),
    )  # fmt: skip


def test_silent_clusters_are_removed_except_the_one_that_does_the_upkeep() -> None:
    upkeep = upkeep_with()
    lease_seconds = settings_for().lease_seconds
    ours = cluster_row(upkeep._plan.host, lease_seconds + 600, upkeep._plan.cluster_id)
    alive = cluster_row("elsewhere", lease_seconds - 600)
    cluster_row("elsewhere", lease_seconds + 600)
    cluster_row(upkeep._plan.host, lease_seconds + 600)
    upkeep.rescuing.bury_silent_clusters()
    assert set(Cluster.objects.values_list("pk", flat=True)) == {ours.pk, alive.pk}


def test_silent_clusters_are_not_buried_by_a_clock_that_jumped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upkeep = upkeep_with()
    silent = cluster_row("elsewhere", 100_000)
    monkeypatch.setattr(upkeep.rescuing._clock, "can_be_trusted", lambda: False)
    assert upkeep.rescuing.bury_silent_clusters() == 0
    assert Cluster.objects.get() == silent


def _away(*_: object, **__: object) -> list[Any]:
    raise BrokerUnavailable("away")


def test_pruning_pauses_after_finding_nothing() -> None:
    upkeep = upkeep_with()
    left = []
    for round_number in range(14):
        if round_number in (0, 1, 3):
            finished(1, days_ago=10)
        upkeep.run()
        left.append(Job.objects.count())
    assert left == [0, 0, 0] + [1] * 5 + [0] * 6
    finished(1, days_ago=10)
    upkeep.run()
    assert Job.objects.count() == 1, "it found something, then nothing, and pauses again"


def test_upkeep_runs_on_one_cluster_at_a_time() -> None:
    finished(1, days_ago=10)
    first, second = upkeep_with(upkeep_seconds=60.0), upkeep_with(upkeep_seconds=60.0)
    first.run()
    finished(1, days_ago=10)
    second.run()
    assert Job.objects.count() == 1, "the first one has the lease"
    first.leave()
    second.run()
    assert not Job.objects.exists()
    first.run()
    assert LockKey.objects.get().owner == second._plan.cluster_id


def test_pruning_sends_a_heartbeat_with_every_batch(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without these beats a long clean-up would look like a hanging process."""
    monkeypatch.setattr(pruning_module, "BATCH", 10)
    finished(30, days_ago=10)
    beats: list[float] = []
    plan = Plan()
    upkeep = Upkeep(plan, plan.settings, broker, lambda: beats.append(time.monotonic()))
    upkeep.prune()
    assert len(beats) >= 3


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_hot_tables_with_dead_rows_are_vacuumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler_module, "VACUUM_SECONDS", 3600.0)
    tasks.add.enqueue_many([((1, 2), {})] * 200)
    broker_for(settings_for()).purge("default")
    upkeep = upkeep_with()
    upkeep.run()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT pg_stat_clear_snapshot()")
    with CaptureQueriesContext(connection) as captured:
        upkeep.vacuum_if_due()
        upkeep.vacuum_if_due()
    vacuumed = [one["sql"] for one in captured.captured_queries if "VACUUM" in one["sql"]]
    assert any("stoker_ready" in sql for sql in vacuumed)
    assert len(vacuumed) == len(set(vacuumed)), "each table once"


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_tables_of_other_schemas_are_not_vacuumed() -> None:
    """For example those of another tenant."""
    name = "only_in_another_schema"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA tenant CREATE TABLE {name} ()")
    try:
        assert engine_of("default").vacuum([name], {name: 0}, lambda: None) == {}
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA tenant CASCADE")


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_table_that_cannot_be_vacuumed_does_not_prevent_the_next() -> None:
    names, beats = ["no_such_table", "stoker_ready"], []
    with (
        CaptureQueriesContext(connection) as captured,
        pytest.raises(ProgrammingError, match="no_such_table"),
    ):
        engine_of("default").vacuum(names, {}, lambda: beats.append(time.monotonic()))
    assert "stoker_ready" in captured.captured_queries[-1]["sql"]
    assert len(beats) == 2, "each table may take as long as a call may"
