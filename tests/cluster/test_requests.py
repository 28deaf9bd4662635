"""Requests to clusters through the store: quiet, resume, stop."""

import json
import re
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
    """Wait for the first heartbeat and return the cluster's id."""
    wait_for(lambda: len(clusters.find()) == 1, cluster.tail)
    return clusters.find()[0].id


def wait_for_state(state: str, cluster: ProcessCluster) -> None:
    wait_for(lambda: [one.state for one in clusters.find()] == [state], cluster.tail)


def test_quiet_cluster_finishes_running_jobs_and_releases_the_rest(tmp_path: Path) -> None:
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


def test_new_pusher_of_a_quiet_cluster_is_quiet(tmp_path: Path) -> None:
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


def test_cluster_whose_row_was_deleted_keeps_its_request(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster_id = id_of(cluster)
        clusters.quiet(cluster_id)
        wait_for_state("quiet", cluster)
        Cluster.objects.all().delete()
        wait_for_state("quiet", cluster)
        assert clusters.get(cluster_id).request == "quiet"


def test_new_pusher_of_a_stopping_cluster_does_not_hurry_it(
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


def workers_of(cluster: ProcessCluster) -> set[str]:
    """Return the workers of the last heartbeat: number and incarnation."""
    return {worker.name for one in clusters.find() for worker in one.workers}


def leaving_by_heartbeat(cluster: ProcessCluster) -> set[int]:
    """Return the numbers of the workers that leave, as the cluster itself says."""
    rows = Cluster.objects.all()
    return {one["number"] for row in rows for one in row.info["workers"] if one["leaving"]}


def test_resized_cluster_starts_workers_and_lets_the_last_ones_finish(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster_id = id_of(cluster)
        wait_for(lambda: workers_of(cluster) == {"0.1", "1.1"}, cluster.tail)
        assert clusters.resize(cluster_id, 4) is None
        wait_for(lambda: workers_of(cluster) == {"0.1", "1.1", "2.1", "3.1"}, cluster.tail)
        may_end = tmp_path / "may end"
        long = [chaos.run_until.enqueue(str(may_end)) for _ in range(4)]
        wait_for(lambda: Ledger.objects.count() == 4, cluster.tail)
        assert clusters.resize(cluster_id, 1) == 4
        waiting = [tasks.add.enqueue(number, 0) for number in range(3)]
        wait_for(lambda: "has 1 workers" in cluster.text(), cluster.tail)
        assert len(cluster.crew()["worker"]) == 4
        wait_for(lambda: leaving_by_heartbeat(cluster) == {1, 2, 3}, cluster.tail)
        assert "4 workers (3 leaving)" in run_command("stoker", "clusters", "list").stdout
        with pytest.raises(ValueError, match="Worker 3 is already leaving"):
            clusters.recycle(cluster_id, 3)
        may_end.touch()
        wait_for(lambda: workers_of(cluster) == {"0.1"}, cluster.tail)
        assert [end_of(result, cluster).job.attempts for result in long] == [1, 1, 1, 1]
        assert [value_of(result, cluster) for result in waiting] == [0, 1, 2]
        assert clusters.resize(cluster_id, None) == 1
        wait_for(lambda: workers_of(cluster) == {"0.1", "1.2"}, cluster.tail)
    assert not re.search(r"Worker \d died", cluster.text())


def test_new_pusher_and_dead_workers_keep_the_requested_number(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster_id = id_of(cluster)
        clusters.resize(cluster_id, 1)
        wait_for(lambda: workers_of(cluster) == {"0.1"}, cluster.tail)
        cluster.kill("pusher")
        cluster.kill("worker")
        wait_for(lambda: workers_of(cluster) == {"0.2"}, cluster.tail)
        assert value_of(tasks.add.enqueue(1, 2), cluster) == 3
        assert len(cluster.crew()["worker"]) == 1


def test_recycled_worker_finishes_its_job_before_a_new_process_takes_over(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster_id = id_of(cluster)
        wait_for(lambda: workers_of(cluster) == {"0.1", "1.1"}, cluster.tail)
        assert clusters.recycle(cluster_id, 1) == 1
        wait_for(lambda: workers_of(cluster) == {"0.1", "1.2"}, cluster.tail)
        cluster.kill("pusher")  # the new one repeats the request for a process that is gone
        may_end = tmp_path / "may end"
        long = [chaos.run_until.enqueue(str(may_end)) for _ in range(2)]
        wait_for(lambda: Ledger.objects.count() == 2, cluster.tail)
        wait_for(lambda: workers_of(cluster) == {"0.1", "1.2"}, cluster.tail)
        assert clusters.recycle(cluster_id) == 2
        row = Cluster.objects.get()
        assert set(row.recycle.split()) == {"0.1", "1.2"}, "the request before is forgotten"
        wait_for(lambda: cluster.text().count("an operator asked for it") == 3, cluster.tail)
        cluster.kill("pusher")  # the new one repeats the requests, which changes nothing
        wait_for(lambda: cluster.text().count("an operator asked for it") == 5, cluster.tail)
        assert all(worker.is_recycled for one in clusters.find() for worker in one.workers)
        may_end.touch()
        assert [end_of(result, cluster).job.attempts for result in long] == [1, 1]
        wait_for(lambda: workers_of(cluster) == {"0.2", "1.3"}, cluster.tail)
    assert not re.search(r"Worker \d died", cluster.text())


def test_cluster_is_not_resized_out_of_its_bounds(tmp_path: Path) -> None:
    with running_cluster(tmp_path, MAX_WORKERS=3) as cluster:
        cluster_id = id_of(cluster)
        wait_for(lambda: clusters.find()[0].most_workers == 3, cluster.tail)
        with pytest.raises(ValueError, match="can have 1 to 3 workers, not 4"):
            clusters.resize(cluster_id, 4)
        wait_for(lambda: workers_of(cluster) == {"0.1", "1.1"}, cluster.tail)
        with pytest.raises(
            ValueError, match=r"has no worker 7\. Its last heartbeat, .* ago, names 0"
        ):
            clusters.recycle(cluster_id, 7)
        many = run_command("stoker", "clusters", "resize", "--workers", "4", "--all")
        assert (many.returncode, "can have 1 to 3 workers" in many.stdout) == (1, True)
        three = run_command("stoker", "clusters", "resize", "--workers", "3", "--all")
        assert three.returncode == 0, three.stderr
        wait_for(lambda: len(workers_of(cluster)) == 3, cluster.tail)
        recycled = run_command("stoker", "clusters", "recycle", "--worker", "2", cluster_id)
        assert recycled.returncode == 0, recycled.stderr
        wait_for(lambda: "2.2" in workers_of(cluster), cluster.tail)
        assert run_command("stoker", "clusters", "resize", "--workers", "start", "--all")
        wait_for(lambda: workers_of(cluster) == {"0.1", "1.1"}, cluster.tail)
    with pytest.raises(ClusterNotFound):
        clusters.resize(uuid.uuid4(), 2)


def test_clusters_command_lists_quiets_resumes_and_stops(tmp_path: Path) -> None:
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


def test_unknown_cluster_is_refused() -> None:
    with pytest.raises(ClusterNotFound):
        clusters.stop(uuid.uuid4())
    with pytest.raises(ClusterNotFound):
        clusters.stop("not an id")
    assert run_command("stoker", "clusters", "stop").returncode == 2
    assert run_command("stoker", "clusters", "list").stdout.startswith("No cluster is running.")
