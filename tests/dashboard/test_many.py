"""Many jobs: no page reads a whole large table, and each answers quickly.

``STOKER_DASHBOARD_JOBS=1000000`` creates that many, and then each page must take less than 200 ms.
"""

import json
import os
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psutil
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from stoker.dashboard import figures
from stoker.models import DeadLetter, GuardKey, Job, Ready, Schedule

from tests.app import payments
from tests.dashboard.conftest import PREFIX
from tests.dashboard.test_pages import MOST_QUERIES

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
]

JOBS = int(os.environ.get("STOKER_DASHBOARD_JOBS", "0"))
FEW = 20_000
MOST_SECONDS = 0.2
TIMES = 10 if JOBS else 1
LARGE = {
    "stoker_job",
    "stoker_ready",
    "stoker_deferred",
    "stoker_claimed",
    "stoker_blocked",
    "stoker_need",
    "stoker_key",
    "stoker_unique",
    "stoker_attempt",
    "stoker_deadletter",
    "stoker_step",
    "stoker_workflow",
    "stoker_tick",
}

# Ids that sort by time, as job ids do: the number of the job is part of the time.
ID = "(lpad(to_hex(1700000000000 + n), 12, '0') || '7000800000000000000{k}')::uuid"
FILL = """
INSERT INTO stoker_job (id, task, queue, priority, package, enqueued_at, attempts, worker_id,
                        reason, status, started_at, finished_at)
SELECT {job}, 'shop.tasks.t' || n %% 12, 'q' || n %% 6, 0, %(package)s, at, 1, 'w:1.0',
       CASE n %% 50 WHEN 0 THEN 'error: Broken' ELSE '' END,
       CASE WHEN n > %(over)s THEN NULL WHEN n %% 50 = 0 THEN 'FAILED' WHEN n %% 97 = 0
            THEN 'CANCELLED' ELSE 'SUCCESSFUL' END,
       CASE WHEN n <= %(over)s THEN at END,
       CASE WHEN n <= %(over)s THEN at + interval '1 second' * (n %% 30) END
FROM (SELECT n, now() - interval '7 days' * (1 - n::float / %(jobs)s) AS at
      FROM generate_series(1, %(jobs)s) AS n) AS made;

INSERT INTO stoker_ready (job_id, queue, rank, attempts, crashes)
SELECT {job}, 'q' || n %% 6, n %% 3, 0, 0
FROM generate_series(%(over)s + 1, %(jobs)s) AS n WHERE n %% 10 < 7;

INSERT INTO stoker_deferred (job_id, due_us, queue, rank, attempts, crashes)
SELECT {job}, (extract(epoch FROM now()) * 1e6)::bigint + n::bigint * 1000, 'q' || n %% 6, 0, 0, 0
FROM generate_series(%(over)s + 1, %(jobs)s) AS n WHERE n %% 10 IN (7, 8);

INSERT INTO stoker_claimed (job_id, lease_id, holder, leased_until_us, queue, rank, attempts,
                            crashes)
SELECT {job}, n, gen_random_uuid(), 9e15, 'q' || n %% 6, 0, 1, 0
FROM generate_series(%(over)s + 1, %(jobs)s) AS n WHERE n %% 10 = 9 LIMIT 500;

INSERT INTO stoker_key (id, kind, name, fence, places, has_line, period_us, burst, starts)
SELECT {key}, CASE n %% 9 WHEN 0 THEN 'sequence' ELSE 'lock' END, 'lock tenant:' || n, 0, 1,
       n <= 1000, 0, 0, '[]'
FROM generate_series(1, %(jobs)s / 2) AS n;

INSERT INTO stoker_need (id, job_id, key_id, kind, name, places, weight, period_us, burst, on_busy,
                         retry_us, halts, holds)
SELECT {job}, {job}, {key}, 'lock', 'lock tenant:' || n, 1, 1, 0, 0, 'wait', 0, n %% 9 = 0, {key}
FROM generate_series(1, %(jobs)s / 2) AS n;

INSERT INTO stoker_blocked (job_id, key_id, queue, rank, attempts, crashes)
SELECT {waiting}, {key}, 'q' || n %% 6, 0, 0, 0
FROM generate_series(1, %(jobs)s / 4) AS m CROSS JOIN LATERAL (SELECT
    CASE WHEN m %% 2 = 0 THEN 1 ELSE m %% 1000 + 1 END AS n) AS line;

INSERT INTO stoker_unique (key_id, name, job_id, taken_us, until_us)
SELECT {key}, 'unique order:' || n, {job}, 0, 0 FROM generate_series(1, %(jobs)s / 4) AS n;

INSERT INTO stoker_attempt (job_id, number, kind, worker_id, started_at, finished_at,
                            exception_class, message, traceback)
SELECT {job}, 1, 'failed', 'w:1.0', now(), now(), 'shop.Broken', 'broken', repeat('line ', 200)
FROM generate_series(50, %(over)s, 50) AS n;

INSERT INTO stoker_deadletter (id, identity, job_id, task, queue, package, reason, exception_class,
                               message, traceback, fingerprint, failed_at, state, priority,
                               attempts, worker_id, failure_count)
SELECT {job}, 'job ' || n, {job}, 'shop.tasks.t' || n %% 12, 'q' || n %% 6,
       %(package)s, 'error', 'shop.Broken', 'broken', repeat('line ', 200),
       'fault ' || n %% 25, now() - interval '1 second' * (%(jobs)s - n),
       CASE WHEN n %% 3 = 0 THEN 'resolved' ELSE 'open' END, 0, 1, 'w:1.0', 1
FROM generate_series(50, %(over)s, 50) AS n;

INSERT INTO stoker_workflow (id, name, backend, state, tasks, has_values, reason)
SELECT {flow}, 'order ' || n, 'default', 'SUCCESSFUL', 3, false, ''
FROM generate_series(1, %(jobs)s, 40) AS n;

INSERT INTO stoker_step (id, workflow_id, parent_id, position, kind, role, label, state,
                         is_optional, is_wanted, fails_fast, size, has_more, has_undo, has_error,
                         has_added, job_id)
SELECT CASE k WHEN 0 THEN {flow} ELSE {step} END, {flow}, CASE k WHEN 0 THEN NULL ELSE {flow} END,
       k, CASE k WHEN 0 THEN 'chain' ELSE 'task' END, 'step', 'shop.tasks.t1', 'SUCCESSFUL',
       false, false, false, 3, false, false, false, false,
       CASE k WHEN 0 THEN NULL ELSE {step} END
FROM generate_series(1, %(jobs)s, 40) AS n CROSS JOIN generate_series(0, 3) AS k;

INSERT INTO stoker_tick (schedule_id, moment_us, outcome, fired_us, count, by)
SELECT lpad(to_hex(s), 32, '0')::uuid,
       (extract(epoch FROM now()) * 1e6)::bigint - t::bigint * 600000000, 'fired', 0, 1, ''
FROM generate_series(1, 50) AS s CROSS JOIN generate_series(1, 1000) AS t;

INSERT INTO stoker_tally (start, seconds, queue, task, successful, failed, cancelled, retried,
                          run_seconds, wait_seconds, run_classes, wait_classes)
SELECT extract(epoch FROM now())::bigint / width * width - b * width, width, 'q' || t %% 6,
       'shop.tasks.t' || t, width / 6, 1, 0, 2, 50, 10, '{{"30": 60, "40": 40, "41": 3}}',
       '{{"20": 100, "22": 2}}'
FROM (VALUES (60, 1, 60), (600, 7, 156), (3600, 27, 168)) AS made (width, first, last)
CROSS JOIN LATERAL generate_series(first, last) AS b CROSS JOIN generate_series(0, 11) AS t;
"""


@pytest.fixture
def many(transactional_db: None) -> Iterator[dict[str, Any]]:
    """Fill the store with very many rows, and analyze it."""
    jobs = JOBS or FEW
    over = jobs * 7 // 10
    words = {
        "job": ID.format(k="0"),
        "flow": ID.format(k="f"),
        "key": ID.format(k="9"),
        "waiting": ID.format(k="8").replace("n)", "m)"),
        "step": "(lpad(to_hex(1700000000000 + n), 12, '0') || '70008000000000000a0' || k)::uuid",
    }
    call = payments.plain.enqueue(7, note="a note that a search reads and does not find")
    package = bytes(Job.objects.get(pk=call.id).package)
    with connection.cursor() as cursor:
        for number in range(1, 51):
            Schedule.objects.create(
                id=UUID(int=number),
                cluster="stoker",
                backend="default",
                name=f"schedule {number}",
                task="shop.tasks.t1",
                package=b"",
                kind="interval",
                count=10,
                unit="minutes",
                anchor="2026-01-01T00:00:00",
                zone="UTC",
                moment_us=int(time.time() * 1e6),
            )
        for statement in FILL.format(**words).split(";"):
            if statement.strip():
                cursor.execute(statement, {"jobs": jobs, "over": over, "package": package})
        cursor.execute("ANALYZE")
    ended = Job.objects.exclude(status=None).order_by("-pk").first()
    failed = Job.objects.filter(status="FAILED").order_by("-pk").first()
    ready = Ready.objects.order_by("-pk").first()
    letter = DeadLetter.objects.order_by("-pk").first()
    assert ended
    assert failed
    assert ready
    assert letter
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM stoker_workflow ORDER BY id DESC LIMIT 1")
        workflow = cursor.fetchone()[0]
    yield {
        "ended": ended.pk,
        "failed": failed.pk,
        "ready": ready.pk,
        "letter": letter.pk,
        "schedule": UUID(int=1),
        "guard": GuardKey.objects.order_by("pk").values_list("pk", flat=True)[0],
        "workflow": workflow,
    }
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(sorted(LARGE))}, stoker_tally, stoker_schedule")


PAGES = (
    "",
    "?last=week",
    "jobs/",
    *(f"jobs/?state={state}" for state in ("ready", "running", "deferred", "successful", "failed")),
    "jobs/?queue=q1&state=ready",
    "jobs/?queue=q1",
    "jobs/?q=t11",
    "jobs/?q=nothing+like+it",
    "jobs/?q=order_id%3D8",
    "jobs/?q=plain",
    "jobs/?q=018bcfe5",
    "jobs/?q=broken&state=failed&task=shop.tasks.t1&node=w&last=1h",
    "jobs/{ended}/",
    "jobs/{failed}/",
    "jobs/{ready}/",
    "queues/",
    "queues/one/?name=q1&last=week",
    "guards/",
    "guards/?state=waiting",
    "guards/?state=halted",
    "guards/?state=unique&q=nothing",
    "guards/?q=nothing",
    "guards/{guard}/",
    "tasks/",
    "tasks/?last=week",
    "tasks/one/?name=shop.tasks.t1&last=week",
    "dead-letters/",
    "dead-letters/?state=resolved",
    "dead-letters/?q=nothing+like+it",
    "dead-letters/?q=broken",
    "dead-letters/?fingerprint=fault 1",
    "dead-letters/{letter}/",
    "schedules/",
    "schedules/{schedule}/",
    "workflows/",
    "workflows/{workflow}/",
    "clusters/",
    "live/",
)


def test_pages_read_no_large_table_fully(many: dict[str, Any], anna: Client) -> None:
    """Check PostgreSQL's plan of each query, and measure each page."""
    bad, times = [], {}
    for path in PAGES:
        address = PREFIX + path.format(**many)
        assert anna.get(address).status_code == 200, path  # once, to warm up
        times[path] = seconds_of(anna, address)
        figures.forget()
        with CaptureQueriesContext(connection) as captured:
            anna.get(address)
        assert len(captured) <= MOST_QUERIES, (path, len(captured))
        for query in captured.captured_queries:
            bad += [(path, table, query["sql"][:400]) for table in scans_of(query["sql"])]
    for path, seconds in sorted(times.items(), key=lambda one: -one[1]):
        print(f"{1000 * seconds:7.1f} ms  {path}")
    assert not bad, "\n".join(map(str, bad))
    if JOBS:
        slow = {path: seconds for path, seconds in times.items() if seconds > MOST_SECONDS}
        assert not slow


def seconds_of(client: Client, address: str) -> float:
    """Return the processor time that a page takes, of this process and of the database's, with an
    empty cache: other work on the machine does not count."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        server = psutil.Process(cursor.fetchone()[0])
    before = sum(server.cpu_times()[:2])
    began = time.process_time()
    for _ in range(TIMES):
        figures.forget()
        assert client.get(address).status_code == 200
    spent = time.process_time() - began + sum(server.cpu_times()[:2]) - before
    return spent / TIMES


def scans_of(sql: str) -> list[str]:
    """Return the large tables that this query reads without an index or a limit."""
    if "SELECT" not in sql or sql.startswith("EXPLAIN"):  # estimates use EXPLAIN
        return []
    with connection.cursor() as cursor:
        # On a small table a full scan is cheaper: what counts is that an index could be used.
        cursor.execute("SET enable_seqscan = off")
        cursor.execute("EXPLAIN (FORMAT JSON) " + sql.replace("%", "%%"))
        plan = cursor.fetchone()[0]
        cursor.execute("RESET enable_seqscan")
    plan = json.loads(plan) if isinstance(plan, str) else plan
    found: list[str] = []
    look(plan[0]["Plan"], found, is_bounded=False)
    return found


def look(node: dict[str, Any], found: list[str], *, is_bounded: bool) -> None:
    if node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE and not is_bounded:
        found.append(node["Relation Name"])
    # A Limit ends a scan early if it stands right above it.
    ends_early = node["Node Type"] == "Limit"
    for inner in node.get("Plans", ()):
        look(inner, found, is_bounded=ends_early)
