"""One round of one peer: everything once, from an empty database to the last number."""

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
    """How much is asked of every peer."""

    jobs: int
    """At most so many are drained."""
    seconds: float
    """A drain, and the enqueueing for it, may take about so long each; slow peers get less jobs."""
    samples: int
    """Jobs whose pick-up is measured."""


def about(name: str, python: str) -> Measured:
    """What a peer says of itself: no server is needed for that."""
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
        """The numbers. ``jobs`` are drained, or as many as trials say that there is time for.

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
            peer.ask("wait")  # those were the jobs to get warm with
            found |= self._drain(peer, jobs or self._jobs_for(peer, load))
            found["latencies_ms"] = self._latencies(peer, load.samples)
            peer.ask("wait")
            found["memory_mb"] = memory_mb(peer.workers())
            found["idle_percent"] = self._idle_percent(peer)
            found["left"] = self._left()
            return found

    def _jobs_for(self, peer: Conversation, load: Load) -> int:
        """So many jobs that neither their drain nor their enqueueing takes too long."""
        jobs = load.jobs
        for probe in PROBES:
            if probe >= load.jobs:
                break
            slower = max(self._fill_and_wait(peer, probe))
            jobs = min(load.jobs, round(probe * load.seconds / slower))
            if slower > load.seconds / 4:
                break
        # A trial is shorter than what it stands for, and the start of it weighs more.
        return load.jobs if jobs > load.jobs / 2 else _rounded(jobs)

    def _fill_and_wait(self, peer: Conversation, count: int) -> tuple[float, float]:
        with _stopped(peer):
            filled: float = peer.ask("enqueue_in_bulk", count=count)
        started = time.monotonic_ns()
        end = peer.ask("wait")
        return filled, (end["at_ns"] - started) / 1e9

    def _drain(self, peer: Conversation, jobs: int) -> Measured:
        """All workers are stopped as by Ctrl-Z while the jobs are put in: the clock runs from when
        they go on until everything is recorded."""
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
        """Processor seconds so far: of the workers without the script that enqueues and looks."""
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
    """Stop all workers for a while: parents first, so that none misses a child."""

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
    """To two digits, as it is to be read."""
    digits = int(10 ** max(0, len(str(jobs)) - 2))
    return jobs // digits * digits
