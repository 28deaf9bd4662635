"""A lease is extended while its job runs, and a worker that lost it does nothing more."""

from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import transaction

from stoker.brokers.adapters import broker_for
from stoker.brokers.dispatch import Dispatch
from stoker.conf import settings_for
from stoker.models import Attempt, Claimed, Job
from stoker.store.written import database_now_us

from tests.app import chaos, tasks
from tests.app.models import Ledger
from tests.cluster.clusters import WAIT_SECONDS, ProcessCluster, wait_for
from tests.cluster.ends import (
    end_of,
    give_back,
    let_it_prefetch,
    put_behind_long_jobs,
    take_over,
    value_of,
)
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
def broker() -> Dispatch:
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
    cluster: ProcessCluster, broker: Dispatch, tmp_path: Path
) -> None:
    """The job succeeded, but another cluster had taken it over before."""
    may_end = tmp_path / "may end"
    result = chaos.run_until.enqueue(str(may_end))
    delivery = take_over(result, broker, cluster)
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
    give_back(delivery, broker)
    end = end_of(result, cluster)
    assert (end.job.status, end.job.attempts) == (Job.Status.SUCCESSFUL, 2)


def test_job_whose_lease_is_lost_is_stopped(
    cluster: ProcessCluster, broker: Dispatch, tmp_path: Path
) -> None:
    path, may_end = tmp_path / "beats", tmp_path / "may end"
    result = chaos.beat.enqueue(str(path), WAIT_SECONDS, str(may_end))
    delivery = take_over(result, broker, cluster)
    (began,) = wait_for(lambda: spans(path).get(result.id), cluster.tail) or []
    wait_for(lambda: f"lease of job {result.id} is lost" in cluster.text(), cluster.tail)
    wait_for(lambda: not is_running(began.pid), cluster.tail)
    assert Job.objects.get(pk=result.id).status is None
    assert len(spans(path)[result.id]) == 1
    may_end.touch()
    give_back(delivery, broker)
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
