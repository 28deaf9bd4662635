"""A steady load: a producer keeps a number of jobs ahead of a cluster for a given time."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.db import connection
from django.utils import timezone

from stoker.models import Job
from stoker.values.ids import new_job_id

from benchmarks.cluster import RunningCluster
from benchmarks.tasks import nothing

IN_BULK, SINGLY, DELAYED = 450, 10, 40
"""How the jobs of one portion are enqueued. Few singly, so that the producer is not the limit."""
AHEAD = 6
"""Portions that wait or run."""
LOOK_SECONDS = 0.002
DELAY = timedelta(seconds=1)
FILL = """
INSERT INTO stoker_job (id, task, queue, priority, package, enqueued_at, attempts, worker_id,
                        reason, status, started_at, finished_at, value)
SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - 10000000 + n), 12, '0') || '7000'
        || '8' || lpad(to_hex(n), 15, '0'))::uuid,
       'benchmarks.tasks.nothing', 'default', 0, convert_to(repeat('p', 200), 'UTF8'),
       now(), 1, 'host:worker:1', '', 'SUCCESSFUL', now(), now(), '1'
FROM generate_series(1, %s) AS n
"""


def keep(count: int) -> None:
    """Insert this many finished jobs into the store."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(FILL, [count])
            cursor.execute("VACUUM ANALYZE stoker_job")
            cursor.execute("CHECKPOINT")
        return
    now = timezone.now()
    written = {"task": "benchmarks.tasks.nothing", "queue": "default", "package": b"p" * 200}
    written |= {"status": "SUCCESSFUL", "attempts": 1, "worker_id": "host:worker:1", "value": b"1"}
    times = {"enqueued_at": now, "started_at": now, "finished_at": now}
    for _ in range(0, count, 10_000):
        Job.objects.bulk_create(Job(id=new_job_id(), **written, **times) for _ in range(10_000))


@contextmanager
def snapshot(is_wanted: bool) -> Iterator[None]:
    """Hold a snapshot open in another session, as a dump or a long report does."""
    if not is_wanted:
        yield
        return
    other = connection.copy()
    begin = {
        "postgresql": ["BEGIN ISOLATION LEVEL REPEATABLE READ"],
        "mysql": ["SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "BEGIN"],
        "sqlite": ["BEGIN"],
    }
    with other.cursor() as cursor:
        for statement in begin[connection.vendor]:
            cursor.execute(statement)
        cursor.execute("SELECT count(*) FROM stoker_ready")
        yield
        cursor.execute("ROLLBACK")
    other.close()


def load(cluster: RunningCluster, seconds: float) -> list[float]:
    """Return the number of finished jobs in each second."""
    began = time.monotonic()
    waiting: deque[str] = deque()
    done = [0.0] * int(seconds)
    while (now := time.monotonic()) < began + seconds:
        if len(waiting) < AHEAD:
            waiting.append(_enqueue_portion())
        elif Job.objects.filter(pk=waiting[0], status__isnull=False).exists():
            waiting.popleft()
            done[min(int(now - began), len(done) - 1)] += IN_BULK + SINGLY + DELAYED
        else:
            time.sleep(LOOK_SECONDS)
    for last in waiting:
        cluster.wait_until(Job.objects.filter(pk=last, status__isnull=False).exists)
    return done


def _enqueue_portion() -> str:
    """Enqueue jobs in three ways. Return the id of one of the jobs that run last."""
    nothing.using(run_after=DELAY).enqueue_many(((number,), {}) for number in range(DELAYED))
    results = nothing.enqueue_many(((number,), {}) for number in range(IN_BULK))
    for number in range(SINGLY):
        nothing.enqueue(number)
    return str(results[-1].id)
