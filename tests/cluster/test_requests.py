"""What clusters are asked to do through the store: to take no more jobs, to take them again, to
stop."""

import json
import uuid
from pathlib import Path

import pytest

from stoker.exceptions import ClusterNotFound
from stoker.models import Claimed, Cluster, Job, Ready
from stoker.operations import clusters

from tests.app import chaos, tasks
from tests.app.models import Ledger
from tests.cluster.clusters import (
    WAIT_SECONDS,
    ProcessCluster,
    run_command,
    running_cluster,
    wait_for,
)
from tests.cluster.ends import end_of, put_behind_long_jobs, value_of

pytestmark = pytest.mark.django_db(transaction=True)


def id_of(cluster: ProcessCluster) -> str:
    """Once it has given its first sign of life."""
    wait_for(lambda: len(clusters.find()) == 1, cluster.tail)
    return clusters.find()[0].id


def wait_for_state(state: str, cluster: ProcessCluster) -> None:
    wait_for(lambda: [one.state for one in clusters.find()] == [state], cluster.tail)


def test_a_quiet_cluster_finishes_what_runs_and_gives_back_the_rest(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster_id = id_of(cluster)
        may_end = tmp_path / "may end"
        line = put_behind_long_jobs(cluster, may_end)
        assert clusters.quiet(cluster_id)
        wait_for(lambda: Claimed.objects.count() == 2, cluster.tail)
        wait_for_state("quiet", cluster)
        waiting = len(line.short) - len(line.started)
        assert Ready.objects.count() == waiting > 0
        assert set(Ready.objects.values_list("attempts", flat=True)) == {0}
        may_end.touch()
        for result in line.long:
            end_of(result, cluster)
        assert (Ready.objects.count(), Claimed.objects.count()) == (waiting, 0)
        assert clusters.resume(cluster_id)
        wait_for(lambda: len(line.started) == len(line.short), cluster.tail)
        wait_for_state("running", cluster)


def test_a_new_pusher_of_a_quiet_cluster_is_quiet_too(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster.wait_for_crew()
        cluster_id = id_of(cluster)
        clusters.quiet(cluster_id)
        wait_for_state("quiet", cluster)
        killed = cluster.kill("pusher")
        waiting = tasks.add.enqueue(1, 2)
        wait_for(lambda: cluster.text().count("take no more jobs") == 2, cluster.tail)
        assert all(one.pid != killed for one in cluster.crew()["pusher"])
        wait_for_state("quiet", cluster)
        assert Ready.objects.filter(pk=waiting.id).exists()
        clusters.resume(cluster_id)
        assert value_of(waiting, cluster) == 3


def test_a_cluster_that_was_buried_alive_remembers_what_it_was_asked(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster_id = id_of(cluster)
        clusters.quiet(cluster_id)
        wait_for_state("quiet", cluster)
        Cluster.objects.all().delete()
        wait_for_state("quiet", cluster)
        assert clusters.get(cluster_id).request == "quiet"


def test_a_stop_lets_running_jobs_finish_and_a_new_pusher_does_not_hurry_it(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path, SHUTDOWN_SECONDS=2 * WAIT_SECONDS) as cluster:
        cluster.wait_for_crew()
        cluster_id = id_of(cluster)
        may_end = tmp_path / "may end"
        long = chaos.run_until.enqueue(str(may_end))
        wait_for(Ledger.objects.exists, cluster.tail)
        assert clusters.stop(cluster_id)
        wait_for_state("stopping", cluster)
        assert not clusters.resume(cluster_id)
        assert not clusters.quiet(cluster_id)
        cluster.kill("pusher")
        wait_for(lambda: cluster.text().count("take no more jobs") == 2, cluster.tail)
        may_end.touch()
        assert cluster.wait() == 0
    assert Job.objects.get(pk=long.id).status == "SUCCESSFUL"
    assert "Still running" not in cluster.text()
    assert not Cluster.objects.exists()


def test_clusters_by_command(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster_id = id_of(cluster)
        listed = run_command("stoker", "clusters", "list", "--json")
        assert [one["id"] for one in json.loads(listed.stdout)["clusters"]] == [cluster_id]
        assert run_command("stoker", "clusters", "quiet", "--all").returncode == 0
        wait_for_state("quiet", cluster)
        health = run_command("stoker", "health")
        assert (health.returncode, "asked to take no more" in health.stdout) == (0, True)
        assert "quiet" in run_command("stoker", "clusters", "list").stdout
        assert run_command("stoker", "clusters", "resume", cluster_id).returncode == 0
        wait_for_state("running", cluster)
        gone = run_command("stoker", "clusters", "stop", str(uuid.uuid4()), cluster_id)
        assert (gone.returncode, "There is no cluster" in gone.stderr) == (1, True)
        assert cluster.wait() == 0


def test_nobody_is_asked_by_mistake() -> None:
    with pytest.raises(ClusterNotFound):
        clusters.stop(uuid.uuid4())
    with pytest.raises(ClusterNotFound):
        clusters.stop("not an id")
    assert run_command("stoker", "clusters", "stop").returncode == 2
    assert run_command("stoker", "clusters", "list").stdout == "none\n"
