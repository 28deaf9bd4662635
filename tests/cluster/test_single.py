"""Clusters whose pusher, monitor and scheduler are threads of one process (``--single``) keep all
promises."""

import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from stoker import every, schedules
from stoker.cluster.core import use_own_settings
from stoker.conf import settings_for
from stoker.inspect.stats import clusters
from stoker.management.memory import memory_of
from stoker.models import Attempt, Cluster, Job, Ready, Tick
from stoker.store.prepared import KEPT_KEY
from stoker.store.statements import set_deadlines

from tests.app import chaos, tasks
from tests.app.guarded import enter
from tests.app.models import Ledger
from tests.cluster.clusters import (
    WAIT_SECONDS,
    ProcessCluster,
    is_alive,
    run_command,
    running_cluster,
    wait_for,
)
from tests.cluster.ends import end_of, value_of
from tests.story.ledgers import assert_all_recorded_once, unfinished

pytestmark = pytest.mark.django_db(transaction=True)


def enqueue_many(count: int) -> list[str]:
    """Enqueue jobs that survive any number of kills. Return their ids."""
    task = tasks.write_ledger.using(max_attempts=100, max_crashes=100)
    return [result.id for result in task.enqueue_many([((0.01,), {})] * count)]


def assert_no_attempt_ran_twice() -> None:
    ran = Counter(Ledger.objects.values_list("job_id", "attempt"))
    assert max(ran.values()) == 1, ran.most_common(3)


def ran_some(count: int) -> bool:
    return Ledger.objects.count() >= count


def test_single_cluster_runs_jobs_guards_and_schedules(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--single") as cluster:
        crew = cluster.wait_for_crew(1)
        (core,), (worker,) = crew["core"], crew["worker"]
        assert value_of(chaos.process_id.enqueue(), cluster) == worker.pid
        results = tasks.add.enqueue_many([((number, 1), {}) for number in range(50)])
        assert [value_of(one, cluster) for one in results] == list(range(1, 51))
        guarded = enter.enqueue_many([((), {})] * 10)
        assert {value_of(one, cluster) for one in guarded} == {None}
        schedules.create("seconds", tasks.nothing, every(seconds=1))
        wait_for(lambda: Tick.objects.count() >= 2, cluster.tail)
        (shown,) = clusters(settings_for())
        assert (shown.is_single, len(shown.workers)) == (True, 1)
        assert max(shown.loops.values()) < WAIT_SECONDS
        assert {one.role: one.pid for one in shown.processes} == {
            "sentinel": cluster.process.pid,
            "core": core.pid,
        }
        assert "--single: running" in run_command("stoker", "info").stdout
        roles = {one.pid: one.role for one in memory_of(shown).processes}
        assert (roles[core.pid], roles[worker.pid]) == ("core", "worker 0")
        assert not cluster.complaints()
    assert not Cluster.objects.exists()


def test_workers_of_a_single_cluster_can_be_chosen_and_resized(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--single", "--workers", "2") as cluster:
        cluster.wait_for_crew(2)
        wait_for(Cluster.objects.exists, cluster.tail)
        row = Cluster.objects.get()
        run_command("stoker", "clusters", "resize", str(row.pk), "--workers", "3")
        cluster.wait_for_crew(3)


def test_session_options_of_pusher_and_monitor_do_not_reach_the_scheduler() -> None:
    """Session options of pusher and monitor must not reach the scheduler's connections."""
    alias, own = "default", dict[str, Any]()

    def set_up() -> None:
        use_own_settings(alias)
        set_deadlines(settings_for(), keeps_statements=True)
        own.update(connections[alias].settings_dict)
        connections[alias].close()

    thread = threading.Thread(target=set_up)
    thread.start()
    thread.join()
    usual = connections[alias].settings_dict
    assert own["CONN_HEALTH_CHECKS"] is True
    assert usual.get(KEPT_KEY) is None
    assert usual["CONN_HEALTH_CHECKS"] is not True
    assert "enable_seqscan" not in str(usual["OPTIONS"])


@pytest.mark.chaos
def test_killed_core_and_workers_lose_and_double_nothing(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--single") as cluster:
        cluster.wait_for_crew(1)
        ids = enqueue_many(200)
        for number in range(1, 7):
            wait_for(lambda goal=20 * number: ran_some(goal), cluster.tail)
            cluster.kill("worker" if number % 3 == 0 else "core")
        wait_for(lambda: not unfinished(), cluster.tail)
        assert not [line for line in cluster.complaints() if "Traceback" in line]
    assert_all_recorded_once(ids)
    assert_no_attempt_ran_twice()


@pytest.mark.chaos
def test_killed_sentinel_ends_the_cluster_and_the_next_takes_over(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--single") as first:
        crew = first.wait_for_crew(1)
        ids = enqueue_many(100)
        wait_for(lambda: ran_some(20), first.tail)
        first.kill("sentinel")
        wait_for(lambda: not any(is_alive(one) for role in crew.values() for one in role))
    with running_cluster(tmp_path, "--single") as second:
        wait_for(lambda: not unfinished(), second.tail)
    assert_all_recorded_once(ids)
    assert_no_attempt_ran_twice()


def start_of_a_long_job(cluster: ProcessCluster, may_end: Path) -> Any:
    result = chaos.run_until.enqueue(str(may_end))
    wait_for(Ledger.objects.exists, cluster.tail)
    return result


def test_running_job_may_finish_after_sigterm(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--single", SHUTDOWN_SECONDS=2 * WAIT_SECONDS) as cluster:
        result = start_of_a_long_job(cluster, tmp_path / "may end")
        cluster.signal(signal.SIGTERM)
        wait_for(lambda: "Stopping" in cluster.text(), cluster.tail)
        (tmp_path / "may end").touch()
        assert cluster.wait() == 0
        assert not cluster.complaints()
    assert Job.objects.get(pk=result.id).status == Job.Status.SUCCESSFUL
    assert not Cluster.objects.exists()


def test_job_that_runs_too_long_after_sigint_is_released(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--single", SHUTDOWN_SECONDS=0.5) as cluster:
        result = start_of_a_long_job(cluster, tmp_path / "never")
        cluster.signal(signal.SIGINT)
        assert cluster.wait() == 0
    row = Ready.objects.get()
    assert (str(row.job_id), row.attempts, row.crashes) == (result.id, 0, 0)
    assert not Attempt.objects.exists()


@pytest.mark.chaos
@pytest.mark.parametrize("role", ["monitor", "scheduler", "pusher"])
def test_core_is_restarted_after_an_error_in_one_of_its_loops(role: str, tmp_path: Path) -> None:
    mark = tmp_path / "broken once"
    mischief = {"STOKER_TEST_MISCHIEF": f"break:{role}:{mark}"}
    with running_cluster(tmp_path, "--single", environment=mischief) as cluster:
        wait_for(mark.exists, cluster.tail)
        wait_for(lambda: "The core died (exit code 1)" in cluster.text(), cluster.tail)
        assert f"{role} breaks" in cluster.text()
        result = tasks.add.enqueue(1, 2)
        assert end_of(result, cluster).job.status == Job.Status.SUCCESSFUL


@pytest.mark.sqlite
def test_stopped_core_is_killed_and_replaced(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--single", DATABASE_SECONDS=1) as cluster:
        cluster.wait_for_crew(1)
        stopped = cluster.pause("core")
        wait_for(lambda: not is_alive(stopped), cluster.tail)
        assert value_of(tasks.add.enqueue(1, 2), cluster) == 3


@pytest.mark.sqlite
@pytest.mark.slow
def test_sighup_starts_a_single_cluster_again(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--single") as cluster:
        before = cluster.wait_for_crew(1)["core"][0]
        os.kill(cluster.process.pid, signal.SIGHUP)
        wait_for(lambda: not is_alive(before), cluster.tail)
        cluster.wait_for_crew(1)
        assert value_of(tasks.add.enqueue(1, 2), cluster) == 3
