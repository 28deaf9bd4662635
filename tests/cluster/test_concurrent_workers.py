"""CONCURRENCY above 1: threads for sync tasks, one event loop for async ones."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from stoker.models import Job, Wait
from stoker.tasks.decorator import task as make_task

from tests.app import chaos, tasks
from tests.app.models import Account, Ledger
from tests.cluster.clusters import ProcessCluster, wait_for
from tests.cluster.ends import end_of, value_of

CONCURRENCY = 8

pytestmark = pytest.mark.usefixtures("db")


@pytest.fixture(scope="module")
def cluster(share_cluster: Callable[..., ProcessCluster]) -> ProcessCluster:
    return share_cluster(WORKERS=1, CONCURRENCY=CONCURRENCY, TIMEOUT_GRACE_SECONDS=5)


@pytest.mark.parametrize("task", [chaos.meet, chaos.meet_in_threads], ids=["async", "threads"])
def test_as_many_jobs_run_at_once_as_concurrency_allows(
    task: Any, cluster: ProcessCluster, tmp_path: Path
) -> None:
    arguments = ((str(tmp_path / "meeting"), CONCURRENCY), {})
    results = task.enqueue_many([arguments] * CONCURRENCY)
    assert {value_of(result, cluster) for result in results} == {CONCURRENCY}


@pytest.mark.parametrize("task", [tasks.succeed_at, chaos.succeed_at_second])
def test_failed_job_in_a_concurrent_worker_is_retried(task: Any, cluster: ProcessCluster) -> None:
    result = task.enqueue(2) if task is tasks.succeed_at else task.enqueue()
    assert value_of(result, cluster) == 2
    assert [one.kind for one in end_of(result, cluster).attempts] == ["failed"]


@pytest.mark.parametrize("task", [chaos.loop_too_long, tasks.sleep_too_long_async])
def test_soft_time_out_is_raised_in_threads_and_coroutines(
    task: Any, cluster: ProcessCluster
) -> None:
    before = {one.pid for one in cluster.crew()["worker"]}
    end = end_of(task.enqueue(30.0), cluster)
    assert [(one.kind, one.signal) for one in end.attempts] == [("timed_out", None)]
    assert "time-out of 0.3 s" in end.attempts[0].message
    assert {one.pid for one in cluster.crew()["worker"]} == before


def test_neighbours_of_a_killed_job_lose_no_attempt(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    """A sleeping thread cannot be interrupted, so its worker is killed with all its jobs."""
    may_end = tmp_path / "may end"
    neighbour = chaos.run_until.enqueue(str(may_end))
    wait_for(Ledger.objects.filter(job_id=neighbour.id).exists, cluster.tail)
    end = end_of(tasks.sleep_too_long.enqueue(60.0), cluster)
    assert [(one.kind, one.signal) for one in end.attempts] == [("timed_out", 9)]
    may_end.touch()
    end = end_of(neighbour, cluster)
    assert (end.job.status, end.job.attempts, end.attempts) == (Job.Status.SUCCESSFUL, 1, [])


def test_neighbours_of_a_job_that_ends_the_process_count_a_crash(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    """It cannot be known which of the jobs ended the process."""
    may_end = tmp_path / "may end"
    neighbour = chaos.run_until.enqueue(str(may_end))
    wait_for(Ledger.objects.filter(job_id=neighbour.id).exists, cluster.tail)
    end = end_of(chaos.exit_cleanly.using(max_attempts=1).enqueue(), cluster)
    assert [(one.kind, one.exit_code) for one in end.attempts] == [("crashed", 0)]
    may_end.touch()
    end = end_of(neighbour, cluster)
    assert (end.job.status, end.job.attempts) == (Job.Status.SUCCESSFUL, 2)
    assert [(one.kind, one.exit_code) for one in end.attempts] == [("crashed", 0)]


@pytest.mark.parametrize(
    ("task", "arguments", "error"),
    [
        (chaos.exit_in_subtask, (3,), "builtins.SystemExit"),
        (chaos.cancel_own_task, (), "asyncio.exceptions.CancelledError"),
    ],
)
def test_async_task_that_ends_its_asyncio_task_fails_and_harms_no_other(
    task: Any, arguments: tuple[Any, ...], error: str, cluster: ProcessCluster, tmp_path: Path
) -> None:
    may_end = tmp_path / "may end"
    neighbour = chaos.run_until.enqueue(str(may_end))
    wait_for(Ledger.objects.filter(job_id=neighbour.id).exists, cluster.tail)
    end = end_of(task.enqueue(*arguments), cluster)
    assert [(one.kind, one.exception_class) for one in end.attempts] == [("failed", error)]
    may_end.touch()
    end = end_of(neighbour, cluster)
    assert (end.job.status, end.job.attempts) == (Job.Status.SUCCESSFUL, 1)


def test_worker_survives_system_exit_in_a_subtask_left_behind(cluster: ProcessCluster) -> None:
    before = {one.pid for one in cluster.crew()["worker"]}
    assert value_of(chaos.leave_exiting_subtask.enqueue(3), cluster) == 3
    wait_for(lambda: "SystemExit(3)" in cluster.text(), cluster.tail)
    assert value_of(tasks.add_later.enqueue(1, 2), cluster) == 3
    assert {one.pid for one in cluster.crew()["worker"]} == before


def test_job_of_an_unknown_task_is_put_back(cluster: ProcessCluster) -> None:
    """The event loop cannot read from the database since when the task has been unknown."""

    def gone() -> None: ...

    gone.__module__, gone.__qualname__ = "tests.app.gone", "gone"
    result = make_task(gone).enqueue()
    assert wait_for(Wait.objects.filter(job_id=result.id).first, cluster.tail)
    result.cancel()


def test_async_task_can_keep_a_cursor_open(cluster: ProcessCluster) -> None:
    """The maintenance of connections must not close the cursor."""
    Account.objects.bulk_create([Account(total=30)] * 30)
    assert value_of(chaos.read_slowly.enqueue(30, 3.0), cluster) == 30


def test_async_and_sync_tasks_do_not_block_each_other(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    may_end = tmp_path / "may end"
    slow = chaos.run_until.enqueue(str(may_end))
    results = tasks.add_later.enqueue_many([((number, 1), {}) for number in range(100)])
    assert [value_of(result, cluster) for result in results] == [n + 1 for n in range(100)]
    may_end.touch()
    assert value_of(slow, cluster)


def test_results_can_be_awaited(cluster: ProcessCluster) -> None:
    result = tasks.add_later.enqueue(1, 2)
    wait_for(lambda: Job.objects.exclude(status=None).filter(pk=result.id).exists(), cluster.tail)
    assert asyncio.run(_awaited(result)) == 3


async def _awaited(result: Any) -> Any:
    value = await result
    await sync_to_async(connections.close_all)()
    return value
