"""Fill a store as after a busy month, for tests of screens: jobs in every state, attempts, dead
letters, workflows, schedules, clusters and figures. PostgreSQL only; a million jobs take half a
minute.
"""

from __future__ import annotations

import time
from uuid import uuid4

from django.db import connection
from django.utils import timezone

from stoker import Cron, schedules
from stoker.conf import settings_for
from stoker.jobs.package import Package, sealer_for
from stoker.models import Cluster, Job
from stoker.store.written import DatabaseNow
from stoker.values.ids import new_job_id

from tests.app import tasks

TASKS = 40
QUEUES = 8
TABLES = (
    "stoker_job", "stoker_ready", "stoker_deferred", "stoker_blocked", "stoker_claimed",
    "stoker_attempt", "stoker_deadletter", "stoker_requeue", "stoker_key", "stoker_need",
    "stoker_workflow", "stoker_step", "stoker_tally", "stoker_sample", "stoker_schedule",
    "stoker_tick", "stoker_cluster", "stoker_note",
)  # fmt: skip

# The job's number decides its state: of 1000 jobs, the newest ten have not ended.
ID = """(lpad(to_hex(1700000000000 + n), 12, '0') || '7' || lpad(to_hex(n %% 4096), 3, '0')
         || '8' || lpad(to_hex({more} + n), 15, '0'))::uuid"""
JOBS = f"""
INSERT INTO stoker_job (
    id, task, queue, priority, package, enqueued_at, attempts, worker_id, reason,
    status, started_at, finished_at, value
)
SELECT {ID.format(more=0)},
       'shop.tasks.task_' || n %% %(tasks)s, 'queue_' || n %% %(queues)s, 0, %(package)s,
       now() - (%(jobs)s - n) * interval '2 seconds',
       1, 'host:worker:' || n %% 8, CASE WHEN n %% 50 = 7 THEN 'error: ValueError: no' ELSE '' END,
       state.status,
       CASE WHEN state.status IS NULL THEN NULL
            ELSE now() - (%(jobs)s - n) * interval '2 seconds' END,
       CASE WHEN state.status IS NULL THEN NULL
            ELSE now() - (%(jobs)s - n) * interval '2 seconds' + n %% 9 * interval '0.1 s' END,
       CASE WHEN state.status = 'SUCCESSFUL' THEN %(value)s END
FROM generate_series(1, %(jobs)s) AS n,
LATERAL (SELECT CASE
    WHEN n > %(jobs)s * 99 / 100 THEN NULL
    WHEN n %% 50 = 7 THEN 'FAILED'
    WHEN n %% 100 = 8 THEN 'CANCELLED'
    ELSE 'SUCCESSFUL' END AS status) AS state;

INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes)
SELECT id, queue, 0, 0, 0 FROM stoker_job WHERE status IS NULL AND right(id::text, 1) < '8';

INSERT INTO stoker_deferred (job_id, due_us, queue, rank, attempts, crashes)
SELECT id, extract(epoch FROM now() + interval '1 h') * 1e6, queue, 0, 0, 0
FROM stoker_job WHERE status IS NULL AND right(id::text, 1) BETWEEN '8' AND 'b';

INSERT INTO stoker_key (
    id, kind, name, fence, places, has_line, period_us, burst, starts
)
SELECT {ID.format(more=1 << 50)}, 'lock', 'lock door ' || n, 1, 1, true, 0, 0, '[]'
FROM generate_series(1, 100) AS n;

INSERT INTO stoker_blocked (job_id, key_id, queue, rank, attempts, crashes)
SELECT id, (SELECT id FROM stoker_key LIMIT 1), queue, 0, 0, 0
FROM stoker_job WHERE status IS NULL AND right(id::text, 1) BETWEEN 'c' AND 'e';

INSERT INTO stoker_claimed (
    job_id, lease_id, holder, leased_until_us, queue, rank, attempts, crashes
)
SELECT id, 1, %(holder)s, extract(epoch FROM now() + interval '1 h') * 1e6, queue, 0, 1, 0
FROM stoker_job WHERE status IS NULL AND right(id::text, 1) = 'f';

INSERT INTO stoker_attempt (
    job_id, number, kind, worker_id, started_at, finished_at, exception_class, message, traceback
)
SELECT id, 1, 'failed', worker_id, started_at, finished_at, 'builtins.ValueError', 'no',
       repeat('  File "shop/tasks.py", line 7, in charge' || chr(10), 12)
FROM stoker_job WHERE status = 'FAILED';

INSERT INTO stoker_deadletter (
    id, identity, key, state, job_id, task, queue, priority, package, reason, exception_class,
    message, traceback, fingerprint, attempts, worker_id, failure_count, enqueued_at,
    first_failed_at, failed_at, closed_at
)
SELECT id, id::text, '', CASE WHEN right(id::text, 1) < '8' THEN 'open' ELSE 'discarded' END,
       id, task, queue, 0, package, 'error', 'builtins.ValueError', 'no ' || id,
       repeat('  File "shop/tasks.py", line 7, in charge' || chr(10), 12),
       md5(task), 1, worker_id, 1, enqueued_at, finished_at, finished_at,
       CASE WHEN right(id::text, 1) < '8' THEN NULL ELSE finished_at END
FROM stoker_job WHERE status = 'FAILED';
"""
OTHERS = f"""
INSERT INTO stoker_workflow (id, name, backend, state, tasks, made_at, finished_at, reason,
                             has_values)
SELECT {ID.format(more=1 << 51)}, 'order ' || n, 'default',
       CASE WHEN n %% 10 = 0 THEN 'RUNNING' ELSE 'SUCCESSFUL' END, 3,
       now() - n * interval '1 minute', CASE WHEN n %% 10 = 0 THEN NULL ELSE now() END, '', true
FROM generate_series(1, %(jobs)s / 100) AS n;

INSERT INTO stoker_step (id, workflow_id, parent_id, job_id, position, kind, role, label, state,
    is_optional, is_wanted, fails_fast, size, has_more, has_undo, has_error, has_added)
SELECT {ID.format(more=1 << 52)}, {ID.format(more=1 << 51)}, NULL, NULL, 0, 'chain', 'step', '',
       'SUCCESSFUL', false, false, false, 3, false, false, false, false
FROM generate_series(1, %(jobs)s / 100) AS n;

INSERT INTO stoker_tally (start, seconds, queue, task, successful, failed, cancelled, retried,
                          run_seconds, wait_seconds, run_classes, wait_classes)
SELECT extract(epoch FROM now())::bigint / 60 * 60 - minute * 60, 60,
       'queue_' || task %% %(queues)s,
       'shop.tasks.task_' || task, 30, 1, 0, 1, 12.5, 30.0, '{{"40": 30}}', '{{"45": 30}}'
FROM generate_series(0, 1440) AS minute, generate_series(0, %(tasks)s - 1) AS task;
"""


def fill(jobs: int) -> None:
    """Replace the store's contents by this many jobs and what belongs to them."""
    settings, holder = settings_for(), uuid4()
    sealer = sealer_for(settings)
    package = Package(new_job_id(), "tests.app.tasks.add", (1, 2), {}, "default", 0, time.time())
    words = {
        "jobs": jobs,
        "tasks": TASKS,
        "queues": QUEUES,
        "holder": holder,
        "package": sealer.seal(package),
        "value": sealer.seal_value(3),
    }
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(TABLES)} CASCADE")
        for table in TABLES[:1] + TABLES[5:7]:
            cursor.execute(f"ALTER TABLE {table} SET UNLOGGED")  # half as much is written
        for text in (JOBS, OTHERS):
            for one in text.split(";\n"):
                if one.strip():
                    cursor.execute(one, words)
    for number in range(50):
        schedules.create(f"schedule {number}", tasks.nothing, Cron(f"{number} 3 * * *"))
    running = Job.objects.filter(pk__in=Job.objects.filter(status=None).values("pk")[:8])
    for number in range(4):
        Cluster.objects.create(
            id=holder if not number else uuid4(),
            name=settings.cluster,
            host=f"host{number}",
            pid=100 + number,
            heartbeat_us=DatabaseNow(),
            started_at=timezone.now(),
            info={"alias": "default", "queues": [], "leases": 8, "workers": _workers(running)},
        )
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")


def _workers(running: object) -> list[dict[str, object]]:
    jobs = [{"job": str(job.pk), "seconds": 3.0} for job in running]  # type: ignore[attr-defined] # jobs
    return [
        {
            "number": number,
            "pid": 200 + number,
            "resident_bytes": 50 << 20,
            "jobs_done": 9,
            "running": jobs[number : number + 1],
        }
        for number in range(8)
    ]


def empty() -> None:
    """Empty all tables."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(TABLES)} CASCADE")
