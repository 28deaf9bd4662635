"""How the cost of a job grows with what the store holds: `python -m benchmarks.scale`.

For each kind of content (finished jobs kept, queues, deferred jobs, jobs blocked on 1,000 keys,
schedules) and each of some sizes, the same work is done on PostgreSQL: jobs are enqueued one by one
and in bulk, claimed 100 at a time, recorded as successful, and due schedules are fired. It prints
the time, and the pages that PostgreSQL read or found in its cache, for each job or tick. The pages
do not depend on the machine and its load.

A curve `cost = a * size^b` is fitted to the pages of each step. b is about 0 where the size does
not matter, and 1 where the cost is in proportion to it. The table with the most pages is named.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import django

from benchmarks.databases import database

if TYPE_CHECKING:
    from django.db.models import Model

    from stoker.models.job import Message

WORK = 1_000
"""Jobs in a round."""
BATCH = 100
KEYS = 1_000
DUE = 50
"""Schedules that are due in a round."""
SIZES = {
    "finished": (100_000, 1_000_000, 10_000_000),
    "queues": (10, 100, 1_000),
    "deferred": (10_000, 100_000, 1_000_000),
    "blocked": (10_000, 100_000, 1_000_000),
    "schedules": (100, 1_000, 10_000),
}
STEPS = ("enqueue", "enqueue in bulk", "claim", "record", "fire")
FLAT = 0.1
"""Below this exponent a step counts as independent of the size."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--contents", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--sizes", type=int, nargs="+", help="instead of those of each content")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with database("postgres") as store:
        os.environ["STOKER_BENCH_DATABASE"] = json.dumps(store.entry)
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        django.setup()
        from django.conf import settings
        from django.core.management import call_command

        settings.TASKS["default"]["QUEUES"] = []  # any name
        call_command("migrate", verbosity=0)
        found = {
            content: {
                size: _measure(content, size, arguments.rounds)
                for size in arguments.sizes or SIZES[content]
            }
            for content in arguments.contents
        }
    if arguments.json:
        print(json.dumps(_as_json(found), indent=2))
    else:
        for content, by_size in found.items():
            print(_table(content, by_size))
    return 0


@contextmanager
def _connected_like_a_cluster() -> Iterator[None]:
    from django.db import connection

    from stoker.conf import settings_for
    from stoker.store.statements import set_deadlines

    before = connection.settings_dict
    connection.close()
    connection.settings_dict = deepcopy(before)
    set_deadlines(settings_for(), keeps_statements=True)
    yield
    connection.close()
    connection.settings_dict = before


# -- what the store holds -------------------------------------------------------------------------


def _fill(content: str, size: int) -> None:
    from stoker.models import Blocked, Deferred, GuardKey, Job, Need, Schedule
    from stoker.store.written import DatabaseNow

    from benchmarks.tasks import clock

    job_id = "lpad(to_hex(n), 32, '0')::uuid"
    key_id = f"md5(mod(n, {KEYS})::text)::uuid"
    in_a_year = DatabaseNow() + 365 * 86_400 * 1_000_000
    if content in ("finished", "deferred", "blocked"):
        job = Job.objects.get(pk=clock.enqueue().id)
        if content == "finished":
            finished = {"status": "'SUCCESSFUL'", "finished_at": "now() - n * interval '1 ms'"}
            _multiply(job, size, id=job_id, **finished)
        else:
            _multiply(job, size, id=job_id)
        _clear(job.pk)
    if content == "deferred":
        row = Deferred.objects.create(job_id=uuid.uuid4(), due_us=in_a_year, queue="default")
        _multiply(row, size, job_id=job_id, due_us="t.due_us + n")
        row.delete()
    if content == "blocked":
        key = GuardKey.objects.create(id=uuid.uuid4(), kind="lock", name="feed", has_line=True)
        need = Need.objects.create(
            id=uuid.uuid4(), job_id=uuid.uuid4(), key_id=key.pk, kind="lock", name="feed"
        )
        row = Blocked.objects.create(
            job_id=need.job_id, key_id=key.pk, queue="default", guards=1, since_us=0
        )
        _multiply(key, KEYS, id=key_id)
        _multiply(need, size, id="gen_random_uuid()", job_id=job_id, key_id=key_id)
        _multiply(row, size, job_id=job_id, key_id=key_id)
        # A job that runs holds each key.
        held = {"job_id": "gen_random_uuid()", "holds": key_id, "key_id": key_id}
        _multiply(need, KEYS, id="gen_random_uuid()", **held)
        for one in (key, need, row):
            one.delete()
    if content == "schedules":
        _schedule("far")
        row = Schedule.objects.get(name="far")
        _multiply(row, size, id="gen_random_uuid()", name="'far ' || n")


def _multiply(row: Model, count: int, **columns: str) -> None:
    """Insert copies of a row. The given columns are SQL expressions of the number ``n``."""
    from django.db import connection

    names = [one.column for one in row._meta.local_concrete_fields]
    values = [columns.get(name, f"t.{name}") for name in names]
    table, key = row._meta.db_table, row._meta.pk
    assert key is not None
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)}"
            f" FROM {table} t, generate_series(1, %s) n WHERE t.{key.column} = %s",
            [count, row.pk],
        )


def _clear(job_id: uuid.UUID) -> None:
    from stoker.models import Job, Ready

    Job.objects.filter(pk=job_id).delete()
    Ready.objects.filter(pk=job_id).delete()


def _schedule(name: str) -> None:
    from stoker import schedules
    from stoker.tasks.schedules import every

    from benchmarks.tasks import clock

    schedules.create(name, clock, every(weeks=50))


# -- the work -------------------------------------------------------------------------------------


@dataclass
class Cost:
    """What a step cost, for each job or tick, in each round."""

    microseconds: list[float] = field(default_factory=list)
    pages: list[float] = field(default_factory=list)
    by_table: dict[str, float] = field(default_factory=dict)
    """Table -> pages in the last round."""


def _measure(content: str, size: int, rounds: int) -> dict[str, Cost]:
    """Fill the store, do the work, and return the cost of each step."""
    from django.db import connection

    _empty()
    _fill(content, size)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    costs = {step: Cost() for step in STEPS}
    queues = [f"queue {number}" for number in range(size)] if content == "queues" else ["default"]
    with _connected_like_a_cluster():
        for _ in range(rounds + 1):  # the first one fills caches
            _do_round(costs, queues, fires=content == "schedules")
    for cost in costs.values():
        del cost.microseconds[:1], cost.pages[:1]
    return {step: cost for step, cost in costs.items() if cost.pages}


def _do_round(costs: Mapping[str, Cost], queues: Sequence[str], *, fires: bool) -> None:
    from stoker.brokers.adapters import broker_for
    from stoker.brokers.contract import ClaimRequest
    from stoker.conf import settings_for
    from stoker.jobs.outcomes import Attempted, Succeeded
    from stoker.jobs.record import finish

    from benchmarks.tasks import clock

    settings, holder = settings_for(), uuid.uuid4()
    broker = broker_for(settings)
    tasks = [clock.using(queue_name=queue) for queue in queues[:BATCH]]
    with _counted(costs["enqueue"], BATCH):
        for number in range(BATCH):
            tasks[number % len(tasks)].enqueue()
    messages = [_message(queues[number % len(queues)]) for number in range(WORK)]
    with _counted(costs["enqueue in bulk"], WORK):
        broker.enqueue(messages)
    deliveries = []
    with _counted(costs["claim"], WORK + BATCH):
        while got := broker.claim(ClaimRequest(BATCH, holder, 600.0)):
            deliveries.append(got)
    ended = time.time()
    with _counted(costs["record"], WORK + BATCH):
        for some in deliveries:
            finish(
                settings,
                broker,
                [Attempted(one, Succeeded(b""), "a.1.1", ended, ended) for one in some],
            )
    if fires:
        _fire(costs["fire"])


def _message(queue: str) -> Message:
    from stoker.models.job import Message
    from stoker.values.ids import new_job_id

    return Message(
        new_job_id(), "benchmarks.tasks.clock", queue, 0, b"p" * 200, None, time.time(), ()
    )


def _fire(cost: Cost) -> None:
    from stoker.brokers.adapters import broker_for
    from stoker.conf import settings_for
    from stoker.models import Ready, Schedule
    from stoker.schedules.ticking import Ticks
    from stoker.store.written import DatabaseNow

    settings = settings_for()
    ticks = Ticks(settings, broker_for(settings), uuid.uuid4(), lambda: None, lambda _: False)
    for _ in range(2):  # the first turns read all schedules, to store those that are declared
        ticks.run_once()
    for number in range(DUE):
        _schedule(f"due {number}")
    due = Schedule.objects.filter(name__startswith="due")
    due.update(due_us=DatabaseNow() - 200_000, moment_us=DatabaseNow() - 200_000)
    with _counted(cost, DUE):
        while due.filter(fired_count=0).exists():
            ticks.run_once()
    due.delete()
    Ready.objects.all().delete()


@contextmanager
def _counted(cost: Cost, number: int) -> Iterator[None]:
    """Count the time and the pages of the block, for each of ``number`` jobs."""
    before = _pages()
    began = time.perf_counter()
    yield
    seconds = time.perf_counter() - began
    after = _pages()
    cost.by_table = {name: (after[name] - before[name]) / number for name in after}
    cost.microseconds.append(seconds / number * 1e6)
    cost.pages.append(sum(cost.by_table.values()))


def _pages() -> dict[str, int]:
    """Return how many pages of each table and its indexes were used until now."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT relname, heap_blks_hit + heap_blks_read"
            " + coalesce(idx_blks_hit + idx_blks_read, 0)"
            " FROM pg_statio_user_tables WHERE relname LIKE 'stoker%'"
        )
        return dict(cursor.fetchall())


def _empty() -> None:
    from django.apps import apps
    from django.db import connection

    tables = [model._meta.db_table for model in apps.get_app_config("stoker").get_models()]
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(tables)}")


# -- what it shows --------------------------------------------------------------------------------


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return b of the curve ``a * size^b`` that fits best (least squares of the logarithms)."""
    points = [
        (math.log(size), math.log(max(cost, 1e-9))) for size, cost in zip(sizes, costs, strict=True)
    ]
    if len(points) < 2:
        return 0.0
    slope, _ = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    return slope


def _table(content: str, by_size: Mapping[int, Mapping[str, Cost]]) -> str:
    sizes = list(by_size)
    head = f"| {content} | " + " | ".join(f"{size:,}" for size in sizes) + " | b | most pages |"
    lines = [head, "| --- |" + " --- |" * (len(sizes) + 2)]
    for step in by_size[sizes[0]]:
        costs = [by_size[size][step] for size in sizes]
        pages = [statistics.median(cost.pages) for cost in costs]
        cells = [
            f"{statistics.median(cost.microseconds):,.0f} us, {some:,.1f}"
            for cost, some in zip(costs, pages, strict=True)
        ]
        b = exponent(sizes, pages)
        name, most = max(costs[-1].by_table.items(), key=lambda one: one[1])
        cells += [f"{b:.2f}" if b >= FLAT else "0", f"`{name}` {most:,.1f}"]
        lines.append(f"| {step} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _as_json(found: Mapping[str, Mapping[int, Mapping[str, Cost]]]) -> dict[str, Any]:
    return {
        content: {
            step: {
                "sizes": list(by_size),
                "microseconds": [
                    statistics.median(one[step].microseconds) for one in by_size.values()
                ],
                "pages": [statistics.median(one[step].pages) for one in by_size.values()],
                "exponent": exponent(
                    list(by_size), [statistics.median(one[step].pages) for one in by_size.values()]
                ),
            }
            for step in next(iter(by_size.values()))
        }
        for content, by_size in found.items()
    }


if __name__ == "__main__":
    sys.exit(main())
