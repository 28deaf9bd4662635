"""One round of one peer: all measurements, from an empty database on."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers.conversation import Conversation, PeerFailedError
from benchmarks.peers.servers import Server
from benchmarks.peers.usage import busy_seconds
from benchmarks.processes import memory_mb

Measured = dict[str, Any]

SINGLY = 200
PROBES = (50, 500, 2_000, 8_000)
IDLE_SECONDS = 1.5
PAUSE_SECONDS = (0.05, 0.25)


@dataclass(frozen=True)
class Load:
    """The load of each peer."""

    jobs: int
    """Maximum number of jobs to drain."""
    seconds: float
    """Approximate limit of a drain and of its enqueueing; slow peers get fewer jobs."""
    samples: int
    """Number of jobs whose pick-up is measured."""


def about(name: str, python: str) -> Measured:
    """Return a peer's description of itself, which needs no server."""
    with (
        tempfile.TemporaryDirectory(prefix="stoker-peers-") as folder,
        Conversation(name, python, Path(folder), {}) as peer,
    ):
        found: Measured = peer.ask("about")
        return found


class Round:
    """One round of one peer, on servers that are running already."""

    def __init__(self, name: str, python: str, servers: Mapping[str, Server]) -> None:
        self._name = name
        self._python = python
        self._servers = servers

    def run(self, load: Load, jobs: int | None) -> Measured:
        """Return the measurements. Drain ``jobs`` jobs, or as many as trials show to fit into the
        time.

        Raises:
            PeerFailedError: the peer did not do what it was asked for.
        """
        urls = {kind: server.fresh() for kind, server in self._servers.items()}
        with (
            tempfile.TemporaryDirectory(prefix="stoker-peers-") as folder,
            Conversation(self._name, self._python, Path(folder), urls) as peer,
        ):
            peer.ask("prepare")
            peer.ask("enqueue_singly", count=5)  # connects, and loads modules
            singly = min(SINGLY, load.jobs)
            found: Measured = {"enqueue_singly": singly / peer.ask("enqueue_singly", count=singly)}
            peer.ask("start")
            peer.ask("wait")  # those were the warm-up jobs
            found |= self._drain(peer, jobs or self._jobs_for(peer, load))
            found["latencies_ms"] = self._latencies(peer, load.samples)
            peer.ask("wait")
            found["memory_mb"] = memory_mb(peer.workers())
            found["idle_percent"] = self._idle_percent(peer)
            found["left"] = self._left()
            return found

    def _jobs_for(self, peer: Conversation, load: Load) -> int:
        """Return the largest number of jobs whose drain and enqueueing fit into the time."""
        jobs = load.jobs
        for probe in PROBES:
            if probe >= load.jobs:
                break
            slower = max(self._fill_and_wait(peer, probe))
            jobs = min(load.jobs, round(probe * load.seconds / slower))
            if slower > load.seconds / 4:
                break
        # A trial is shorter than the measurement, so its start weighs more.
        return load.jobs if jobs > load.jobs / 2 else _rounded(jobs)

    def _fill_and_wait(self, peer: Conversation, count: int) -> tuple[float, float]:
        with _stopped(peer):
            filled: float = peer.ask("enqueue_in_bulk", count=count)
        started = time.monotonic_ns()
        end = peer.ask("wait")
        return filled, (end["at_ns"] - started) / 1e9

    def _drain(self, peer: Conversation, jobs: int) -> Measured:
        """Stop all workers, as by Ctrl-Z, while the jobs are enqueued. The clock runs from their
        continuation until everything is recorded."""
        for server in self._servers.values():
            server.quiesce()
        with _stopped(peer):
            filled = peer.ask("enqueue_in_bulk", count=jobs)
            for server in self._servers.values():
                server.look_over()
            before, counted = self._busy(peer), self._counters()
            started = time.monotonic_ns()
        end = peer.ask("wait", seconds=100)
        after, counted_after = self._busy(peer), self._counters()
        enqueued, finished = peer.ask("enqueued_and_finished")
        if finished not in (None, enqueued):
            raise PeerFailedError(f"{finished} of {enqueued} jobs have ended well")
        seconds = (end["at_ns"] - started) / 1e9
        return {
            "jobs": jobs,
            "drain": jobs / seconds,
            "enqueue_in_bulk": jobs / filled,
            "processor": {who: after[who] - before[who] for who in after},
            "counters": {
                name: (number - counted[name]) / jobs for name, number in counted_after.items()
            },
        }

    def _latencies(self, peer: Conversation, samples: int) -> list[float]:
        shortest, longest = PAUSE_SECONDS
        found: list[float] = peer.ask(
            "latencies_ms", count=samples, shortest=shortest, longest=longest
        )
        return found

    def _idle_percent(self, peer: Conversation) -> float:
        before = self._busy(peer)["workers"]
        time.sleep(IDLE_SECONDS)
        return 100 * (self._busy(peer)["workers"] - before) / IDLE_SECONDS

    def _busy(self, peer: Conversation) -> dict[str, float]:
        """Processor seconds so far of the workers, without the script that enqueues and
        observes."""
        heads = psutil.Process(peer.pid).children()
        return {
            "workers": sum(busy_seconds(head.pid) for head in heads),
            "servers": sum(server.busy_seconds() for server in self._servers.values()),
        }

    def _counters(self) -> dict[str, float]:
        servers = self._servers.values()
        return {name: one for server in servers for name, one in server.counters().items()}

    def _left(self) -> dict[str, float]:
        servers = self._servers.values()
        return {name: one for server in servers for name, one in server.left().items()}


class _stopped:  # noqa: N801 - it is used as a word
    """Stop all workers for a while: parents first, so that no child is missed."""

    def __init__(self, peer: Conversation) -> None:
        self._workers = peer.workers()

    def __enter__(self) -> None:
        for one in self._workers:
            with suppress(psutil.NoSuchProcess):
                one.suspend()

    def __exit__(self, *of_exception: object) -> None:
        for one in reversed(self._workers):
            with suppress(psutil.NoSuchProcess):
                one.resume()


def _rounded(jobs: int) -> int:
    """Round to two digits, for reading."""
    digits = int(10 ** max(0, len(str(jobs)) - 2))
    return jobs // digits * digits
