"""Paused queues and real clusters: a pause applies at once and outlives every process."""

from pathlib import Path

import pytest

from stoker import queues
from stoker.models import Attempt, Claimed, Job, Ready

from tests.app import tasks
from tests.app.models import Ledger
from tests.cluster.clusters import running_cluster, wait_for
from tests.cluster.ends import end_of, put_behind_long_jobs, value_of

pytestmark = pytest.mark.django_db(transaction=True)

mail = tasks.write_ledger.using(queue_name="mail")


def test_pause_lets_running_jobs_finish_and_releases_prefetched_ones(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster.wait_for_crew()
        may_end = tmp_path / "may end"
        line = put_behind_long_jobs(cluster, may_end, queue_name="mail")
        queues.pause("mail", by="alice", because="the server is away")
        cluster.wait_for_heartbeats(2)
        wait_for(lambda: Claimed.objects.count() == 2, cluster.tail)
        assert cluster.text().count("[pusher] The queue mail is paused since") == 1
        assert " by alice: the server is away.\n" in cluster.text()
        waiting = Ready.objects.filter(queue="mail").count()
        assert waiting == len(line.short) - len(line.started) > 0
        assert set(Ready.objects.values_list("attempts", "crashes")) == {(0, 0)}
        may_end.touch()
        for result in line.long:
            assert end_of(result, cluster).job.status == Job.Status.SUCCESSFUL
        assert value_of(tasks.add.enqueue(1, 2), cluster) == 3, "other queues go on"
        assert Ready.objects.count() == waiting
        queues.resume("mail")
        wait_for(lambda: len(line.started) == len(line.short), cluster.tail)
        wait_for(lambda: not Claimed.objects.exists(), cluster.tail)
        assert cluster.text().count("[pusher] The queue mail is resumed.") == 1
    assert not Attempt.objects.exists()


def test_pause_outlives_a_restart_and_a_new_pusher(tmp_path: Path) -> None:
    queues.pause("mail")
    waits = mail.enqueue()
    for _ in range(2):
        with running_cluster(tmp_path) as cluster:
            assert value_of(tasks.add.enqueue(1, 2), cluster) == 3
            cluster.wait_for_crew()
            (pusher,) = cluster.crew()["pusher"]
            pusher.kill()
            pusher.wait()
            assert value_of(tasks.add.enqueue(1, 2), cluster) == 3
            wait_for(
                lambda: cluster.text().count("The queue mail is paused since") == 2, cluster.tail
            )
            assert Ready.objects.filter(pk=waits.id).exists()
            cluster.stop()
    assert not Ledger.objects.exists()


def test_drain_ends_and_names_paused_queues_with_jobs(tmp_path: Path) -> None:
    queues.pause("mail")
    waits, runs = mail.enqueue(), tasks.add.enqueue(1, 2)
    with running_cluster(tmp_path, "--drain") as cluster:
        assert cluster.wait() == 0
        assert "Drained, except paused queues: mail." in cluster.text()
    assert Job.objects.get(pk=runs.id).status == Job.Status.SUCCESSFUL
    assert list(Ready.objects.values_list("pk", "attempts")) == [
        (Job.objects.get(pk=waits.id).pk, 0)
    ]
