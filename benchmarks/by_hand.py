"""The measurements of the hand-written SQL: the same loads on the same database."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.cluster import LOOK_SECONDS, ROOT
from benchmarks.pauses import idle_pauses
from benchmarks.processes import difference, family, memory_mb, processor_seconds
from benchmarks.reference import TASK, Reference, reference_for

Loop = subprocess.Popen[str]


class ByHand:
    """The measurements of the reference."""

    def __init__(self, name: str, entry: dict[str, Any], server_pid: int | None) -> None:
        self._name = name
        self._entry = entry
        self._server_pid = server_pid

    # -- enqueue ----------------------------------------------------------------------------------

    def enqueue_singly(self, count: int) -> float:
        """Return jobs per second, with one INSERT and commit each."""
        with self._empty() as reference:
            started = time.perf_counter()
            for number in range(count):
                reference.insert(_package(number))
            return count / (time.perf_counter() - started)

    def enqueue_in_transaction(self, count: int) -> float:
        """Return jobs per second, with one INSERT each in one transaction."""
        with self._empty() as reference:
            started = time.perf_counter()
            with reference.transaction():
                for number in range(count):
                    reference.insert(_package(number))
            return count / (time.perf_counter() - started)

    def enqueue_in_bulk(self, count: int) -> float:
        """Return jobs per second, in the quickest way that the database has."""
        with self._empty() as reference:
            started = time.perf_counter()
            reference.insert_many(_package(number) for number in range(count))
            return count / (time.perf_counter() - started)

    # -- run --------------------------------------------------------------------------------------

    def drain(self, count: int, processes: int) -> tuple[float, dict[str, float]]:
        """Return jobs per second, and processor seconds."""
        with self._empty() as reference, self._loops("drain", processes) as loops:
            reference.insert_many(_package(number) for number in range(count))
            before = self._processor_seconds(loops)
            started = time.perf_counter()
            for loop in loops:
                _say_go(loop)
            for loop in loops:
                assert loop.stdout is not None
                assert loop.stdout.readline() == "done\n", "the reference did not come to its end"
            seconds = time.perf_counter() - started
            used = difference(before, self._processor_seconds(loops))
            assert None not in reference.results()
        return count / seconds, used

    def latencies_ms(self, count: int) -> list[float]:
        """Return the times from the start of an INSERT to the first line of the job."""
        with self._serving(1) as (reference, _):
            began = []
            for pause in idle_pauses(count):
                time.sleep(pause)
                began.append(time.monotonic_ns())
                reference.insert(_package(0))
                reference.announce()
            while None in reference.results():
                time.sleep(LOOK_SECONDS)
            values = [int(result) for result in reference.results()]
        return [(value - start) / 1e6 for value, start in zip(values, began, strict=True)]

    def memory_mb_and_idle_percent(self, processes: int, seconds: float) -> tuple[float, float]:
        """Return the memory of the loops, and their processor time in percent of a core when
        idle."""
        with self._serving(processes) as (_, loops):
            time.sleep(seconds / 10)
            members = [process for loop in loops for process in family(loop.pid)]
            before = processor_seconds(members)
            time.sleep(seconds)
            used = difference(before, processor_seconds(members))
            return memory_mb(members), 100 * sum(used.values()) / seconds

    @contextmanager
    def _empty(self) -> Iterator[Reference]:
        reference = reference_for(self._name, self._entry)
        try:
            reference.create()
            yield reference
        finally:
            reference.close()

    @contextmanager
    def _serving(self, processes: int) -> Iterator[tuple[Reference, list[Loop]]]:
        with self._empty() as reference, self._loops("serve", processes) as loops:
            for loop in loops:
                _say_go(loop)
            yield reference, loops

    @contextmanager
    def _loops(self, way: str, processes: int) -> Iterator[list[Loop]]:
        """Processes of the reference that are connected and wait for the signal to start."""
        loops = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.reference", self._name, way],
                cwd=ROOT,
                env={**os.environ, "STOKER_BENCH_DATABASE": json.dumps(self._entry)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(processes)
        ]
        try:
            for loop in loops:
                assert loop.stdout is not None
                assert loop.stdout.readline() == "ready\n", "the reference did not start"
            yield loops
        finally:
            for loop in loops:
                loop.kill()
                loop.communicate()

    def _processor_seconds(self, loops: list[Loop]) -> dict[str, float]:
        members = [process for loop in loops for process in family(loop.pid)]
        used = {"loop": sum(processor_seconds(members).values())}
        if self._server_pid is not None:
            used["server"] = sum(processor_seconds(family(self._server_pid)).values())
        return used


def _package(number: int) -> str:
    """Return a package of about the same content as Stoker's."""
    return json.dumps(
        {
            "task": TASK,
            "queue": "default",
            "priority": 0,
            "enqueued_at": time.time(),
            "options": [3, 3, None, None],
            "args": [number],
            "kwargs": {},
            "metadata": {},
        }
    )


def _say_go(loop: Loop) -> None:
    assert loop.stdin is not None
    loop.stdin.write("go\n")
    loop.stdin.flush()
