"""A lease is extended while its job runs, and a worker that lost it does nothing more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import transaction

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import Broker, Delivery, Return
from stoker.conf import settings_for
from stoker.models import Attempt, Claimed, Cluster, Job
from stoker.store.written import database_now_us

from tests.app import chaos, tasks
from tests.app.models import Ledger
from tests.cluster.clusters import WAIT_SECONDS, ProcessCluster, wait_for
from tests.cluster.ends import end_of, let_it_prefetch, put_behind_long_jobs, value_of
from tests.servers.process import is_running
from tests.story.beats import spans

LEASE_SECONDS = 8.0
"""At least half of it is left when it is extended, and a tenth when its job is stopped because it
was not. The machine may be busy for the time in between."""

pytestmark = pytest.mark.usefixtures("db")


@pytest.fixture(scope="module")
def cluster(share_cluster: Callable[..., ProcessCluster]) -> ProcessCluster:
    return share_cluster(LEASE_SECONDS=LEASE_SECONDS, UPKEEP_SECONDS=0.3, HEARTBEAT_SECONDS=0.1)


@pytest.fixture
def broker() -> Broker:
    return broker_for(settings_for())


def test_jobs_longer_than_the_lease_and_jobs_behind_them_run_once(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    may_end = tmp_path / "may end"
    line = put_behind_long_jobs(cluster, may_end)
    first_end_us = max(Claimed.objects.values_list("leased_until_us", flat=True))
    wait_for(lambda: database_now_us("default") > first_end_us)
    may_end.touch()
    for result in [*line.long, *line.short]:
        end = end_of(result, cluster)
        assert (end.job.status, end.job.attempts) == (Job.Status.SUCCESSFUL, 1)
        assert len(spans(line.beats)[result.id]) == 1


def test_idle_worker_takes_jobs_prefetched_behind_a_long_one(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    """The worker with the long job has prefetched short ones."""
    let_it_prefetch(cluster)
    may_end = tmp_path / "may end"
    long = chaos.run_until.enqueue(str(may_end))
    results = tasks.write_ledger.enqueue_many([((0.01,), {})] * 40)
    for result in results:
        assert end_of(result, cluster).job.attempts == 1
    may_end.touch()
    assert end_of(long, cluster).job.attempts == 1
    assert Ledger.objects.filter(job_id__in=[one.id for one in results]).count() == 40


def test_stale_outcome_records_nothing(
    cluster: ProcessCluster, broker: Broker, tmp_path: Path
) -> None:
    """The job succeeded, but another cluster had taken it over before."""
    may_end = tmp_path / "may end"
    result = chaos.run_until.enqueue(str(may_end))
    delivery = _taken_over(result, broker, cluster)
    may_end.touch()
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


def test_job_whose_lease_is_lost_is_stopped(
    cluster: ProcessCluster, broker: Broker, tmp_path: Path
) -> None:
    path, may_end = tmp_path / "beats", tmp_path / "may end"
    result = chaos.beat.enqueue(str(path), WAIT_SECONDS, str(may_end))
    delivery = _taken_over(result, broker, cluster)
    (began,) = wait_for(lambda: spans(path).get(result.id), cluster.tail) or []
    wait_for(lambda: f"lease of job {result.id} is lost" in cluster.text(), cluster.tail)
    wait_for(lambda: not is_running(began.pid), cluster.tail)
    assert Job.objects.get(pk=result.id).status is None
    assert len(spans(path)[result.id]) == 1
    may_end.touch()
    _give_back(delivery, broker)
    assert value_of(result, cluster) == 2


@pytest.mark.postgres
def test_job_stopped_because_its_lease_was_locked_counts_its_attempt(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    """No other cluster has it: this one finds the lease in the store, but not in its memory."""
    path, may_end = tmp_path / "beats", tmp_path / "may end"
    beat = chaos.beat.using(max_attempts=1)
    result = beat.enqueue(str(path), WAIT_SECONDS, str(may_end))
    (began,) = wait_for(lambda: spans(path).get(result.id), cluster.tail) or []
    with transaction.atomic():
        Claimed.objects.select_for_update().get(pk=result.id)
        wait_for(lambda: not is_running(began.pid), cluster.tail)
    may_end.touch()
    end = end_of(result, cluster)
    assert len(spans(path)[result.id]) == 1
    assert end.dead_letter is not None
    assert (end.dead_letter.reason, end.dead_letter.attempts) == ("crash", 1)


def test_prefetched_job_whose_lease_is_lost_does_not_start(
    cluster: ProcessCluster, broker: Broker, tmp_path: Path
) -> None:
    """It waits in a worker behind a long job when its lease is lost."""
    may_end = tmp_path / "may end"
    while True:
        may_end.unlink(missing_ok=True)
        line = put_behind_long_jobs(cluster, may_end)
        pusher = cluster.pause_at_rest("pusher")
        unstarted = Claimed.objects.exclude(pk__in=[one.id for one in [*line.long, *line.started]])
        held = list(unstarted.values_list("pk", flat=True))
        waiting = [one for one in line.short if UUID(one.id) in held]
        if waiting:
            break
        pusher.resume()  # it has released them already
        may_end.touch()
        for result in [*line.long, *line.short]:
            end_of(result, cluster)
    delivery = _taken_over(waiting[-1], broker, cluster)
    pusher.resume()
    told = Cluster.objects.filter(heartbeat_us__gt=database_now_us("default"))
    wait_for(lambda: [one.info["leases"] for one in told.all()] == [2], cluster.tail)
    may_end.touch()
    for result in line.long:
        assert end_of(result, cluster).job.attempts == 1
    for result in line.short:
        if result is not waiting[-1]:
            assert end_of(result, cluster).job.attempts == 1
    assert waiting[-1].id not in spans(line.beats)
    _give_back(delivery, broker)
    assert end_of(waiting[-1], cluster).job.attempts == 2


def _taken_over(result: Any, broker: Broker, cluster: ProcessCluster) -> Delivery:
    """Take a job from the cluster, as another cluster would after the end of its lease."""
    held = Claimed.objects.filter(pk=result.id)
    wait_for(held.exists, cluster.tail)
    lease_id = held.get().lease_id
    # In one statement, or this cluster's own upkeep may rescue it first.
    new_lease_id = lease_id ^ 1
    assert held.filter(lease_id=lease_id).update(
        lease_id=new_lease_id, holder=uuid4(), leased_until_us=2**62
    )
    row = held.get()
    return Delivery(UUID(result.id), new_lease_id, b"", row.queue, 0, row.attempts)


def _give_back(delivery: Delivery, broker: Broker) -> None:
    assert not broker.settle(again=[Return(delivery.lease, attempts=delivery.attempt)])
