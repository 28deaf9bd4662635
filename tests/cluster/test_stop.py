"""Stopping: what runs may end, what waits goes back at once, and nobody loses an attempt by it."""

import signal
import time
from pathlib import Path

import pytest

from stoker.models import Attempt, Claimed, Cluster, Job, Ready

from tests.app import chaos, tasks
from tests.app.models import Ledger
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_for
from tests.cluster.ends import end_of

pytestmark = pytest.mark.django_db(transaction=True)


def let_it_prefetch(cluster: ProcessCluster) -> None:
    """After long jobs none is sent ahead to a busy worker; after short ones many are."""
    for result in tasks.add.enqueue_many([((1, 2), {})] * 200):
        end_of(result, cluster)


def test_prefetched_jobs_are_released_at_once_with_their_attempt(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster.wait_for_crew()
        let_it_prefetch(cluster)
        long = tasks.write_ledger.enqueue_many([((3.0,), {})] * 2)
        wait_for(lambda: Ledger.objects.count() == 2, cluster.tail)
        waiting = tasks.write_ledger.enqueue_many([((), {})] * 30)
        wait_for(lambda: Claimed.objects.count() > 10, cluster.tail)
        began = time.monotonic()
        cluster.signal(signal.SIGTERM)
        wait_for(lambda: Ready.objects.count() == 30, cluster.tail, 2.5)
        assert Claimed.objects.count() == 2
        assert set(Ready.objects.values_list("attempts", "crashes")) == {(0, 0)}
        assert cluster.wait() == 0
        assert time.monotonic() - began < 8
    assert Job.objects.filter(pk__in=[one.id for one in long], status="SUCCESSFUL").count() == 2
    assert Ledger.objects.count() == 2
    assert Ready.objects.count() == len(waiting)
    assert not Claimed.objects.exists()
    assert not Cluster.objects.exists()


@pytest.mark.parametrize("how", ["deadline", "second signal"])
def test_what_still_runs_in_the_end_is_interrupted_and_given_back(how: str, tmp_path: Path) -> None:
    shutdown_seconds = 0.5 if how == "deadline" else 60
    with running_cluster(tmp_path, SHUTDOWN_SECONDS=shutdown_seconds) as cluster:
        result = tasks.write_ledger.enqueue(60.0)
        wait_for(Ledger.objects.exists, cluster.tail)
        began = time.monotonic()
        cluster.signal(signal.SIGTERM)
        if how == "second signal":
            time.sleep(0.5)
            assert cluster.process.poll() is None
            cluster.signal(signal.SIGINT)
        assert cluster.wait() == 0
        assert time.monotonic() - began < 8
    row = Ready.objects.get()
    assert (str(row.job_id), row.attempts, row.crashes) == (result.id, 0, 0)
    assert not Attempt.objects.exists()


def test_a_new_pusher_of_a_stopping_cluster_stops_too(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster.wait_for_crew()
        let_it_prefetch(cluster)
        long = tasks.write_ledger.enqueue_many([((2.0,), {})] * 2)
        wait_for(lambda: Ledger.objects.count() == 2, cluster.tail)
        tasks.write_ledger.enqueue_many([((), {})] * 30)
        wait_for(lambda: Claimed.objects.count() > 10, cluster.tail)
        cluster.signal(signal.SIGTERM)
        cluster.kill("pusher")
        assert cluster.wait() == 0
    assert Job.objects.filter(pk__in=[one.id for one in long], status="SUCCESSFUL").count() == 2
    assert not Claimed.objects.exists()
    assert set(Ready.objects.values_list("attempts", flat=True)) <= {0}
    assert Ready.objects.count() + Ledger.objects.count() == 32


@pytest.mark.sqlite
def test_what_a_task_has_left_running_does_not_keep_the_cluster_from_ending(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path) as cluster:
        result = chaos.leave_daemon.enqueue(20.0)
        assert end_of(result, cluster).job.status == Job.Status.SUCCESSFUL
        began = time.monotonic()
        assert cluster.stop() == 0
        assert time.monotonic() - began < 5
