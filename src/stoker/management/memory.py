"""``manage.py stoker memory``: show how much memory the clusters of this host use."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from stoker.inspect.stats import ClusterState, clusters

from .info import table_lines
from .subcommand import BACKEND, JSON, ExitCode, Subcommand, refuse

if TYPE_CHECKING:
    import psutil

MIB = 1 << 20
ROLES = ("pusher", "monitor", "scheduler", "worker", "core")


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """One process of a cluster."""

    role: str
    """sentinel, pusher, monitor, scheduler, core (these three with ``--single``), or ``worker N``.
    For a process that a task has started: the name of its program."""
    pid: int
    proportional_bytes: int | None
    """PSS: memory that several processes share is divided among them, so that these numbers can be
    added up. None if the system does not report it (only Linux does)."""
    resident_bytes: int
    """RSS: shared memory is counted for each process."""


@dataclass(frozen=True, slots=True)
class ClusterMemory:
    """One cluster on this host."""

    id: str
    name: str
    pid: int
    processes: tuple[ProcessMemory, ...]

    @property
    def total_bytes(self) -> int:
        """The sum of the proportional sizes, or of the resident sizes if the proportional ones are
        unknown."""
        return sum(
            one.resident_bytes if one.proportional_bytes is None else one.proportional_bytes
            for one in self.processes
        )


class MemoryCommand(Subcommand):
    """Show how much memory the clusters of this host use.

    Show how much memory each process of the clusters on this host uses. Needs the package psutil:
    pip install 'django-stoker[memory]'.

    The processes of a cluster share most of their memory, so the proportional size (PSS) is shown:
    shared memory is divided among the processes that share it. Only Linux reports it, and only to
    the user of these processes. Otherwise the resident sizes are added up, which counts shared
    memory several times.

    --json writes one object: host, clusters[] {id, name, pid, total_bytes, processes[] {role, pid,
    proportional_bytes or null, resident_bytes}}.

    Exit code 1: no cluster of this backend runs on this host.

    Examples:
      manage.py stoker memory
      manage.py stoker memory --json | jq '.clusters[].total_bytes'
    """

    name = "memory"
    options = (BACKEND, JSON)

    def run(self, options: dict[str, Any]) -> ExitCode:
        try:
            import psutil  # noqa: F401 - only whether it is there
        except ImportError:
            raise refuse("This needs psutil: pip install 'django-stoker[memory]'.") from None
        settings = self.settings(options)
        host = socket.gethostname()
        found = [memory_of(one) for one in clusters(settings) if one.host == host]
        found = [one for one in found if one.processes]
        if not found and not options["json"]:
            self.remark(f"No cluster of the backend {settings.alias!r} runs on {host}.")
        plain = [{**asdict(one), "total_bytes": one.total_bytes} for one in found]
        lines = [line for one in found for line in _lines(one)]
        self.answer(options, {"host": host, "clusters": plain}, lines)
        return ExitCode.DONE if found else ExitCode.NO


def memory_of(cluster: ClusterState) -> ClusterMemory:
    """Return the memory of the processes of a cluster. The list is empty if it has just ended."""
    import psutil

    numbers = {worker.pid: worker.number for worker in cluster.workers}
    try:
        sentinel = psutil.Process(cluster.pid)
        there = (sentinel, *sentinel.children(recursive=True))
    except psutil.Error:  # it has just ended
        there = ()
    found = (_memory_of(process, cluster.pid, numbers) for process in there)
    processes = tuple(one for one in found if one is not None)
    return ClusterMemory(cluster.id, cluster.name, cluster.pid, processes)


def _memory_of(
    process: psutil.Process, sentinel_pid: int, numbers: dict[int, int]
) -> ProcessMemory | None:
    import psutil

    try:
        resident = process.memory_info().rss
        proportional = None
        if sys.platform == "linux":
            with suppress(psutil.AccessDenied):
                proportional = process.memory_full_info().pss
        role = process.name()
    except psutil.Error:  # it has just ended
        return None
    if process.pid == sentinel_pid:
        role = "sentinel"
    elif process.pid in numbers:
        role = f"worker {numbers[process.pid]}"
    else:
        role = next((one for one in ROLES if role.startswith(f"stoker-{one}"[:15])), role)
    return ProcessMemory(role, process.pid, proportional, resident)


def _lines(cluster: ClusterMemory) -> Iterator[str]:
    yield f"{cluster.name} (process {cluster.pid}): {_mib(cluster.total_bytes)} MiB"
    rows: list[Sequence[str]] = [
        (
            one.role,
            str(one.pid),
            "" if one.proportional_bytes is None else _mib(one.proportional_bytes),
            _mib(one.resident_bytes),
        )
        for one in sorted(cluster.processes, key=lambda one: (one.role != "sentinel", one.role))
    ]
    yield from table_lines(("process", "id", "proportional MiB", "resident MiB"), rows)


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f}"
