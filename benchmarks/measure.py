"""All rounds on one database, Stoker and the reference in turn: `python -m benchmarks.measure`.

A process of its own, as Django is set up once per process. What it measured comes on standard
output as JSON, what it does now on standard error.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import django

WORKERS = 2


def main() -> None:
    """Measure, and print the measurements of each round."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--server-pid", type=int)
    arguments = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        bench = Bench(arguments.name, arguments.jobs, arguments.server_pid, Path(folder))
        rounds = []
        for number in range(arguments.rounds):
            print(f"{arguments.name}: round {number + 1}", file=sys.stderr, flush=True)
            rounds.append(bench.round())
    version = bench.version()
    json.dump({"database": version, "locked": bench.stoker.locked, "rounds": rounds}, sys.stdout)


class Bench:
    """The measurements on one database."""

    def __init__(self, name: str, jobs: int, server_pid: int | None, folder: Path) -> None:
        from django.db import connection

        from benchmarks.by_hand import ByHand
        from benchmarks.by_stoker import ByStoker

        self._connection = connection
        self._jobs = jobs
        self._singles = max(20, jobs // 10)
        self._samples = min(40, max(5, jobs // 100))
        self._idle_seconds = min(20.0, max(1.0, jobs / 500))
        self.stoker = ByStoker(folder, server_pid)
        self.hand = ByHand(name, json.loads(os.environ["STOKER_BENCH_DATABASE"]), server_pid)

    def round(self) -> dict[str, Any]:
        """Run all measurements once: of Stoker, then of the reference."""
        found: dict[str, Any] = {"stoker": {}, "hand": {}}
        self._enqueue(found)
        self._run(found)
        return found

    def version(self) -> str:
        """Return the name and version of the database."""
        numbers = self._connection.get_database_version()
        return f"{self._connection.display_name} {'.'.join(map(str, numbers))}"

    def _enqueue(self, found: dict[str, Any]) -> None:
        ways = {
            "enqueue_singly": self._singles,
            "enqueue_in_transaction": self._singles,
            "enqueue_in_bulk": self._jobs,
        }
        for way, count in ways.items():
            self.stoker.clear()
            getattr(self.stoker, way)(5)  # the first jobs open a connection and load modules
            found["stoker"][way] = getattr(self.stoker, way)(count)
            found["hand"][way] = getattr(self.hand, way)(count)

    def _run(self, found: dict[str, Any]) -> None:
        stoker, hand = found["stoker"], found["hand"]
        self.stoker.clear()
        with self.stoker.cluster() as cluster:
            stoker["drain"], stoker["processor"] = self.stoker.drain(cluster, self._jobs)
            stoker["latencies_ms"] = self.stoker.latencies_ms(cluster, self._samples)
            stoker["memory_mb"] = self.stoker.memory_mb(cluster)
            stoker["idle_percent"] = self.stoker.idle_percent(cluster, self._idle_seconds)
        self.stoker.clear()
        drains = [self.hand.drain(self._jobs, processes) for processes in (1, WORKERS)]
        hand["drain"], hand["processor"] = max(drains, key=lambda drain: drain[0])
        hand["drain_by_one"], hand["drain_by_two"] = (rate for rate, _ in drains)
        hand["latencies_ms"] = self.hand.latencies_ms(self._samples)
        hand["memory_mb"], hand["idle_percent"] = self.hand.memory_mb_and_idle_percent(
            WORKERS, self._idle_seconds
        )


if __name__ == "__main__":
    main()
