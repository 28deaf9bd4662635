"""The next cluster frees the jobs of a dead one: at once on the same host, else when their leases
end. Only jobs that it was running count as attempts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery
from stoker.cluster.board import Board, Occupied, board_path
from stoker.cluster.plan import Plan
from stoker.conf import settings_for
from stoker.models import Attempt, Claimed, Cluster, DeadLetter, Deferred, Job, Ready
from stoker.store.written import DatabaseNow

from tests.app import chaos, tasks
from tests.app.models import Ledger
from tests.cluster.clusters import WAIT_SECONDS, jobs_done, running_cluster, wait_for
from tests.cluster.ends import end_of
from tests.story.ledgers import unfinished
from tests.unit.cluster.parts import occupy

JOBS = 520
"""More than one batch."""
FINISHED = 20

pytestmark = pytest.mark.django_db(transaction=True)


def claim_all(holder: UUID, lease_seconds: float = 3600.0) -> list[Delivery]:
    return broker_for(settings_for()).claim(
        ClaimRequest(1000, holder=holder, lease_seconds=lease_seconds)
    )


@contextmanager
def dead_cluster(running: list[Delivery], cluster_id: UUID) -> Iterator[Path]:
    """Make the row and the board of a cluster that was killed while it ran these jobs."""
    board = Board.create(board_path(cluster_id), 1, max(1, len(running)))
    for slot, one in enumerate(running):
        occupy(board, 0, slot, Occupied(slot + 1, one.job_id, one.attempt, 1, 0))
    board.close()
    Cluster.objects.create(
        id=cluster_id,
        name="stoker",
        host=Plan().host,
        pid=1,
        heartbeat_us=DatabaseNow(),
        started_at=timezone.now(),
        info={"board": str(board.path)},
    )
    yield board.path
    board.path.unlink(missing_ok=True)


def test_leases_of_a_dead_cluster_on_this_host_are_freed_at_once(
    tmp_path: Path,
) -> None:
    tasks.add.using(max_attempts=1).enqueue_many([((1, 2), {})] * JOBS)
    holder = uuid4()
    claimed = claim_all(holder)
    running = claimed[:2]
    broker_for(settings_for()).note_handed_out([one.lease for one in running])
    with dead_cluster(running, holder) as path:
        with running_cluster(tmp_path, LEASE_SECONDS=3600) as cluster:
            wait_for(lambda: not unfinished(), lambda: f"{unfinished()}\n{cluster.tail()}")
        assert not path.exists()
    assert Job.objects.filter(status="SUCCESSFUL", attempts=1).count() == JOBS - 2
    crashed = Attempt.objects.filter(kind="crashed", number=1)
    assert {one.job_id for one in crashed} == {one.job_id for one in running}
    assert {one.job_id for one in DeadLetter.objects.all()} == {one.job_id for one in running}
    assert not Cluster.objects.exists()


@pytest.mark.chaos
@pytest.mark.parametrize("concurrency", [1, 3])
def test_finished_unrecorded_job_of_killed_cluster_counts_its_attempt(
    concurrency: int, tmp_path: Path
) -> None:
    """The task ended but was not recorded, so it must not run again as if it had never begun."""
    with running_cluster(tmp_path, WORKERS=1, CONCURRENCY=concurrency) as first:
        first.wait_for_crew(1)
        first.pause_at_rest("monitor")
        calls = [((), {})] * FINISHED
        results = tasks.write_ledger.using(max_attempts=1).enqueue_many(calls)
        wait_for(lambda: jobs_done(first) == FINISHED, first.tail)
        first.kill("sentinel")
        first.wait()
    with running_cluster(tmp_path, WORKERS=1, LEASE_SECONDS=3600) as second:
        ends = [end_of(result, second) for result in results]
    assert {end.job.attempts for end in ends} == {1}
    assert [end.dead_letter.reason for end in ends if end.dead_letter] == ["crash"] * FINISHED
    assert Ledger.objects.count() == FINISHED


@pytest.mark.chaos
def test_job_of_replaced_worker_counts_its_attempt_when_cluster_is_killed(tmp_path: Path) -> None:
    """Its worker died and was replaced, and the crash was not recorded."""
    may_end = tmp_path / "may end"
    with running_cluster(tmp_path, WORKERS=1) as first:
        first.wait_for_crew(1)
        first.pause_at_rest("monitor")
        result = chaos.run_until.using(max_attempts=1).enqueue(str(may_end))
        wait_for(Ledger.objects.exists, first.tail)
        dead = first.kill("worker")
        wait_for(lambda: {one.pid for one in first.crew().get("worker", [])} - {dead}, first.tail)
        first.kill("sentinel")
        first.wait()
    may_end.touch()
    with running_cluster(tmp_path, WORKERS=1, LEASE_SECONDS=3600) as second:
        end = end_of(result, second)
    assert Ledger.objects.count() == 1
    assert end.dead_letter is not None
    assert (end.dead_letter.reason, end.dead_letter.attempts) == ("crash", 1)


def test_ended_leases_of_another_host_are_rescued_and_counted(tmp_path: Path) -> None:
    """Which jobs a worker on another host had started is unknown, so all that it got count."""
    results = tasks.add.using(max_attempts=2).enqueue_many([((1, 2), {})] * 5)
    last = tasks.add.using(max_attempts=1).enqueue(1, 2)
    claimed = claim_all(uuid4(), lease_seconds=0.2)
    broker_for(settings_for()).note_handed_out([one.lease for one in claimed])
    with running_cluster(tmp_path) as cluster:
        for result in results:
            end = end_of(result, cluster)
            assert (end.job.status, end.job.attempts) == (Job.Status.SUCCESSFUL, 2)
            assert [one.kind for one in end.attempts] == ["crashed"]
        end = end_of(last, cluster)
    assert end.dead_letter is not None
    assert end.dead_letter.reason == "crash"


def test_drain_rescues_the_job_of_a_lost_cluster_that_left_its_row(tmp_path: Path) -> None:
    """Otherwise no drain would ever rescue it: each ends before other clusters have had time."""
    lost = tasks.add.using(max_attempts=1).enqueue(1, 2)
    row = Cluster.objects.create(
        id=uuid4(), name="stoker", host="elsewhere", pid=1, heartbeat_us=0,
        started_at=timezone.now(),
    )  # fmt: skip
    (delivery,) = claim_all(row.pk, lease_seconds=0.2)
    broker_for(settings_for()).note_handed_out([delivery.lease])
    options = {"LEASE_SECONDS": 2, "UPKEEP_SECONDS": 3600}
    with running_cluster(tmp_path, "--drain", WORKERS=1, **options) as cluster:
        assert cluster.wait() == 0
    assert DeadLetter.objects.get().job_id == UUID(lost.id)
    assert not Cluster.objects.exists()


def test_valid_leases_are_not_rescued(tmp_path: Path) -> None:
    """Unlike a lease of the same holder that has ended."""
    holder = uuid4()
    tasks.add.enqueue(1, 2)
    (valid,) = claim_all(holder)
    other = tasks.add.enqueue(1, 2)
    claim_all(holder, lease_seconds=0.2)
    with running_cluster(tmp_path) as cluster:
        assert end_of(other, cluster).job.status == Job.Status.SUCCESSFUL
    assert Claimed.objects.get().pk == valid.job_id
    assert not Attempt.objects.filter(job_id=valid.job_id).exists()


def test_two_clusters_free_a_dead_cluster_once(tmp_path: Path) -> None:
    tasks.add.enqueue_many([((1, 2), {})] * JOBS)
    holder = uuid4()
    running = claim_all(holder)[:2]
    with (
        dead_cluster(running, holder),
        running_cluster(tmp_path) as first,
        running_cluster(tmp_path) as second,
    ):
        wait_for(lambda: not unfinished(), lambda: f"{first.tail()}\n{second.tail()}")
        assert first.stop() == 0
        assert second.stop() == 0
        assert first.complaints() == second.complaints() == []
    assert Job.objects.filter(status="SUCCESSFUL", attempts=1).count() == JOBS - 2
    assert Job.objects.filter(status="SUCCESSFUL", attempts=2).count() == 2
    assert Attempt.objects.count() == 2


def test_deferred_jobs_wait_in_the_store_and_start_on_time(tmp_path: Path) -> None:
    """No cluster holds them meanwhile; they would be lost with it."""
    began = time.time()
    results = tasks.write_ledger.using(run_after=2.0).enqueue_many([((), {})] * 20)
    with running_cluster(tmp_path, POLL_SECONDS=5 * WAIT_SECONDS) as cluster:
        cluster.wait_for_crew()
        while time.time() < began + 1.8:
            places = [table.objects.count() for table in (Deferred, Claimed, Ready)]
            assert places == [20, 0, 0] or time.time() >= began + 2.0
        ends = [end_of(result, cluster) for result in results]
    started = [end.job.started_at.timestamp() for end in ends if end.job.started_at]
    assert min(started) >= began + 2.0
