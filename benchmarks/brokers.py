"""Brokers outside the database: `python -m benchmarks.brokers`, or `make bench BROKERS=redis`.

Each round drains the same number of no-op jobs: by a cluster with two workers, results kept in the
database or, with `--results redis`, in the broker; and by one process with two hand-written
scripts, results kept in the broker. Both are in private servers that sync to disk before they
answer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import django

from benchmarks.databases import database
from benchmarks.processes import difference
from tests.servers.redis import PrivateRedis

if TYPE_CHECKING:
    from benchmarks.by_stoker import ByStoker
    from benchmarks.cluster import RunningCluster

BAR = 0.05


def main() -> int:
    """Measure, and print a line for each round. Return 1 if the median is below the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.brokers", description=__doc__)
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS") or 20_000))
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS") or 5))
    parser.add_argument("--database", default="postgres")
    parser.add_argument("--results", choices=["database", "redis"], default="database")
    parser.add_argument("--no-sync", action="store_true", help="Redis keeps nothing on disk")
    arguments = parser.parse_args()
    redis = PrivateRedis(is_durable=not arguments.no_sync)
    with redis, database(arguments.database) as store:
        options = {"BROKER": redis.url, "RESULTS": arguments.results}
        options |= json.loads(os.environ.get("STOKER_BENCH_OPTIONS", "{}"))
        os.environ["STOKER_BENCH_OPTIONS"] = json.dumps(options)
        os.environ["STOKER_BENCH_DATABASE"] = json.dumps(store.entry)
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        django.setup()
        from django.core.management import call_command
        from django.db import connection

        call_command("migrate", verbosity=0)
        pid = int((redis.folder / "server.pid").read_text())
        ratio = _measure(redis.url, pid, arguments)
        connection.close()
    return int(ratio < BAR)


def _measure(url: str, server_pid: int, arguments: argparse.Namespace) -> float:
    from benchmarks.by_stoker import ByStoker

    ratios = []
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        stoker = ByStoker(Path(folder), server_pid)
        for number in range(arguments.rounds):
            stoker.clear()
            with stoker.cluster() as cluster:
                ours, used = _by_stoker(stoker, cluster, arguments.jobs)
            hand = _by_hand(url, arguments.jobs)
            ratios.append(ours / hand)
            _print(number, ours, hand, used, arguments.jobs)
    middle = statistics.median(ratios)
    print(f"median ratio {middle:.3f} ({min(ratios):.3f}-{max(ratios):.3f}); the bar is {BAR}")
    return middle


def _by_stoker(
    stoker: ByStoker, cluster: RunningCluster, count: int
) -> tuple[float, dict[str, float]]:
    """Return jobs per second, from the enqueue of the sealed jobs in one call until the last is
    recorded and acked; and processor seconds by process."""
    from stoker.brokers.adapters import broker_for
    from stoker.conf import settings_for
    from stoker.models import Job
    from stoker.models.job import Message

    from benchmarks.tasks import nothing

    broker = broker_for(settings_for())
    assert broker.broker is not None
    enqueue, sealed = broker.broker.enqueue, list[Message]()
    broker.broker.enqueue = sealed.extend  # type: ignore[method-assign] # for this once
    try:
        results = nothing.enqueue_many(((number,), {}) for number in range(count))
    finally:
        broker.broker.enqueue = enqueue  # type: ignore[method-assign] # as above
    before = stoker.processor_seconds(cluster)
    began = time.perf_counter()
    enqueue(sealed)
    stoker.wait_for(results[-1].id, cluster)
    cluster.wait_until(lambda: not broker.sizes())
    seconds = time.perf_counter() - began
    used = difference(before, stoker.processor_seconds(cluster))
    ended = Job.objects.filter(status="SUCCESSFUL").count()
    assert ended + len(broker.results([UUID(one.id) for one in results])) >= count
    return count / seconds, used


def _by_hand(url: str, count: int) -> float:
    from benchmarks.by_hand import _package
    from benchmarks.reference.redis import RedisReference

    reference = RedisReference(url)
    reference.clear()
    reference.insert_many(_package(number) for number in range(count))
    started = time.perf_counter()
    drained = reference.drain()
    rate = count / (time.perf_counter() - started)
    reference.close()
    assert drained == count
    return rate


def _print(number: int, ours: float, hand: float, used: dict[str, float], jobs: int) -> None:
    shares: list[Any] = [f"{name} {1e6 * one / jobs:.0f}" for name, one in sorted(used.items())]
    print(
        f"round {number + 1}: {ours:,.0f} jobs/s, by hand {hand:,.0f}, ratio {ours / hand:.3f}; "
        f"processor us per job: {', '.join(shares)}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
