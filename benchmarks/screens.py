"""How long the pages of the dashboard take: `python -m benchmarks.screens --jobs 1000000`.

It fills a store on PostgreSQL as after a busy week, with full lists and a long history, and
requests every page with Django's test client. It fails if a page takes longer, makes more queries
or has a larger HTML than it may.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid4

import django
import psutil
from django.conf import settings

from benchmarks.databases import database
from tests.dashboard.project import SETTINGS

if TYPE_CHECKING:
    from django.test import Client

PREFIX = "/stoker/"
MOST_SECONDS = 0.2
MOST_QUERIES = 15
MOST_BYTES = 60_000
MOST_LETTERS = 100_000
TASKS, QUEUES, SCHEDULES, CLUSTERS, WORKERS = 40, 20, 120, 8, 8
STATES = ("ready", "running", "deferred", "blocked", "successful", "failed", "cancelled")
RARE = "task=gone.tasks.away&queue=gone&node=gone"
"""Filters that no job matches, so that nothing ends the search early."""
PAGES = (
    "",
    "?last=day",
    "?last=week",
    "jobs/",
    *(f"jobs/?state={state}" for state in STATES),
    "jobs/?queue=queue_1",
    *(f"jobs/?state={state}&queue=queue_1" for state in STATES),
    *(f"jobs/?state={state}&task=gone.tasks.away" for state in ("", *STATES)),
    *(f"jobs/?state={state}&{RARE}" for state in ("", *STATES)),
    *(f"jobs/?state={state}&task=gone.tasks.away&since=1h" for state in ("ready", "successful")),
    "jobs/?state=successful&since=3d&until=2d&node=host1",
    "jobs/?q=task_11",
    "jobs/?q=nothing+like+it",
    "jobs/?q=nothing+like+it&state=ready",
    "jobs/?q=order_id%3D8",
    "jobs/?q=plain",
    "jobs/?q=018bcfe5",
    "jobs/?q={failed}",
    "jobs/?q=broken&state=failed&task=shop.orders.tasks.task_1&node=host1&since=1h",
    *(f"jobs/{{{kind}}}/" for kind in STATES),
    "queues/",
    "queues/?last=week",
    "queues/one/?name=queue_1&last=week",
    "guards/",
    "guards/?state=waiting",
    "guards/?state=halted",
    "guards/?state=unique",
    "guards/?state=unique&q=nothing",
    "guards/?q=nothing",
    "guards/{guard}/",
    "tasks/",
    "tasks/?last=week",
    "tasks/one/?name=shop.orders.tasks.task_1&last=week",
    "dead-letters/",
    "dead-letters/?state=resolved",
    "dead-letters/?state=discarded",
    "dead-letters/?queue=gone",
    "dead-letters/?q=nothing+like+it",
    "dead-letters/?q=broken",
    "dead-letters/?fingerprint={fault}",
    "dead-letters/{letter}/",
    "schedules/",
    "schedules/?q=nothing",
    "schedules/{schedule}/",
    "workflows/",
    "workflows/?state=failed",
    "workflows/{workflow}/",
    "workflows/{large_workflow}/",
    "bulk/",
    "bulk/new/?kind=job",
    "bulk/new/?kind=job&state=deferred",
    "bulk/new/?kind=job&queue=queue_1",
    "bulk/new/?kind=job&task=gone.tasks.away",
    "bulk/new/?kind=job&q=nothing+like+it",
    "bulk/new/?kind=letter",
    "bulk/new/?kind=letter&queue=queue_1",
    "bulk/new/?kind=letter&queue=gone",
    "bulk/new/?kind=letter&q=nothing+like+it",
    "bulk/new/?kind=step&workflow={large_workflow}",
    "audit/",
    "audit/?q=nothing",
    "clusters/",
    "live/",
    "palette/?q=task",
)


class Measured(NamedTuple):
    """What a page costs."""

    median_seconds: float
    seconds: float
    """The 95th percentile."""
    processor_seconds: float
    """Processor time of this process and the database, which other programs on the machine affect
    less."""
    queries: int
    size: int
    """The size of its HTML in bytes, without compression."""

    @property
    def is_good(self) -> bool:
        return self.seconds <= MOST_SECONDS and self.queries <= MOST_QUERIES and self.is_small

    @property
    def is_small(self) -> bool:
        return self.size <= MOST_BYTES


def main() -> int:
    """Fill a database, and print a line for each page. Return 1 if a page costs too much."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.screens", description=__doc__)
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS") or 1_000_000))
    parser.add_argument("--requests", type=int, default=10, help="how often each page is requested")
    parser.add_argument("--kept", action="store_true", help="the database is filled already")
    parser.add_argument("--only", default="", help="only the pages whose URL contains this text")
    arguments = parser.parse_args()
    with database("postgres") as store:
        os.environ["STOKER_BENCH_DATABASE"] = json.dumps(store.entry)
        _set_up()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        if not arguments.kept:
            fill(arguments.jobs)
        client, ids = _signed_in(), ids_of()
        print(f"{'ms, median':>10} {'p95':>7} {'processor':>10} {'queries':>8} {'KB':>6}  page")
        good = [
            _print(client, PREFIX + page.format(**ids), page, arguments.requests)
            for page in PAGES
            if arguments.only in page
        ]
    return int(not all(good))


def _set_up() -> None:
    from benchmarks import settings as usual

    given = {name: getattr(usual, name) for name in dir(usual) if name.isupper()}
    apps = ["django.contrib.contenttypes", "django.contrib.auth", *usual.INSTALLED_APPS]
    settings.configure(**{**given, **SETTINGS, "INSTALLED_APPS": apps, "ALLOWED_HOSTS": ["*"]})
    django.setup()


def _signed_in() -> Client:
    from django.contrib.auth.models import User
    from django.test import Client

    user, _ = User.objects.get_or_create(username="anna", is_superuser=True, is_staff=True)
    client = Client()
    client.force_login(user)
    return client


def _print(client: Client, address: str, page: str, requests: int) -> bool:
    one = measure(client, address, requests)
    times = f"{1000 * one.median_seconds:10.0f} {1000 * one.seconds:7.0f}"
    times += f" {1000 * one.processor_seconds:10.0f}"
    print(f"{times} {one.queries:8} {one.size / 1000:6.1f}{' ' if one.is_good else '*'} {page}")
    sys.stdout.flush()
    return one.is_good


def measure(client: Client, address: str, requests: int) -> Measured:
    """Request a page, each time without cached figures."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from stoker.dashboard import figures

    size = len(client.get(address).content)  # once, to warm up
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        server = psutil.Process(cursor.fetchone()[0])
    before = time.process_time() + sum(server.cpu_times()[:2])
    seconds = []
    for _ in range(requests):
        figures.forget()
        began = time.perf_counter()
        response = client.get(address)
        seconds.append(time.perf_counter() - began)
        assert response.status_code == 200, (address, response.content[:2000])
    processor = (time.process_time() + sum(server.cpu_times()[:2]) - before) / requests
    figures.forget()
    with CaptureQueriesContext(connection) as captured:
        client.get(address)
    p95 = statistics.quantiles([*seconds, max(seconds)], n=20, method="inclusive")[-1]
    return Measured(statistics.median(seconds), p95, processor, len(captured), size)


def fill(jobs: int) -> None:
    """Fill an empty store with this many jobs and what belongs to them."""
    from django.db import connection

    from stoker.conf import settings_for
    from stoker.jobs.package import Package, sealer_for
    from stoker.values.ids import new_job_id

    arguments = {"order_id": 7, "note": "a note that a search reads and does not find"}
    package = Package(
        new_job_id(), "tests.app.payments.plain", (), arguments, "default", 0, time.time()
    )
    sealer, over, holder = sealer_for(settings_for()), jobs * 7 // 10, uuid4()
    words = {
        "jobs": jobs,
        "over": over,
        "every": max(7, over // MOST_LETTERS),
        "tasks": TASKS,
        "queues": QUEUES,
        "schedules": SCHEDULES,
        "now_ms": int(time.time() * 1000),
        "package": f"'\\x{sealer.seal(package).hex()}'::bytea",
        "value": f"'\\x{sealer.seal_value(3).hex()}'",
        "holder": f"'{holder}'",
    }
    text = Path(__file__).with_name("screens.sql").read_text().format(**words)
    with connection.cursor() as cursor:
        for statement in text.split(";\n"):
            if statement.strip():
                cursor.execute(statement)
    _add_schedules()
    _add_clusters(holder)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")


def _add_schedules() -> None:
    from stoker.conf import settings_for
    from stoker.models import Schedule

    Schedule.objects.bulk_create(
        Schedule(
            id=UUID(int=number),
            cluster=settings_for().cluster,
            backend="default",
            name=f"import the feeds of tenant {number}",
            task="shop.orders.tasks.task_1",
            package=b"",
            kind="interval",
            count=10,
            unit="minutes",
            anchor="2026-01-01T00:00:00",
            zone="UTC",
            moment_us=int(time.time() * 1e6),
        )
        for number in range(1, SCHEDULES + 1)
    )


def _add_clusters(holder: UUID) -> None:
    from django.utils import timezone

    from stoker.conf import settings_for
    from stoker.models import Claimed, Cluster
    from stoker.store.written import DatabaseNow

    ids = [str(pk) for pk in Claimed.objects.values_list("pk", flat=True)[: CLUSTERS * WORKERS]]
    for number in range(CLUSTERS):
        running = ids[number * WORKERS : (number + 1) * WORKERS]
        workers = [
            {
                "number": place,
                "pid": 1000 * (number + 1) + place,
                "resident_bytes": 50 << 20,
                "jobs_done": 9,
                "running": [{"job": job_id, "seconds": 3.0}],
            }
            for place, job_id in enumerate(running)
        ]
        Cluster.objects.create(
            id=uuid4() if number else holder,
            name=settings_for().cluster,
            host=f"host{number}",
            pid=100 + number,
            # A heartbeat in the future keeps it alive during the measurement.
            heartbeat_us=DatabaseNow() + 86_400_000_000,
            started_at=timezone.now(),
            info={
                "alias": "default",
                "queues": [],
                "leases": 100,
                "most_workers": 2 * WORKERS,
                "workers": workers,
            },
        )


def ids_of() -> dict[str, Any]:
    """Return what the URLs of pages name."""
    from stoker.models import (
        Blocked,
        Claimed,
        Cluster,
        DeadLetter,
        Deferred,
        GuardKey,
        Job,
        Ready,
        Workflow,
    )

    ended = {status: Job.objects.filter(status=status) for status in Job.Status}
    running = Cluster.objects.order_by("pid")[0].info["workers"][0]["running"][0]["job"]
    flows = Workflow.objects.order_by("-pk").values_list("pk", flat=True)
    return {
        **{str(status).lower(): rows.order_by("-pk")[0].pk for status, rows in ended.items()},
        "ready": Ready.objects.order_by("-pk")[0].pk,
        "deferred": Deferred.objects.order_by("-pk")[0].pk,
        "blocked": Blocked.objects.order_by("-pk")[0].pk,
        "running": running if Claimed.objects.filter(pk=running).exists() else "",
        "letter": DeadLetter.objects.order_by("-pk")[0].pk,
        "fault": DeadLetter.objects.order_by("-pk")[0].fingerprint,
        "schedule": UUID(int=1),
        "guard": GuardKey.objects.order_by("pk")[0].pk,
        "large_workflow": flows[0],
        "workflow": flows[1],
    }


if __name__ == "__main__":
    sys.exit(main())
