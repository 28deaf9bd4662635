"""Child processes of tasks: which end with their worker, and what they must not inherit."""

import os
import pty
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.models import Job

from tests.app import chaos, tasks
from tests.app.models import Ledger
from tests.cluster.clusters import (
    ROOT,
    WAIT_SECONDS,
    environment_of_commands,
    is_alive,
    running_cluster,
    wait_for,
)
from tests.cluster.ends import end_of, value_of
from tests.servers.process import is_running

HOUR_SECONDS = 3600.0

pytestmark = pytest.mark.django_db(transaction=True)


def numbers_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


# -- the worker dies ------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [chaos.start_children_and_hang, chaos.start_children_and_die])
def test_children_of_a_killed_worker_are_killed(task: Any, tmp_path: Path) -> None:
    """After the hard time-out and after a crash, before the next attempt begins."""
    with running_cluster(tmp_path, TIMEOUT_GRACE_SECONDS=0.3) as cluster:
        path = tmp_path / "children"
        end = end_of(task.enqueue(str(path)), cluster)
        assert (end.job.status, end.job.attempts) == (Job.Status.FAILED, 2)
        children = numbers_in(path)
        assert len(children) == 4
        wait_for(lambda: not any(map(is_running, children)), cluster.tail)


def test_child_in_a_session_of_its_own_outlives_its_killed_worker(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        path = tmp_path / "children"
        assert end_of(chaos.start_session_and_die.enqueue(str(path)), cluster).attempts
        (child,) = numbers_in(path)
        assert is_running(child)
        os.kill(child, signal.SIGKILL)


def test_child_outlives_a_worker_recycled_after_recycle_jobs(tmp_path: Path) -> None:
    with running_cluster(tmp_path, WORKERS=1, RECYCLE_JOBS=1) as cluster:
        path = tmp_path / "children"
        end_of(chaos.start_child_and_return.enqueue(str(path)), cluster)
        (child,) = numbers_in(path)
        pids = {value_of(chaos.process_id.enqueue(), cluster) for _ in range(3)}
        assert len(pids) == 3
        assert is_running(child)
        assert cluster.stop() == 0
        assert is_running(child)
        os.kill(child, signal.SIGKILL)


# -- the terminal ---------------------------------------------------------------------------------


@contextmanager
def cluster_in_terminal(log: Path) -> Iterator[tuple[int, psutil.Process]]:
    """Run `stoker run` in the foreground of a terminal, without a shell. Yield the terminal's
    descriptor and the process."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        command = [sys.executable, "-m", "django", "stoker", "run"]
        os.execve(sys.executable, command, environment_of_commands())  # noqa: S606 - as above
    process = psutil.Process(pid)
    try:
        yield terminal, process
    finally:
        with suppress(psutil.NoSuchProcess):
            process.kill()
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        os.close(terminal)


def test_ctrl_c_in_a_terminal_lets_a_job_and_its_child_finish(tmp_path: Path) -> None:
    may_end, log = tmp_path / "may", tmp_path / "log"
    result = chaos.run_child_until.enqueue(str(may_end))
    with cluster_in_terminal(log) as (terminal, process):
        wait_for((tmp_path / "may.begun").exists, log.read_text)
        os.write(terminal, b"\x03")
        wait_for(lambda: "Stopping" in log.read_text(), log.read_text)
        may_end.touch()
        assert os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]) == 0
    result.refresh()
    assert result.return_value == 0


def test_ctrl_z_in_a_terminal_stops_workers_until_the_cluster_continues(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "may"
    result = chaos.run_until.enqueue(str(path))
    with cluster_in_terminal(log) as (terminal, process):
        wait_for(lambda: _began(result), log.read_text)
        # Without a shell the kernel does not stop processes for Ctrl-Z; the cluster does it.
        workers = [one for one in process.children() if one.name() == "stoker-worker"]
        assert len(workers) == 2
        os.write(terminal, b"\x1a")
        for one in (process, *workers):
            wait_for(lambda one=one: one.status() == psutil.STATUS_STOPPED, log.read_text)
        path.touch()
        process.resume()
        wait_for(lambda: Job.objects.filter(pk=result.id, status="SUCCESSFUL").exists())
        os.write(terminal, b"\x03")
        assert os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]) == 0
    result.refresh()
    assert result.attempts == 1


def _began(result: Any) -> bool:
    return Ledger.objects.filter(job_id=result.id).exists()


# -- forked children ------------------------------------------------------------------------------


def test_forked_child_does_not_keep_the_next_cluster_from_taking_over(tmp_path: Path) -> None:
    """The lease lasts an hour, so only the board's lock shows that no process is left."""
    may_end = tmp_path / "may end"
    with running_cluster(tmp_path, LEASE_SECONDS=HOUR_SECONDS) as first:
        first.wait_for_crew()
        child = value_of(chaos.leave_daemon.enqueue(2 * WAIT_SECONDS), first)
        result = chaos.run_until.enqueue(str(may_end))
        wait_for(lambda: _began(result), first.tail)
        family = first.sentinel.children(recursive=True)
        first.kill("sentinel")
        wait_for(lambda: not any(is_alive(one) for one in family if one.pid != child), first.tail)
    may_end.touch()
    with running_cluster(tmp_path, LEASE_SECONDS=HOUR_SECONDS) as second:
        assert end_of(result, second).job.attempts == 2
    assert is_running(child)
    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_forked_child_that_returns_from_the_task_ends(tmp_path: Path, concurrency: int) -> None:
    with running_cluster(tmp_path, CONCURRENCY=concurrency) as cluster:
        forking = (chaos.fork_and_come_back_twice, chaos.fork_and_come_back_async)
        for task in (*forking, *(one.using(timeout=600) for one in forking)):
            path = tmp_path / f"{task.name} {task.timeout}"
            parent = value_of(task.enqueue(str(path)), cluster)
            wait_for(lambda path=path: len(numbers_in(path)) == 2)
            (child,) = set(numbers_in(path)) - {parent}
            wait_for(lambda child=child: not is_running(child), cluster.tail)
        assert value_of(tasks.add.enqueue(1, 2), cluster) == 3
        assert not cluster.complaints()
