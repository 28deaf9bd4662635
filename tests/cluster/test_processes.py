"""Processes that die, hang, are replaced or idle: the cluster keeps working."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.db import connection
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.compat import TaskResultStatus, task_backends
from stoker.conf import settings_for
from stoker.models import Attempt, Cluster, Job

from tests.app import chaos, tasks
from tests.app.guarded import enter
from tests.app.models import Ledger
from tests.cluster.clusters import (
    DJANGO,
    WAIT_SECONDS,
    ProcessCluster,
    end_family,
    is_alive,
    jobs_done,
    running_cluster,
    wait_for,
)
from tests.cluster.ends import end_of, value_of
from tests.story.ledgers import assert_all_recorded_once, unfinished

pytestmark = pytest.mark.django_db(transaction=True)

# Tests in which the database plays no part run on one database only.
anywhere = pytest.mark.sqlite


def assert_works(cluster: ProcessCluster) -> None:
    results = tasks.add.enqueue_many([((number, 1), {}) for number in range(10)])
    assert [value_of(result, cluster) for result in results] == [n + 1 for n in range(10)]


def is_running(result: Any) -> bool:
    return Ledger.objects.filter(job_id=result.id).exists()


# -- dying ----------------------------------------------------------------------------------------


@anywhere
def test_dead_worker_is_replaced_if_the_parent_ignored_sigchld(tmp_path: Path) -> None:
    command = ["env", "--ignore-signal=CHLD", *DJANGO]
    with running_cluster(tmp_path, command=command, WORKERS=1) as cluster:
        (before,) = cluster.wait_for_crew(workers=1)["worker"]
        cluster.kill("worker")
        assert value_of(chaos.process_id.enqueue(), cluster) != before.pid
        assert cluster.stop() == 0


@anywhere
@pytest.mark.chaos
def test_worker_killed_in_any_state_blocks_neither_jobs_nor_stop(
    tmp_path: Path,
) -> None:
    """Idle, in a job, both at once, at its start, and while the cluster stops."""
    with running_cluster(tmp_path, SHUTDOWN_SECONDS=2 * WAIT_SECONDS) as cluster:
        cluster.wait_for_crew()
        cluster.kill("worker", 0)
        assert_works(cluster)
        job = tasks.write_ledger.using(max_attempts=10, max_crashes=10).enqueue(1.0)
        for _ in range(3):
            wait_for(lambda: is_running(job), cluster.tail)
            cluster.kill("worker", 0)
            cluster.kill("worker", 1)
            time.sleep(0.02)
            cluster.kill("worker", 0)
            assert_works(cluster)
        last = tasks.write_ledger.enqueue(1.0)
        wait_for(lambda: is_running(last), cluster.tail)
        cluster.signal(signal.SIGTERM)
        cluster.kill("worker", 0)
        assert cluster.wait() == 0
    assert not Cluster.objects.exists()


@anywhere
def test_worker_that_dies_at_its_start_is_restarted_with_growing_delays(tmp_path: Path) -> None:
    with running_cluster(tmp_path, environment={"STOKER_TEST_MISCHIEF": "die:worker"}) as cluster:
        wait_for(lambda: cluster.text().count("died") >= 8, cluster.tail)
        before, began = cluster.text().count("died"), time.monotonic()
        used_before = _processor_seconds(cluster)
        time.sleep(2.5)
        seconds = time.monotonic() - began
        assert cluster.text().count("died") - before <= 8 * max(1.0, seconds / 2.5)
        if "COVERAGE_PROCESS_START" not in os.environ:  # a tracer takes time of its own
            assert _processor_seconds(cluster) - used_before < 0.2 * seconds
        assert cluster.stop() == 0


@pytest.mark.chaos
def test_crash_while_the_pusher_is_down_counts(tmp_path: Path) -> None:
    """The next pusher has to learn of the crash."""
    with running_cluster(tmp_path) as cluster:
        cluster.wait_for_crew()
        may_end = tmp_path / "may end"
        result = chaos.run_until.enqueue(str(may_end))
        wait_for(lambda: is_running(result), cluster.tail)
        workers = cluster.crew()["worker"]
        busy = Ledger.objects.get(job_id=result.id).worker.rpartition(":")[2].partition(".")[0]
        cluster.sentinel.suspend()  # so that it sees all of them dead at once
        victims = [*cluster.crew()["pusher"], *workers]
        for victim in victims:
            victim.kill()
        wait_for(lambda: not any(map(is_alive, victims)), cluster.tail)
        may_end.touch()
        cluster.sentinel.resume()
        end = end_of(result, cluster)
        assert busy in "01"
        assert (end.job.status, end.job.attempts) == (Job.Status.SUCCESSFUL, 2)
        assert [(one.number, one.kind, one.signal) for one in end.attempts] == [(1, "crashed", 9)]


@pytest.mark.chaos
def test_finished_job_counts_its_attempt_if_worker_and_pusher_die(tmp_path: Path) -> None:
    """Its report is lost with both, and the store does not know that it had begun."""
    may_end = tmp_path / "may end"
    with running_cluster(tmp_path, WORKERS=1) as cluster:
        cluster.wait_for_crew(1)
        result = chaos.run_until.using(max_attempts=1).enqueue(str(may_end))
        wait_for(lambda: is_running(result), cluster.tail)
        pusher = cluster.pause_at_rest("pusher")
        may_end.touch()
        wait_for(lambda: jobs_done(cluster) == 1, cluster.tail)
        (worker,) = cluster.crew()["worker"]
        for victim in (worker, pusher):
            victim.kill()
            wait_for(lambda one=victim: not is_alive(one), cluster.tail)
        end = end_of(result, cluster)
    assert end.job.attempts == 1
    assert end.dead_letter is not None
    assert end.dead_letter.reason == "crash"
    assert Ledger.objects.filter(job_id=result.id).count() == 1


@anywhere
@pytest.mark.chaos
@pytest.mark.parametrize(
    "start_method", [pytest.param("spawn", marks=pytest.mark.slow), "forkserver"]
)
def test_every_start_method_replaces_killed_processes_and_ends_with_the_sentinel(
    start_method: str, tmp_path: Path
) -> None:
    job_ids = [one.id for one in tasks.write_ledger.enqueue_many([((0.01,), {})] * 50)]
    cluster = ProcessCluster(tmp_path, START_METHOD=start_method)
    try:
        cluster.wait_for_crew()
        wait_for(lambda: not unfinished(), cluster.tail)
        for role in ("worker", "pusher", "monitor", "scheduler"):
            cluster.kill(role)
        job_ids += [one.id for one in tasks.write_ledger.enqueue_many([((0.01,), {})] * 50)]
        wait_for(lambda: not unfinished(), cluster.tail)
        crash = tasks.exit_process.using(max_attempts=1).enqueue(4)
        assert end_of(crash, cluster).attempts[0].exit_code == 4
        family = cluster.sentinel.children(recursive=True)
        cluster.process.kill()
        cluster.process.wait()
        wait_for(lambda: not any(map(is_alive, family)), lambda: f"{family} go on")
    finally:
        end_family(cluster)
    assert_all_recorded_once(job_ids)


@anywhere
def test_forked_processes_share_the_code_of_all_roles(tmp_path: Path) -> None:
    with running_cluster(tmp_path, WORKERS=1) as cluster:
        imported = value_of(tasks.imported_modules.enqueue(), cluster)
    assert {"stoker.cluster.monitor.monitor", "stoker.cluster.pusher.pusher"} <= set(imported)


# -- hanging --------------------------------------------------------------------------------------


@anywhere
@pytest.mark.chaos
def test_hanging_processes_are_replaced(tmp_path: Path) -> None:
    """All three are stopped at once. Their loops write the heartbeat, so it stops, too."""
    with running_cluster(tmp_path, DATABASE_SECONDS=1, LEASE_SECONDS=30) as cluster:
        crew = cluster.wait_for_crew()
        assert_works(cluster)
        for role in ("pusher", "monitor", "scheduler"):
            cluster.pause_at_rest(role)
        beat_us = Cluster.objects.get().heartbeat_us
        time.sleep(1.5)
        seen_us = Cluster.objects.get().heartbeat_us
        assert seen_us == beat_us or "has not responded" in cluster.text()  # replaced so soon
        assert_works(cluster)
        for role in ("pusher", "monitor", "scheduler"):
            sentence = f"The {role} has not responded"
            wait_for(lambda sentence=sentence: sentence in cluster.text(), cluster.tail)
            wait_for(lambda role=role: not is_alive(*crew[role]), cluster.tail)
        cluster.wait_for_crew()
        wait_for(lambda: Cluster.objects.get().heartbeat_us > beat_us, cluster.tail)


@anywhere
def test_worker_that_hangs_while_it_starts_is_replaced(tmp_path: Path) -> None:
    """A fork may inherit a lock that a thread of the project held. A worker that has started is not
    killed for its age."""
    mark = tmp_path / "hung"
    environment = {"STOKER_TEST_MISCHIEF": f"hang:{mark}"}
    options = {"WORKERS": 1, "START_SECONDS": 5}
    with running_cluster(tmp_path, environment=environment, **options) as cluster:
        wait_for(mark.exists, cluster.tail)
        pid = value_of(chaos.process_id.enqueue(), cluster)
        assert "was killed: it did not start within START_SECONDS" in cluster.text()
        born = psutil.Process(pid).create_time()
        wait_for(lambda: time.time() - born > 7.0, cluster.tail)
        assert value_of(chaos.process_id.enqueue(), cluster) == pid


@anywhere
@pytest.mark.chaos
def test_user_code_holding_the_gil_blocks_only_its_own_worker(
    tmp_path: Path,
) -> None:
    """A new pusher waits only for a while for the greeting of such a worker."""
    with running_cluster(tmp_path) as cluster:
        cluster.wait_for_crew()
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        deaf = chaos.hold_everything.enqueue(str(pipe))
        wait_for(lambda: _states([deaf]) == ["running"], cluster.tail)
        tasks.write_ledger.enqueue_many([((0.02,), {})] * 100)
        cluster.kill("pusher")
        wait_for(lambda: sum(unfinished().values()) == 1, cluster.tail)
        assert _states([deaf]) == ["running"]
        wait_for(lambda: _was_opened(pipe), cluster.tail)
        assert value_of(deaf, cluster)
        assert end_of(deaf, cluster).job.attempts == 1


# -- being replaced -------------------------------------------------------------------------------


@anywhere
@pytest.mark.parametrize("concurrency", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_worker_is_replaced_after_recycle_jobs(concurrency: int, tmp_path: Path) -> None:
    """It finishes the jobs that still run in it."""
    options = {"WORKERS": 2, "CONCURRENCY": concurrency, "RECYCLE_JOBS": 5}
    with running_cluster(tmp_path, **options) as cluster:
        slow = tasks.write_ledger.enqueue(1.0)
        results = chaos.process_id.enqueue_many([((), {})] * 60)
        pids = [value_of(result, cluster) for result in results]
        assert max(map(pids.count, pids)) <= 5 + concurrency - 1
        assert {end_of(result, cluster).job.attempts for result in [slow, *results]} == {1}
        assert "died" not in cluster.text()


@anywhere
def test_worker_above_recycle_memory_is_replaced(tmp_path: Path) -> None:
    with running_cluster(tmp_path, WORKERS=1, RECYCLE_MEMORY_MB=250) as cluster:
        first = value_of(chaos.process_id.enqueue(), cluster)
        assert value_of(chaos.take_memory.enqueue(300), cluster) == first
        assert value_of(chaos.process_id.enqueue(), cluster) != first
        assert "its memory has grown" in cluster.text()
        assert "died" not in cluster.text()


# -- the database ---------------------------------------------------------------------------------


@pytest.mark.postgres
@pytest.mark.mariadb
def test_no_connection_is_shared_across_a_fork(tmp_path: Path) -> None:
    """The project opens a connection at its start, in the process that forks the others."""
    with running_cluster(tmp_path, environment={"STOKER_TEST_MISCHIEF": "open"}) as cluster:
        cluster.wait_for_crew()
        results = chaos.session_id.enqueue_many([((0.02,), {})] * 30)
        results += chaos.session_id_async.enqueue_many([((), {})] * 4)
        found = {value_of(result, cluster) for result in results}
        while len(found) < 2:  # one worker may have run all jobs
            two = chaos.session_id.enqueue_many([((0.5,), {})] * 2)
            found |= {value_of(result, cluster) for result in two}
        assert cluster.complaints() == []


@pytest.mark.postgres
def test_broken_connections_and_listeners_are_reopened(tmp_path: Path) -> None:
    with running_cluster(tmp_path, POLL_SECONDS=5 * WAIT_SECONDS) as cluster:
        cluster.wait_for_crew()
        assert_works(cluster)
        for _ in range(2):
            with connection.cursor() as cursor:
                cursor.execute(
                    # Waits up to a minute for the end of each session.
                    "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                assert cursor.fetchone()[0] >= 3
            wait_for(_listens, cluster.tail)
            assert_works(cluster)
        assert len(cluster.crew()["pusher"]) == 1
        assert "died" not in cluster.text()


@pytest.mark.postgres
def test_jobs_run_by_polling_without_notifications(tmp_path: Path) -> None:
    with running_cluster(tmp_path, environment={"STOKER_TEST_MISCHIEF": "deaf"}) as cluster:
        cluster.wait_for_crew()
        for _ in range(3):
            assert_works(cluster)
            time.sleep(0.5)
        assert not _listens()


@pytest.mark.postgres
@pytest.mark.sqlite
def test_claim_whose_answer_was_lost_uses_up_no_attempt(tmp_path: Path) -> None:
    """The leased jobs are released at once, not at the end of their leases."""
    with running_cluster(
        tmp_path, LEASE_SECONDS=5 * WAIT_SECONDS, environment={"STOKER_TEST_MISCHIEF": "forget"}
    ) as cluster:
        result = tasks.write_ledger.enqueue()
        end = end_of(result, cluster)
        assert "the answer was lost" in cluster.text()
        assert (end.job.status, end.job.attempts) == (Job.Status.SUCCESSFUL, 1)
        assert not Attempt.objects.exists()


@pytest.mark.postgres
def test_guard_decision_whose_answer_was_lost_uses_up_no_attempt(tmp_path: Path) -> None:
    """The cluster knows the claim's other jobs and releases the guarded ones at once. Only on
    PostgreSQL does a claim commit in two steps."""
    patience = 5 * WAIT_SECONDS
    plain = tasks.add.using(max_attempts=1).enqueue(1, 2)
    guarded = enter.using(max_attempts=1).enqueue()
    with running_cluster(
        tmp_path,
        LEASE_SECONDS=patience,
        HEARTBEAT_SECONDS=patience,
        environment={"STOKER_TEST_MISCHIEF": "forget guards"},
    ) as cluster:
        ends = [end_of(result, cluster) for result in (plain, guarded)]
        assert "the answer was lost" in cluster.text()
    assert [(one.job.status, one.job.attempts) for one in ends] == [(Job.Status.SUCCESSFUL, 1)] * 2


@pytest.mark.postgres
@pytest.mark.sqlite
@pytest.mark.on_redis
def test_claim_that_reaches_the_store_late_uses_up_no_attempt(tmp_path: Path) -> None:
    """The cluster has listed its leases before; it lists them again with each heartbeat."""
    with running_cluster(tmp_path, LEASE_SECONDS=5 * WAIT_SECONDS) as cluster:
        wait_for(Cluster.objects.exists, cluster.tail)
        pusher = cluster.pause_at_rest("pusher")
        result = tasks.add.using(max_attempts=1).enqueue(1, 2)
        late = broker_for(settings_for()).claim(
            ClaimRequest(10, holder=Cluster.objects.get().pk, lease_seconds=5 * WAIT_SECONDS)
        )
        assert [str(one.job_id) for one in late] == [result.id]
        pusher.resume()
        end = end_of(result, cluster)
    assert (end.job.status, end.job.attempts) == (Job.Status.SUCCESSFUL, 1)


# -- doing nothing --------------------------------------------------------------------------------


def test_idle_cluster_uses_little_processor_time(tmp_path: Path) -> None:
    """No process runs in a busy loop. The benchmark measures the exact cost of idling."""
    with running_cluster(
        tmp_path, POLL_SECONDS=1, UPKEEP_SECONDS=10, HEARTBEAT_SECONDS=5, LEASE_SECONDS=60
    ) as cluster:
        cluster.wait_for_crew()
        assert_works(cluster)
        time.sleep(1.5)
        began, before = time.monotonic(), _processor_seconds(cluster)
        time.sleep(4)
        share = (_processor_seconds(cluster) - before) / (time.monotonic() - began)
    print(f"idle: {100 * share:.2f} % of a processor")
    assert share < 0.2


def test_heartbeat_shows_state_and_running_jobs(tmp_path: Path) -> None:
    with running_cluster(tmp_path, SHUTDOWN_SECONDS=2 * WAIT_SECONDS) as cluster:
        cluster.wait_for_crew()
        may_end = tmp_path / "may end"
        result = chaos.run_until.enqueue(str(may_end))
        wait_for(lambda: _running_jobs() == [result.id], cluster.tail)
        row = Cluster.objects.get()
        assert (row.state, row.pid, row.name) == ("running", cluster.process.pid, "stoker")
        cluster.signal(signal.SIGTERM)
        wait_for(lambda: Cluster.objects.get().state == "stopping", cluster.tail)
        may_end.touch()
        cluster.wait()
    assert not Cluster.objects.exists()


@pytest.mark.sqlite
@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.on_redis
def test_running_job_shows_its_worker_and_start_in_django_tasks(tmp_path: Path) -> None:
    may_end = tmp_path / "may end"
    with running_cluster(tmp_path) as cluster:
        began = timezone.now()
        enqueued = chaos.run_until.enqueue(str(may_end))
        wait_for(lambda: is_running(enqueued), cluster.tail)
        worker = Ledger.objects.get(job_id=enqueued.id).worker

        def is_shown() -> bool:
            return task_backends["default"].get_result(enqueued.id).worker_ids == [worker]

        wait_for(is_shown, cluster.tail)
        result = task_backends["default"].get_result(enqueued.id)
        assert result.status == TaskResultStatus.RUNNING
        assert result.attempts == 1
        assert result.started_at == result.last_attempted_at
        assert began <= result.started_at <= timezone.now()
        may_end.touch()
        end_of(enqueued, cluster)
        result.refresh()
        assert result.worker_ids == [worker]


@anywhere
def test_claimed_job_shows_its_cluster_before_the_next_heartbeat(tmp_path: Path) -> None:
    may_end = tmp_path / "may end"
    with running_cluster(tmp_path, HEARTBEAT_SECONDS=5 * WAIT_SECONDS) as cluster:
        began = timezone.now()
        wait_for(Cluster.objects.exists, cluster.tail)
        result = chaos.run_until.enqueue(str(may_end))
        wait_for(lambda: is_running(result), cluster.tail)

        def counts_as_running() -> bool:
            result.refresh()
            return bool(result.status == TaskResultStatus.RUNNING)

        wait_for(counts_as_running, cluster.tail)
        worker = Ledger.objects.get(job_id=result.id).worker
        assert [worker.startswith(one) for one in result.worker_ids] == [True]
        assert result.started_at is not None
        assert began - timedelta(seconds=1) <= result.started_at <= timezone.now()
        may_end.touch()
        end_of(result, cluster)


def _running_jobs() -> list[str]:
    return [
        running["job"]
        for cluster in Cluster.objects.all()
        for worker in cluster.info["workers"]
        for running in worker["running"]
    ]


def _states(results: list[Any]) -> list[str]:
    for result in results:
        result.refresh()
    return [result.state.value.lower() for result in results]


def _was_opened(pipe: Path) -> bool:
    """Open the pipe if a reader waits at its other end. Return whether one did."""
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def _listens() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        return bool(cursor.fetchone()[0])


def _processor_seconds(cluster: ProcessCluster) -> float:
    """Return the processor time that the living processes of the cluster have used."""
    used = 0.0
    for process in [cluster.sentinel, *cluster.sentinel.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system
    return used
