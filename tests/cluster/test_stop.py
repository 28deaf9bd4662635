"""Stopping: running jobs may finish, prefetched jobs are released at once, no attempt is lost."""

import os
import signal
from pathlib import Path

import pytest

from stoker.models import Attempt, Claimed, Cluster, Job, Ready

from tests.app import chaos
from tests.app.models import Ledger
from tests.cluster.clusters import WAIT_SECONDS, running_cluster, wait_for
from tests.cluster.ends import put_behind_long_jobs, value_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_prefetched_jobs_are_released_at_once_with_their_attempt(tmp_path: Path) -> None:
    with running_cluster(tmp_path, SHUTDOWN_SECONDS=2 * WAIT_SECONDS) as cluster:
        cluster.wait_for_crew()
        may_end = tmp_path / "may end"
        line = put_behind_long_jobs(cluster, may_end)
        cluster.signal(signal.SIGTERM)
        wait_for(lambda: Claimed.objects.count() == 2, cluster.tail)
        waiting = Ready.objects.count()
        assert waiting == len(line.short) - len(line.started) > 0
        assert set(Ready.objects.values_list("attempts", "crashes")) == {(0, 0)}
        may_end.touch()
        assert cluster.wait() == 0
    ended = [one.id for one in [*line.long, *line.started]]
    assert Job.objects.filter(pk__in=ended, status="SUCCESSFUL").count() == len(ended)
    assert Ready.objects.count() == waiting
    assert not Claimed.objects.exists()
    assert not Cluster.objects.exists()


def test_prefetched_jobs_that_were_cancelled_end_instead_of_being_released(tmp_path: Path) -> None:
    with running_cluster(tmp_path, UPKEEP_SECONDS=3600) as cluster:
        cluster.wait_for_crew()
        may_end = tmp_path / "may end"
        line = put_behind_long_jobs(cluster, may_end, cancelled="ordered twice")
        unstarted = Attempt.objects.filter(kind="cancelled", started_at=None)
        wait_for(unstarted.exists, cluster.tail)
        may_end.touch()
        cluster.stop()
    ended = Job.objects.filter(pk__in=unstarted.values("job_id"))
    assert set(ended.values_list("status", "reason")) == {("CANCELLED", "ordered twice")}
    assert {str(pk) for pk in ended.values_list("pk", flat=True)}.isdisjoint(
        one.id for one in line.started
    )


@pytest.mark.parametrize("how", ["deadline", "second signal"])
def test_jobs_still_running_at_the_end_are_interrupted_and_released(
    how: str, tmp_path: Path
) -> None:
    shutdown_seconds = 0.5 if how == "deadline" else 2 * WAIT_SECONDS
    with running_cluster(tmp_path, SHUTDOWN_SECONDS=shutdown_seconds) as cluster:
        result = chaos.run_until.enqueue(str(tmp_path / "never"))
        wait_for(Ledger.objects.exists, cluster.tail)
        cluster.signal(signal.SIGTERM)
        if how == "second signal":
            wait_for(lambda: "Stopping" in cluster.text(), cluster.tail)
            assert cluster.process.poll() is None
            cluster.signal(signal.SIGINT)
        assert cluster.wait() == 0
    row = Ready.objects.get()
    assert (str(row.job_id), row.attempts, row.crashes) == (result.id, 0, 0)
    assert not Attempt.objects.exists()


def test_new_pusher_of_a_stopping_cluster_stops(tmp_path: Path) -> None:
    with running_cluster(tmp_path, SHUTDOWN_SECONDS=2 * WAIT_SECONDS) as cluster:
        cluster.wait_for_crew()
        may_end = tmp_path / "may end"
        line = put_behind_long_jobs(cluster, may_end)
        cluster.signal(signal.SIGTERM)
        killed = cluster.kill("pusher")
        wait_for(
            lambda: any(one.pid != killed for one in cluster.crew().get("pusher", [])), cluster.tail
        )
        may_end.touch()
        assert cluster.wait() == 0
    ended = [one.id for one in [*line.long, *line.started]]
    assert Job.objects.filter(pk__in=ended, status="SUCCESSFUL").count() == len(ended)
    assert not Claimed.objects.exists()
    assert set(Ready.objects.values_list("attempts", flat=True)) <= {0}
    assert Ready.objects.count() + len(line.started) == len(line.short)


@pytest.mark.sqlite
def test_daemon_left_by_a_task_does_not_prevent_the_stop(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path) as cluster:
        daemon = value_of(chaos.leave_daemon.enqueue(2 * WAIT_SECONDS), cluster)
        assert cluster.stop() == 0
    os.kill(daemon, signal.SIGKILL)
