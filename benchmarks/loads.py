"""Stoker alone under loads of other kinds: `python -m benchmarks.loads [NAME...]`; see README.md.

The figures to look at are ratios within one run: of the last third of a steady load to its first,
or of what was reached to what could be.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import django

from benchmarks.databases import NAMES, database

WAIT_SECONDS = 0.005
WORKERS = 2


def main() -> int:
    """Measure in a separate process, because Django is set up once per process."""
    arguments = _arguments()
    with database(arguments.database) as one:
        if (pid := os.fork()) == 0:
            os.environ["STOKER_BENCH_DATABASE"] = json.dumps(one.entry)
            os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
            django.setup()
            with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
                Loads(Path(folder), one.server_pid, arguments).run()
            sys.stdout.flush()
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loads", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(LOADS))
    parser.add_argument("--database", choices=NAMES, default="postgres")
    parser.add_argument("--seconds", type=float, default=180.0, help="of a steady load")
    parser.add_argument("--kept", type=int, default=1_000_000, help="finished jobs kept meanwhile")
    parser.add_argument("--jobs", type=int, default=10_000, help="of a drain that does nothing")
    parser.add_argument("--rounds", type=int, default=3, help="of each drain")
    arguments = parser.parse_args()
    arguments.names = arguments.names or list(LOADS)
    if unknown := set(arguments.names) - set(LOADS):
        parser.error(f"there is no load {', '.join(sorted(unknown))}")
    return arguments


class Loads:
    """The loads on one database."""

    def __init__(self, folder: Path, server_pid: int | None, arguments: argparse.Namespace) -> None:
        from django.core.management import call_command

        from benchmarks.by_stoker import ByStoker

        call_command("migrate", verbosity=0)
        self._arguments = arguments
        self._stoker = ByStoker(folder, server_pid)

    def run(self) -> None:
        """Run the loads one after another, and print the figures of each."""
        for name in self._arguments.names:
            print(f"{name}:", flush=True)
            LOADS[name](self)

    def steady(self, snapshot: bool = False) -> None:
        """Enqueue and run at the same time, with many finished jobs kept."""
        from benchmarks import steady

        self._stoker.clear()
        steady.keep(self._arguments.kept)
        with self._stoker.cluster() as cluster, steady.snapshot(snapshot):
            rates = steady.load(cluster, self._arguments.seconds)
        tenth, third = max(1, len(rates) // 10), len(rates) // 3
        tenths = [statistics.mean(rates[at : at + tenth]) for at in range(0, len(rates), tenth)]
        print("  jobs/s in tenths:", *(f"{rate:,.0f}" for rate in tenths))
        first, middle, last = (
            statistics.mean(rates[start : start + third]) for start in (0, third, 2 * third)
        )
        print(f"  jobs/s in thirds of {third} s: {first:,.0f}  {middle:,.0f}  {last:,.0f}")
        ratio = last / first if first else float("nan")  # it was too short
        print(f"  last third to first: {ratio:.2f}", flush=True)

    def waiting(self) -> None:
        """Run jobs that wait: one at a time, in threads, on an event loop."""
        from benchmarks.tasks import nothing, wait, wait_async

        jobs = self._arguments.jobs
        ideal = WORKERS / WAIT_SECONDS
        no_op = self._drains("no-op", {}, nothing, jobs)
        self._drains("sync, one at a time", {}, wait, jobs // 10, ideal)
        for threads in (20, 100):
            title, options = f"sync, {threads} threads", {"CONCURRENCY": threads}
            self._drains(title, options, wait, jobs, min(no_op, ideal * threads))
        for flying in (100,):
            title, options = f"async, {flying} in flight", {"CONCURRENCY": flying}
            self._drains(title, options, wait_async, jobs, min(no_op, ideal * flying))

    def guards(self) -> None:
        """Run jobs with a lock: each with its own key, or all with many keys or a few."""
        from benchmarks.tasks import (
            HOT_KEYS,
            KEYS,
            nothing,
            with_hot_key,
            with_known_key,
            with_own_key,
        )

        jobs = self._arguments.jobs
        unguarded = self._drains("no guard", {}, nothing, jobs)
        self._drains("a lock, own key", {}, with_own_key, jobs, unguarded)
        self._drains(f"a lock, {KEYS} keys", {}, with_known_key, jobs, unguarded)
        self._drains(f"a lock, {HOT_KEYS} keys", {}, with_hot_key, jobs, unguarded)

    def computing(self) -> None:
        """Run jobs that use the processor for the same time."""
        from benchmarks.tasks import compute

        cores = min(WORKERS, os.cpu_count() or 1)
        self._drains("sync, one at a time", {}, compute, self._arguments.jobs // 10, cores * 200.0)

    def due(self) -> None:
        """Make all jobs due at one moment."""
        from stoker.conf import settings_for
        from stoker.jobs.package import sealer_for
        from stoker.models import Job

        from benchmarks.tasks import clock

        sealer = sealer_for(settings_for())
        jobs, seconds, late = self._arguments.jobs, [], []
        for _ in range(self._arguments.rounds):
            self._stoker.clear()
            with self._stoker.cluster() as cluster:
                due = time.time() + 3 + jobs / 10_000
                at_once = clock.using(run_after=datetime.fromtimestamp(due, UTC))
                results = at_once.enqueue_many(((), {}) for _ in range(jobs))
                assert time.time() < due, "they were due before all were enqueued"
                self._stoker.wait_for(results[-1].id, cluster)
            # The times are those of the machine's clock, which the database uses, too.
            ended = Job.objects.filter(run_after__isnull=False, status="SUCCESSFUL")
            values = ended.values_list("value", flat=True)
            stamps = sorted(sealer.open_value(bytes(value or b"")) for value in values)
            assert len(stamps) == jobs, f"{len(stamps)} of {jobs} succeeded"
            assert stamps[0] >= due, f"one ran {due - stamps[0]:.6f} s early"
            late.append(stamps[0] - due)
            seconds.append(stamps[-1] - due)
        print(f"  the first began {_spread([1e3 * one for one in late], 1)} ms after the moment")
        print(f"  the last of {jobs:,} began {_spread(seconds, 2)} s after it; none early")

    def payload(self) -> None:
        """Run jobs with arguments of several sizes."""
        from benchmarks.tasks import swallow

        for size, jobs in ((1_000, self._arguments.jobs), (100_000, self._arguments.jobs // 10)):
            text = "x" * size
            self._drains(f"{size // 1000} KB", {}, swallow, jobs, arguments=(text,))

    def _drains(
        self,
        title: str,
        options: dict[str, Any],
        task: Any,
        jobs: int,
        possible: float | None = None,
        arguments: tuple[Any, ...] | None = None,
    ) -> float:
        """Return the median of several drains by a cluster with these options."""
        before = os.environ.get("STOKER_BENCH_OPTIONS", "{}")
        os.environ["STOKER_BENCH_OPTIONS"] = json.dumps({**json.loads(before), **options})
        try:
            rates = [self._drain(task, jobs, arguments) for _ in range(self._arguments.rounds)]
        finally:
            os.environ["STOKER_BENCH_OPTIONS"] = before
        rate = statistics.median(rates)
        ratio = f"  {rate / possible:.2f} of {possible:,.0f}" if possible else ""
        print(f"  {title:24} {_spread(rates)} jobs/s{ratio}", flush=True)
        return rate

    def _drain(self, task: Any, jobs: int, arguments: tuple[Any, ...] | None) -> float:
        from django.db import transaction

        calls: Iterable[Any] = (
            ((number,) if arguments is None else arguments, {}) for number in range(jobs)
        )
        self._stoker.clear()
        with self._stoker.cluster() as cluster:
            with transaction.atomic():
                results = task.enqueue_many(calls)
                began = time.perf_counter()
            self._stoker.wait_for(results[-1].id, cluster)
            return jobs / (time.perf_counter() - began)


def _spread(values: list[float], digits: int = 0) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


LOADS: dict[str, Callable[[Loads], None]] = {
    "steady": Loads.steady,
    "snapshot": lambda loads: loads.steady(snapshot=True),
    "waiting": Loads.waiting,
    "guards": Loads.guards,
    "computing": Loads.computing,
    "due": Loads.due,
    "payload": Loads.payload,
}

if __name__ == "__main__":
    sys.exit(main())
