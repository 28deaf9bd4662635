"""Many jobs: no page reads a whole large table, makes many queries or has a large HTML.

`python -m benchmarks.screens` measures how long the same pages take.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from stoker.dashboard import figures

from benchmarks.screens import MOST_BYTES, MOST_QUERIES, PAGES, fill, ids_of
from tests.dashboard.conftest import PREFIX

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
]

JOBS = 20_000
LARGE = {
    "stoker_job",
    "stoker_ready",
    "stoker_deferred",
    "stoker_blocked",
    "stoker_need",
    "stoker_key",
    "stoker_unique",
    "stoker_attempt",
    "stoker_deadletter",
    "stoker_step",
    "stoker_workflow",
    "stoker_tick",
    "stoker_tally",
    "stoker_sample",
    "stoker_bulkoperation",
}

SEARCHED = {"stoker_job", "stoker_ready", "stoker_deferred", "stoker_blocked", "stoker_deadletter"}
BOUND = 100
"""How many rows a search looks at in the second test."""


@pytest.fixture
def many(transactional_db: None) -> Iterator[dict[str, Any]]:
    """Fill the store, and empty it faster than row by row."""
    fill(JOBS)
    yield ids_of()
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(sorted(LARGE))}, stoker_schedule, stoker_cluster")


def test_pages_read_no_large_table_fully(many: dict[str, Any], anna: Client) -> None:
    """Check PostgreSQL's plan of each query, and the number of queries and bytes of each page."""
    bad: list[Any] = []
    for path in PAGES:
        address = PREFIX + path.format(**many)
        figures.forget()
        with CaptureQueriesContext(connection) as captured:
            response = anna.get(address)
        assert response.status_code == 200, path
        queries = [query["sql"] for query in captured.captured_queries]
        # one more: why a job is blocked also says whether a cluster serves its queue
        if len(queries) > MOST_QUERIES + (path == "jobs/{blocked}/"):
            bad.append((path, f"{len(queries)} queries", [sql[:150] for sql in queries]))
        if len(response.content) > MOST_BYTES:
            bad.append((path, f"{len(response.content)} bytes"))
        bad += [(path, table, sql[:400]) for sql in queries for table in scans_of(sql)]
    assert not bad, "\n".join(map(str, bad))


def test_filters_that_match_nothing_read_a_bounded_number_of_rows(
    many: dict[str, Any], anna: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index does not help if the whole of it is read."""
    for name in (
        "inspect.jobs.LOOKED_AT",
        "inspect.jobs.COUNTED_AMONG",
        "inspect.jobs.COUNTED",
        "dead_letters.search.LOOKED_AT",
        "dead_letters.search.COUNTED_AMONG",
    ):
        monkeypatch.setattr(f"stoker.{name}", BOUND)
    read: list[Any] = []
    paths = [path for path in PAGES if "gone" in path]
    assert len(paths) > 20
    for path in paths:
        with CaptureQueriesContext(connection) as captured:
            assert anna.get(PREFIX + path).status_code == 200
        for query in captured.captured_queries:
            rows = rows_read(explained(query["sql"], "ANALYZE, "))
            read += [(path, table, n) for table, n in rows if n > 2 * BOUND and table in SEARCHED]
    assert not read, "\n".join(map(str, read))


def rows_read(node: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield each table that a plan reads, with the number of rows."""
    names = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    if "Relation Name" in node:
        yield node["Relation Name"], node["Actual Loops"] * sum(node.get(one, 0) for one in names)
    for inner in node.get("Plans", ()):
        yield from rows_read(inner)


def scans_of(sql: str) -> list[str]:
    """Return the large tables that this query reads without an index or a limit."""
    found: list[str] = []
    look(explained(sql), found, is_bounded=False)
    return found


def explained(sql: str, options: str = "") -> dict[str, Any]:
    """Return the plan of a query; empty if it is none."""
    if "SELECT" not in sql or sql.startswith("EXPLAIN"):  # estimates use EXPLAIN
        return {"Node Type": ""}
    with connection.cursor() as cursor:
        # On a small table a full scan is cheaper: what counts is that an index could be used.
        cursor.execute("SET enable_seqscan = off")
        cursor.execute(f"EXPLAIN ({options}FORMAT JSON) {sql.replace('%', '%%')}")
        plan = cursor.fetchone()[0]
        cursor.execute("RESET enable_seqscan")
    plan = json.loads(plan) if isinstance(plan, str) else plan
    found: dict[str, Any] = plan[0]["Plan"]
    return found


def look(node: dict[str, Any], found: list[str], *, is_bounded: bool) -> None:
    if node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE and not is_bounded:
        found.append(node["Relation Name"])
    # A Limit ends a scan early if it stands right above it.
    ends_early = node["Node Type"] == "Limit"
    for inner in node.get("Plans", ()):
        look(inner, found, is_bounded=ends_early)
