"""What a job costs with one cluster and with several: `python -m benchmarks.clusters`.

Each round drains the same number of no-op jobs with one cluster of one worker, then with two, and
so on. With as many processes as there are cores, jobs per second say little; processor time per job
says how far another machine would come, and whether clusters get into each other's way.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django
import psutil

from benchmarks.databases import NAMES, Database, database

if TYPE_CHECKING:
    from benchmarks.cluster import RunningCluster


def main() -> int:
    """Measure on one database, and print a line for each number of clusters."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clusters", description=__doc__)
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS") or 10_000))
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS") or 3))
    parser.add_argument("--database", choices=NAMES, default="postgres")
    parser.add_argument("--clusters", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args()
    with database(arguments.database) as store:
        options = json.loads(os.environ.get("STOKER_BENCH_OPTIONS", "{}"))
        os.environ["STOKER_BENCH_OPTIONS"] = json.dumps({"WORKERS": 1, **options})
        os.environ["STOKER_BENCH_DATABASE"] = json.dumps(store.entry)
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        _measure(store, arguments)
    return 0


class Several:
    """Several clusters, used like one."""

    def __init__(self, clusters: list[RunningCluster]) -> None:
        self._clusters = clusters

    def processes(self) -> list[psutil.Process]:
        """Return the processes of all clusters."""
        return [process for one in self._clusters for process in one.processes()]

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Check every few milliseconds until the condition is true."""
        self._clusters[0].wait_until(condition)

    def text(self) -> str:
        """Return the logs of all clusters."""
        return "\n".join(one.text() for one in self._clusters)


def _measure(store: Database, arguments: argparse.Namespace) -> None:
    from benchmarks.by_stoker import ByStoker

    costs: dict[int, list[dict[str, float]]] = {number: [] for number in arguments.clusters}
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        stoker: Any = ByStoker(Path(folder), store.server_pid)
        for _ in range(arguments.rounds):
            for number, found in costs.items():
                stoker.clear()
                with _running(stoker, number, Path(folder)) as clusters:
                    written = _wal_bytes()
                    rate, used = stoker.drain(clusters, arguments.jobs)
                    cost = {name: 1e6 * one / arguments.jobs for name, one in used.items()}
                    wal_bytes = (_wal_bytes() - written) / arguments.jobs
                    every = {"all": sum(cost.values()), "WAL bytes": wal_bytes, "jobs/s": rate}
                    found.append(cost | every)
    for number, found in costs.items():
        names = sorted({name for cost in found for name in cost})
        middle = {name: statistics.median(cost.get(name, 0) for cost in found) for name in names}
        shares = ", ".join(f"{name} {one:,.0f}" for name, one in middle.items() if one >= 1)
        print(f"{number} clusters, processor us per job: {shares}", flush=True)


@contextmanager
def _running(stoker: Any, number: int, folder: Path) -> Iterator[Several]:
    from stoker.models import Cluster

    from benchmarks.cluster import running_cluster

    with stoker.cluster() as first, ExitStack() as stack:
        others = [stack.enter_context(running_cluster(folder)) for _ in range(number - 1)]
        first.wait_until(lambda: Cluster.objects.count() == number)
        yield Several([first, *others])


def _wal_bytes() -> int:
    from django.db import connection

    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
        return int(cursor.fetchone()[0])


if __name__ == "__main__":
    sys.exit(main())
