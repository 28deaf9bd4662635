"""A lease is kept as long as its job needs it, and who has lost it does nothing more."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from stoker.brokers import broker_for
from stoker.brokers.base import Broker, Delivery, Return
from stoker.conf import settings_for
from stoker.models import Attempt, Claimed, Job

from tests.app import chaos, tasks
from tests.app.models import Ledger
from tests.cluster.clusters import ProcessCluster, wait_for
from tests.cluster.ends import end_of, let_it_prefetch, value_of

LEASE_SECONDS = 2.0

pytestmark = pytest.mark.usefixtures("db")


@pytest.fixture(scope="module")
def cluster(share_cluster: Callable[..., ProcessCluster]) -> ProcessCluster:
    return share_cluster(LEASE_SECONDS=LEASE_SECONDS, UPKEEP_SECONDS=0.3)


@pytest.fixture
def broker() -> Broker:
    return broker_for(settings_for())


def test_jobs_longer_than_the_lease_and_those_prefetched_behind_them_run_once(
    cluster: ProcessCluster,
) -> None:
    let_it_prefetch(cluster)
    long = tasks.write_ledger.enqueue_many([((2.5 * LEASE_SECONDS,), {})] * 2)
    wait_for(lambda: Claimed.objects.count() == 2, cluster.tail)
    short = tasks.write_ledger.enqueue_many([((), {})] * 8)
    wait_for(lambda: Claimed.objects.count() > 2, cluster.tail)
    for result in [*long, *short]:
        end = end_of(result, cluster)
        assert (end.job.status, end.job.attempts) == (Job.Status.SUCCESSFUL, 1)
        assert Ledger.objects.filter(job_id=result.id).count() == 1


def test_what_waits_behind_a_long_job_is_taken_over_by_an_idle_worker(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    """Whoever got the long one got short ones with it."""
    let_it_prefetch(cluster)
    may_end = tmp_path / "may end"
    long = chaos.run_until.enqueue(str(may_end))
    results = tasks.write_ledger.enqueue_many([((0.01,), {})] * 40)
    for result in results:
        assert end_of(result, cluster).job.attempts == 1
    may_end.touch()
    assert end_of(long, cluster).job.attempts == 1
    assert Ledger.objects.filter(job_id__in=[one.id for one in results]).count() == 40


def test_a_stale_outcome_records_nothing(cluster: ProcessCluster, broker: Broker) -> None:
    """The job ended well, but in the meantime it had been given to another cluster."""
    result = tasks.write_ledger.enqueue(0.4)
    delivery = _taken_over(result, broker, cluster)
    ledger = Ledger.objects.filter(job_id=result.id).exclude(finished_ns=None)
    wait_for(lambda: ledger.exists() or f"lease of job {result.id}" in cluster.text(), cluster.tail)
    wait_for(
        lambda: (
            f"job {result.id} came after" in cluster.text()
            or f"lease of job {result.id} is lost" in cluster.text()
        ),
        cluster.tail,
    )
    assert Job.objects.get(pk=result.id).status is None
    assert not Attempt.objects.filter(job_id=result.id).exists()
    assert Claimed.objects.get(pk=result.id).lease_id == delivery.lease_id
    _give_back(delivery, broker)
    end = end_of(result, cluster)
    assert (end.job.status, end.job.attempts) == (Job.Status.SUCCESSFUL, 2)


def test_a_job_whose_lease_is_lost_is_stopped(
    cluster: ProcessCluster, broker: Broker, tmp_path: Path
) -> None:
    path = tmp_path / "beats"
    result = chaos.beat.enqueue(str(path), 6.0)
    delivery = _taken_over(result, broker, cluster)
    wait_for(lambda: f"lease of job {result.id} is lost" in cluster.text(), cluster.tail)
    wait_for(lambda: time.monotonic_ns() - _last_beat_ns(path) > 0.3e9, cluster.tail, 5)
    first = _last_beat_ns(path)
    assert Job.objects.get(pk=result.id).status is None
    _give_back(delivery, broker)
    assert value_of(result, cluster) == 2
    second = min(int(line.split()[3]) for line in path.read_text().splitlines() if " 2 " in line)
    assert first < second


def test_a_lost_job_that_was_not_started_is_not_started(
    cluster: ProcessCluster, broker: Broker
) -> None:
    """It waits inside a worker, behind a long one, when its lease is lost."""
    let_it_prefetch(cluster)
    long = tasks.write_ledger.enqueue_many([((1.5 * LEASE_SECONDS,), {})] * 2)
    wait_for(lambda: Claimed.objects.count() == 2, cluster.tail)
    waiting = tasks.write_ledger.enqueue()
    delivery = _taken_over(waiting, broker, cluster)
    for result in long:
        assert end_of(result, cluster).job.attempts == 1
    assert not Ledger.objects.filter(job_id=waiting.id).exists()
    _give_back(delivery, broker)
    assert end_of(waiting, cluster).job.attempts == 2


def _taken_over(result: Any, broker: Broker, cluster: ProcessCluster) -> Delivery:
    """Claim a job that the cluster holds, as another one would if its lease were over."""
    held = Claimed.objects.filter(pk=result.id)
    wait_for(held.exists, cluster.tail)
    lease_id = held.get().lease_id
    # In one statement, or this cluster's own upkeep is quicker.
    new_lease_id = lease_id ^ 1
    assert held.filter(lease_id=lease_id).update(
        lease_id=new_lease_id, holder=uuid4(), leased_until_us=2**62
    )
    row = held.get()
    return Delivery(UUID(result.id), new_lease_id, b"", row.queue, 0, row.attempts)


def _give_back(delivery: Delivery, broker: Broker) -> None:
    assert not broker.release([Return(delivery.lease, attempts=delivery.attempt)])


def _last_beat_ns(path: Path) -> int:
    lines = path.read_text().splitlines() if path.exists() else []
    return int(lines[-1].split()[4]) if lines else 0
