"""PostgreSQL's plans for every page with many jobs: few statements, and none reads a whole
large table.

``STOKER_TEST_SCREEN_JOBS=1000000`` fills the store with that many jobs, and checks that each page
takes less than 200 ms.
"""

import os
import re
import time
from collections.abc import Iterator

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from stoker.models import Attempt, Blocked, Claimed, DeadLetter, Deferred, Job, Ready

from tests.admin.conftest import Visitor
from tests.seed import empty, fill

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

JOBS = int(os.environ.get("STOKER_TEST_SCREEN_JOBS", "0"))
FEW_JOBS = 30_000
MOST_QUERIES = 15
MOST_SECONDS = 0.2
LARGE = (Job, Attempt, DeadLetter, Ready)


@pytest.fixture
def filled(anna: Visitor) -> Iterator[Visitor]:
    fill(JOBS or FEW_JOBS)
    yield anna
    empty()


def pages() -> list[str]:
    """Return the path of every page, with every filter."""
    ids = {
        "failed": Job.objects.filter(status="FAILED").order_by("-pk")[0].pk,
        "successful": Job.objects.filter(status="SUCCESSFUL").order_by("-pk")[0].pk,
        "ready": Ready.objects.order_by("-pk")[0].pk,
        "deferred": Deferred.objects.order_by("-pk")[0].pk,
        "blocked": Blocked.objects.order_by("-pk")[0].pk,
        "running": Claimed.objects.order_by("-pk")[0].pk,
    }
    letter = DeadLetter.objects.filter(state="open").order_by("-pk")[0].pk
    lists = ["", "?q=nothing.like.it", "?task=shop.tasks.task_3", "?queue=queue_3", "?q=key:feed"]
    states = ("READY", "DEFERRED", "BLOCKED", "RUNNING", "SUCCESSFUL", "FAILED", "CANCELLED")
    lists += [f"?state={state}" for state in states]
    lists += [f"?state={state}&queue=queue_1&task=shop.tasks.task_1" for state in states]
    letters = ["", "?state=all", "?state=discarded", "?task=shop.tasks.task_7", "?text=nothing"]
    letters += ["?queue=queue_7", "?fingerprint=abc", "?reason=crash", "?key=feed", "faults/"]
    return [
        *(f"job/{one}" for one in lists),
        *(f"job/{one}/change/" for one in ids.values()),
        *(f"job/{one}/why/" for one in ids.values()),
        *(f"deadletter/{one}" for one in letters),
        f"deadletter/{letter}/change/",
        f"deadletter/{letter}/edit/",
        "pausedqueue/",
        "cluster/",
        "schedule/",
        "schedule/schedule 7/change/",
        "schedule/schedule 7/edit/",
        "schedule/add/",
    ]


def test_pages_make_few_queries_and_no_full_scans(filled: Visitor) -> None:
    wrong = []
    told = []
    for page in pages():
        filled.get(page)  # fills what is cached in a process
        with CaptureQueriesContext(connection) as captured:
            shown = filled.get(page)
        queries = [one["sql"] for one in captured.captured_queries]  # before the next request
        assert queries, page
        seconds = min(seconds_of(filled, page) for _ in range(5)) if JOBS else 0
        told.append(f"{seconds * 1000:6.0f} ms {len(queries):3} queries  {page}")
        if len(queries) >= MOST_QUERIES:
            wrong.append(f"{page} asks {len(queries)} times:\n" + "\n".join(queries))
        if JOBS and seconds > MOST_SECONDS:
            wrong.append(f"{page} takes {seconds:.3f} s")
        wrong += [f"{page} writes: {sql}" for sql in queries if not is_read_only(sql)]
        wrong += [f"{page}: {text}" for sql in queries for text in whole_tables(sql)]
        assert "Stoker" in shown
    print("\n".join(told))
    assert not wrong, "\n\n".join(wrong)


def seconds_of(visitor: Visitor, page: str) -> float:
    """Return how long the whole answer takes. The minimum of several is the cost of the page, the
    rest is the load of the machine."""
    began = time.perf_counter()
    visitor.get(page)
    return time.perf_counter() - began


def whole_tables(sql: str) -> list[str]:
    """Return the large tables that this statement can only read by a full scan."""
    sql = re.sub("^DECLARE .* CURSOR WITH HOLD FOR ", "", sql)
    if "stoker_" not in sql:
        return []
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        cursor.execute("EXPLAIN " + sql)
        plan = "\n".join(row[0] for row in cursor.fetchall())
        cursor.execute("RESET enable_seqscan")
    names = [model._meta.db_table for model in LARGE]
    return [f"reads all of {one}:\n{sql}\n{plan}" for one in names if f"Seq Scan on {one}" in plan]


def is_read_only(sql: str) -> bool:
    """Return whether the statement writes nothing."""
    text = re.sub("^(-- .*\n)*", "", sql)
    return text.startswith(("SELECT", "WITH", "(SELECT", "DECLARE", "EXPLAIN", "SET", "RESET"))
