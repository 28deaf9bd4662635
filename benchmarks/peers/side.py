"""The peer's side: the base of each `NAME/peer.py`, run by the peer's own Python.

Nothing but the standard library is imported here, and nothing of Stoker: the environments of the
peers have neither it nor what the harness uses. The harness writes a line of JSON on standard input
for each thing to do, and reads one on standard output for each thing done.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[2]
LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 60.0

NOTHING, FIRST_LINE = "nothing", "first_line"


def nothing(number: int) -> int:
    """The body of the job that does nothing and has a small result."""
    return number


def first_line(began_ns: int) -> int:
    """The body of the job that returns how long after ``began_ns`` it began."""
    now = time.monotonic_ns()
    line = f"{began_ns} {now}\n".encode()
    file = os.open(os.environ["PEER_LATENCIES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, line)
    os.close(file)
    return now


class Peer:
    """One queue with one choice of settings. See README.md, "How to add a peer"."""

    package: ClassVar[str] = ""
    """Its name on the package index, to find its version."""
    servers: ClassVar[tuple[str, ...]] = ("postgres",)
    """The servers that it needs: their URLs are in PEER_POSTGRES_URL, PEER_REDIS_URL, ..."""

    title: str
    settings: str
    """Differences from the default settings, in words."""
    delivery: str
    """at most once | at least once | at least once, fenced"""
    concurrency: str
    """For example "2 processes", "2 processes x 8 threads", "1 process, 100 coroutines"."""
    results: str
    """What is kept of an ended job: "kept" | "a row without the value" | "none" ..."""

    def __init__(self, variant: str) -> None:
        """``variant`` is the part after the colon in NAME:VARIANT, or ""."""
        self.variant = variant

    # -- for each peer to say ---------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the tables. The database (or Redis) is empty."""

    def enqueue(self, task: str, number: int) -> None:
        """Enqueue one job of the task NOTHING or FIRST_LINE with one argument, as a caller would,
        and commit it before returning."""
        raise NotImplementedError

    def enqueue_many(self, count: int) -> None:
        """Enqueue ``count`` NOTHING jobs in the quickest way that its interface has."""
        raise NotImplementedError

    def commands(self) -> list[list[str]]:
        """Return the command lines of its worker processes, as its documentation recommends. They
        are started in the repository's folder, with this process's environment."""
        raise NotImplementedError

    def is_settled(self, count: int) -> bool:
        """Return whether all ``count`` jobs that were ever enqueued have ended and are recorded, so
        that a crash of all workers would run none of them again. Called every 20 ms, so it must be
        cheap: look for a waiting or running row, and do not count."""
        raise NotImplementedError

    def finished(self) -> int | None:
        """Return the number of successful jobs by its own records; None if it keeps none."""
        return None

    # -- the same for all -------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """Return its description for the report."""
        return {
            "title": self.title,
            "version": metadata.version(self.package) if self.package else "",
            "python": ".".join(map(str, sys.version_info[:3])),
            "servers": list(self.servers),
            "settings": self.settings,
            "delivery": self.delivery,
            "concurrency": self.concurrency,
            "results": self.results,
        }


def python_module(name: str, *arguments: str) -> list[str]:
    """Return a command that runs a module with this Python."""
    return [sys.executable, "-m", name, *arguments]


def program(name: str, *arguments: str) -> list[str]:
    """Return a command that runs a program of the peer's environment."""
    return [str(Path(sys.executable).parent / name), *arguments]


def serve(make: Callable[[str], Peer]) -> None:
    """Answer the harness's requests until there are no more."""
    # Output of libraries must not mix with the conversation.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session = _Session(make(os.environ.get("PEER_VARIANT", "")))
    try:
        for line in sys.stdin:
            question = json.loads(line)
            answer: dict[str, Any]
            try:
                answer = {"value": getattr(session, question.pop("do"))(**question)}
            except Exception:  # noqa: BLE001 - every error is reported to the harness
                answer = {"error": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        session.stop()


class _Session:
    """The requests of the harness."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._workers: list[subprocess.Popen[bytes]] = []
        self._enqueued = 0

    def about(self) -> dict[str, Any]:
        return self._peer.about()

    def prepare(self) -> None:
        self._peer.prepare()

    def enqueue_singly(self, count: int) -> float:
        """Return the seconds for ``count`` jobs, one by one."""
        started = time.perf_counter()
        for number in range(count):
            self._peer.enqueue(NOTHING, number)
        self._enqueued += count
        return time.perf_counter() - started

    def enqueue_in_bulk(self, count: int) -> float:
        """Return the seconds for ``count`` jobs, in the quickest way."""
        started = time.perf_counter()
        self._peer.enqueue_many(count)
        self._enqueued += count
        return time.perf_counter() - started

    def start(self) -> None:
        """Start the workers."""
        for number, command in enumerate(self._peer.commands()):
            with (Path(os.environ["PEER_LOGS"]) / f"worker-{number}.log").open("ab") as log:
                self._workers.append(
                    subprocess.Popen(
                        command,
                        cwd=ROOT,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )

    def wait(self, seconds: float = PATIENCE_SECONDS) -> dict[str, int]:
        """Wait until every job is settled, and return the time."""
        until = time.monotonic() + seconds
        while not self._peer.is_settled(self._enqueued):
            self._workers_must_live()
            if time.monotonic() > until:
                raise TimeoutError(f"the jobs were not settled within {seconds:.0f} s")
            time.sleep(LOOK_SECONDS)
        return {"at_ns": time.monotonic_ns()}

    def enqueued_and_finished(self) -> tuple[int, int | None]:
        return self._enqueued, self._peer.finished()

    def latencies_ms(self, count: int, shortest: float, longest: float) -> list[float]:
        """Return the times from the start of an enqueue to the first line of the job, on idle
        workers."""
        path = Path(os.environ["PEER_LATENCIES"])
        path.unlink(missing_ok=True)
        for pause in _pauses(count, shortest, longest):
            time.sleep(pause)
            self._peer.enqueue(FIRST_LINE, time.monotonic_ns())
            self._enqueued += 1
        until = time.monotonic() + PATIENCE_SECONDS
        while len(lines := path.read_text().splitlines() if path.exists() else []) < count:
            self._workers_must_live()
            if time.monotonic() > until:
                raise TimeoutError(f"{len(lines)} of {count} jobs have begun")
            time.sleep(LOOK_SECONDS)
        moments = [tuple(map(int, line.split())) for line in lines]
        return [(now - began) / 1e6 for began, now in moments]

    def stop(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            try:
                worker.wait(5)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        self._workers.clear()

    def _workers_must_live(self) -> None:
        for worker in self._workers:
            if worker.poll() is not None:
                raise RuntimeError(f"a worker has ended with {worker.returncode}")


def _pauses(count: int, shortest: float, longest: float) -> Iterator[float]:
    """Irregular, so that they never coincide with a polling interval; the same in each round."""
    chance = random.Random(count)
    for _ in range(count):
        yield chance.uniform(shortest, longest)
