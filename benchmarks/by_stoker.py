"""The measurements of Stoker, in a process with Django set up."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from django.db import connection, transaction

from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.models import (
    Attempt,
    Blocked,
    Claimed,
    DeadLetter,
    Deferred,
    GuardKey,
    Job,
    Need,
    Ready,
    Wait,
)

from benchmarks.cluster import RunningCluster, running_cluster
from benchmarks.pauses import idle_pauses
from benchmarks.processes import difference, family, memory_mb, processor_seconds
from benchmarks.tasks import first_line, nothing

TABLES = (
    Ready, Deferred, Blocked, Claimed, Attempt, Wait, DeadLetter, Need, GuardKey, Job,
)  # fmt: skip
WARM_UP_JOBS = 200


class ByStoker:
    """The measurements of Stoker."""

    def __init__(self, folder: Path, server_pid: int | None) -> None:
        self._folder = folder
        self._server_pid = server_pid
        self.locked = 0
        """Number of "database is locked" errors so far."""

    def clear(self) -> None:
        """Empty the tables, so that every round starts in the same state."""
        with connection.cursor() as cursor:
            names = [connection.ops.quote_name(table._meta.db_table) for table in TABLES]
            if connection.vendor == "postgresql":
                cursor.execute(f"TRUNCATE {', '.join(names)}")
                cursor.execute("CHECKPOINT")
            else:
                for name in names:
                    cursor.execute(f"DELETE FROM {name}")

    # -- enqueue ----------------------------------------------------------------------------------

    def enqueue_singly(self, count: int) -> float:
        """Return jobs per second, with one commit each."""
        started = time.perf_counter()
        for number in range(count):
            nothing.enqueue(number)
        return count / (time.perf_counter() - started)

    def enqueue_in_transaction(self, count: int) -> float:
        """Return jobs per second, one by one in one transaction."""
        started = time.perf_counter()
        with transaction.atomic():
            for number in range(count):
                nothing.enqueue(number)
        return count / (time.perf_counter() - started)

    def enqueue_in_bulk(self, count: int) -> float:
        """Return jobs per second with `enqueue_many`."""
        started = time.perf_counter()
        nothing.enqueue_many(((number,), {}) for number in range(count))
        return count / (time.perf_counter() - started)

    # -- run --------------------------------------------------------------------------------------

    @contextmanager
    def cluster(self) -> Iterator[RunningCluster]:
        """Start a cluster, run its first jobs, and wait until it is idle."""
        with running_cluster(self._folder) as cluster:
            warm_up = nothing.enqueue_many(((number,), {}) for number in range(WARM_UP_JOBS))
            self.wait_for(warm_up[-1].id, cluster)
            yield cluster
            connection.close()
        self.locked += cluster.text().count("database is locked")

    def drain(self, cluster: RunningCluster, count: int) -> tuple[float, dict[str, float]]:
        """Return jobs per second, from the commit that makes all of them visible until the last is
        recorded; and processor seconds by process."""
        with transaction.atomic():
            results = nothing.enqueue_many(((number,), {}) for number in range(count))
            before = self.processor_seconds(cluster)
            started = time.perf_counter()
        self.wait_for(results[-1].id, cluster)
        seconds = time.perf_counter() - started
        used = difference(before, self.processor_seconds(cluster))
        successful = Job.objects.filter(status=Job.Status.SUCCESSFUL).count()
        assert successful == count + WARM_UP_JOBS, f"{successful} of {count} succeeded"
        return count / seconds, used

    def latencies_ms(self, cluster: RunningCluster, count: int) -> list[float]:
        """Return the times from the start of an enqueue to the first line of the task, on an idle
        cluster."""
        began, results = [], []
        for pause in idle_pauses(count):
            time.sleep(pause)
            began.append(time.monotonic_ns())
            results.append(first_line.enqueue(0))
        self.wait_for(results[-1].id, cluster)
        values = [result.wait(timeout=10) for result in results]
        return [(value - start) / 1e6 for value, start in zip(values, began, strict=True)]

    def memory_mb(self, cluster: RunningCluster) -> float:
        """Return the memory of all processes of the cluster."""
        return memory_mb(cluster.processes())

    def idle_percent(self, cluster: RunningCluster, seconds: float) -> float:
        """Return the processor time of an idle cluster, in percent of a core. The cluster has been
        idle for a tenth of the measured time before."""
        time.sleep(seconds / 10)
        before = processor_seconds(cluster.processes())
        time.sleep(seconds)
        used = difference(before, processor_seconds(cluster.processes()))
        return 100 * sum(used.values()) / seconds

    def wait_for(self, last_id: str, cluster: RunningCluster) -> None:
        """Wait until no job waits or runs. The last job is looked up first, because a count would
        cost the database more and more."""
        broker = broker_for(settings_for())
        last = Job.objects.filter(pk=last_id, status__isnull=False)
        cluster.wait_until(lambda: last.exists() or broker.results([UUID(last_id)]))
        places = (Ready, Claimed, Deferred, Blocked)
        cluster.wait_until(lambda: not any(place.objects.exists() for place in places))

    def processor_seconds(self, cluster: RunningCluster) -> dict[str, float]:
        used = processor_seconds(cluster.processes())
        if self._server_pid is not None:
            used["server"] = sum(processor_seconds(family(self._server_pid)).values())
        return used
