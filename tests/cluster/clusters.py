"""Real clusters for tests: `manage.py stoker run` in a separate process."""

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, TypeVar

import psutil
from django.db import connection

import stoker
from stoker.cluster import board as place
from stoker.cluster.board import Board

from tests.cluster.launcher import COMMAND as DJANGO
from tests.cluster.launcher import ROOT, Launched, launcher_for
from tests.processor_time import family

if TYPE_CHECKING:
    from stoker.models import Cluster

T = TypeVar("T")

SOURCE = Path(stoker.__file__).resolve().parents[1]
WAIT_SECONDS = float(os.environ.get("STOKER_TEST_WAIT_SECONDS", "180"))
"""Only prevents waiting for ever; long enough for a busy machine."""

QUICK = {
    "WORKERS": 2,
    "LEASE_SECONDS": 30,
    "HEARTBEAT_SECONDS": 0.5,
    "UPKEEP_SECONDS": 0.5,
    "POLL_SECONDS": 0.2,
    "SHUTDOWN_SECONDS": 10,
}
"""Options for quick tests. Only the lease is long, so that none ends because the machine is busy; a
test whose leases are to end sets LEASE_SECONDS."""

KERNEL_NAMES = {
    f"stoker-{role}"[:15]: role for role in ("pusher", "monitor", "scheduler", "worker", "core")
}
"""The kernel keeps 15 characters of a process's name."""


def environment_of_commands(
    more: Mapping[str, str] | None = None, **options: Any
) -> dict[str, str]:
    """Return the environment of a command: the tests' database and these OPTIONS."""
    return {
        **os.environ,
        "STOKER_TEST_OPTIONS": json.dumps({**QUICK, **options}),
        "PYTHONPATH": os.pathsep.join([str(SOURCE), str(ROOT)]),
        "PYTHONWARNINGS": "default",
        **(more or {}),
    }


def start_command(
    command: Sequence[str],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes],
    errors: IO[bytes],
) -> subprocess.Popen[bytes] | Launched:
    """Start a command in a new session; a launcher forks Django's commands."""
    if tuple(command) == DJANGO:
        launcher = launcher_for(environment)
        return launcher.start(arguments, environment, output.fileno(), errors.fileno())
    return subprocess.Popen(
        [*command, *arguments],
        cwd=ROOT,
        env=dict(environment),
        stdout=output,
        stderr=errors,
        start_new_session=True,
    )


def run_command(
    *arguments: str, environment: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `manage.py` with these arguments and wait for its end."""
    with TemporaryFile() as output, TemporaryFile() as errors:
        process = start_command(
            DJANGO, arguments, environment_of_commands(environment, **options), output, errors
        )
        try:
            code = process.wait(WAIT_SECONDS)
        finally:
            process.kill()
        said = []
        for file in (output, errors):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess([*DJANGO, *arguments], code, *said)


class ProcessCluster:
    """A cluster that a test can stop, kill and inspect."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        command: Sequence[str] = DJANGO,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.log = folder / f"cluster-{time.monotonic_ns()}.log"
        self.is_single = "--single" in arguments
        with self.log.open("wb") as log:
            self.process = start_command(
                command,
                ["stoker", "run", *arguments],
                environment_of_commands(environment, **options),
                log,
                log,
            )
        self.sentinel = psutil.Process(self.process.pid)

    def crew(self) -> dict[str, list[psutil.Process]]:
        """Return role -> its processes."""
        crew: dict[str, list[psutil.Process]] = {}
        try:
            children = self.sentinel.children(recursive=True)
        except psutil.NoSuchProcess:
            return {}
        for child in children:
            try:
                role = KERNEL_NAMES[child.name()]
            except (psutil.NoSuchProcess, KeyError):
                continue
            crew.setdefault(role, []).append(child)
        return crew

    def wait_for_crew(self, workers: int = 2) -> dict[str, list[psutil.Process]]:
        """Wait until every process has started."""
        wanted = Counter(worker=workers)
        wanted.update(["core"] if self.is_single else ["pusher", "monitor", "scheduler"])

        def is_complete() -> bool:
            # psutil would read the whole of /proc each time.
            return Counter(filter(None, map(role_of, family(self.process.pid)))) == wanted

        wait_for(is_complete, lambda: f"the cluster is not complete: {self.crew()}\n{self.tail()}")
        return self.crew()

    def row(self) -> "Cluster | None":
        """Return the cluster's row, which its pusher writes once it has started."""
        from stoker.models import (
            Cluster,  # the browser's site imports this module before Django is set up
        )

        return Cluster.objects.filter(pid=self.process.pid).first()

    def wait_for_heartbeats(self, count: int) -> None:
        """Wait for heartbeats; between two of them, the cluster reads what is paused."""

        def heartbeat_us() -> int:
            row = self.row()
            return 0 if row is None else row.heartbeat_us

        for _ in range(count):
            last_us = heartbeat_us()
            wait_for(lambda last_us=last_us: heartbeat_us() != last_us, self.tail)

    def kill(self, role: str, which: int = 0) -> int | None:
        """SIGKILL one process. Returns its process id."""
        if role == "sentinel":
            self.process.kill()
            return self.process.pid
        members = self.crew().get(role, [])
        if not members:
            return None
        victim = members[which % len(members)]
        try:
            victim.kill()
        except psutil.NoSuchProcess:  # it has just ended
            return None
        return int(victim.pid)

    def pause(self, role: str, which: int = 0) -> psutil.Process:
        """SIGSTOP one process; the caller resumes it."""
        members: list[psutil.Process] = []

        def is_there() -> bool:
            members[:] = self.crew().get(role, [])
            return bool(members)

        wait_for(is_there, lambda: f"there is no {role}\n{self.tail()}")
        members[which % len(members)].suspend()
        return members[which % len(members)]

    def pause_at_rest(self, role: str) -> psutil.Process:
        """SIGSTOP a process at a time when it holds no write lock of SQLite."""
        while True:
            still = self.pause(role)
            wait_for(lambda one=still: one.status() == psutil.STATUS_STOPPED, self.tail)
            if may_be_written():
                return still
            still.resume()
            time.sleep(0.05)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = WAIT_SECONDS) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the cluster did not stop:\n{self.tail()}") from None

    def stop(self) -> int:
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.text().splitlines()[-lines:])

    def complaints(self) -> list[str]:
        """Return log lines that kills do not explain: our exceptions, locks not waited for."""
        signs = ("Traceback", "is locked", "Warning:", "deadlock")
        lines = self.text().splitlines()
        return [
            "\n".join(lines[at : at + 30]) if "Traceback" in line else line
            for at, line in enumerate(lines)
            if any(sign in line for sign in signs)
        ]


@contextmanager
def running_cluster(folder: Path, *arguments: str, **options: Any) -> Iterator[ProcessCluster]:
    """Run a cluster, and end all its processes afterwards."""
    cluster = ProcessCluster(folder, *arguments, **options)
    try:
        yield cluster
        if cluster.process.poll() is None:
            cluster.stop()
    finally:
        end_family(cluster)


def end_family(cluster: ProcessCluster) -> None:
    """Kill the remaining processes of a cluster."""
    members = [one for crew in cluster.crew().values() for one in crew]
    if cluster.process.poll() is None:
        cluster.process.kill()
        cluster.process.wait()
    for member in members:
        if member.is_running():
            member.kill()


def wait_while_it_goes_on(
    left: Callable[[], object], explain: Callable[[], str], seconds: float = WAIT_SECONDS
) -> None:
    """Wait until nothing is left; fail if there is no progress for this many seconds."""
    before, until = None, 0.0
    while now := left():
        if now != before:
            before, until = now, time.monotonic() + seconds
        elif time.monotonic() > until:
            raise AssertionError(explain())
        time.sleep(0.05)


def jobs_done(cluster: ProcessCluster) -> int:
    """Return how many jobs the workers have finished, from the cluster's board."""
    row = cluster.row()
    board = None if row is None else Board.of_the_living(Path(row.info["board"]))
    if board is None:
        return 0
    done = sum(board.worker(number, place.JOBS_DONE) for number in range(board[place.WORKERS]))
    board.close()
    return done


def role_of(pid: int) -> str | None:
    """Return the role of a process of a cluster, or None."""
    try:
        return KERNEL_NAMES.get(Path(f"/proc/{pid}/comm").read_text().rstrip())
    except OSError:
        return None


def may_be_written() -> bool:
    """Return whether SQLite's write lock is free; True on other databases."""
    if connection.vendor != "sqlite":
        return True
    name = str(connection.settings_dict["NAME"])
    with closing(sqlite3.connect(name, timeout=1, isolation_level=None)) as probe:
        try:
            probe.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        probe.execute("ROLLBACK")
    return True


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(
    condition: Callable[[], T],
    explain: Callable[[], str] = lambda: "the condition did not come true",
    seconds: float = WAIT_SECONDS,
) -> T:
    """Wait until the condition is true, and return its value.

    It checks less often the longer it waits, because checking takes processor time from the
    processes it waits for. The limit only prevents waiting for ever.
    """
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        if waited > seconds:
            raise AssertionError(explain())
        time.sleep(min(max(0.01, waited / 8), 0.2))
    return found
