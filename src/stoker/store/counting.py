"""Count rows exactly if there are few, and estimate their number if there are many.

Up to ``COUNTED_ROWS`` rows are counted on every database. Larger numbers come from the planner's
estimate, which touches no rows, on databases that can return one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.models import Count, QuerySet

COUNTED_ROWS = 20_000
SAMPLED_ROWS = 20_000
"""Size of the sample that estimates how many rows have each value."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number of rows, and whether it was counted or estimated."""

    number: int
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Shares:
    """Number of rows by value of a column."""

    numbers: Mapping[str, int]
    is_exact: bool = True


def count_of(rows: QuerySet[Any]) -> Number:
    """Return the number of rows that a query finds. An index should support the query."""
    rows = rows.order_by().values("pk")
    counted = rows[: COUNTED_ROWS + 1].count()
    if counted <= COUNTED_ROWS:
        return Number(counted)
    estimate = _estimate(rows)
    if estimate is None:
        return Number(rows.count())
    return Number(max(counted, estimate), is_exact=False)


def counts_of(each: Sequence[QuerySet[Any]], limit: int) -> list[Number]:
    """Return the number of rows that each query finds, counted up to ``limit``.

    Runs one statement. An index should support each query.
    """
    if not each:
        return []
    parts, parameters = [], []
    for place, rows in enumerate(each):
        some = rows.order_by().values("pk")[: limit + 1]
        sql, given = some.query.get_compiler(rows.db).as_sql()
        parts.append(f"SELECT {place} AS place, COUNT(*) FROM ({sql}) AS counted")  # noqa: S608 - from the ORM
        parameters += given
    with connections[each[0].db].cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), parameters)
        counted = dict(cursor.fetchall())
    numbers = [int(counted[place]) for place in range(len(each))]
    return [Number(min(number, limit), is_exact=number <= limit) for number in numbers]


def shares_of(rows: QuerySet[Any], column: str) -> Shares:
    """Return how many rows have each value of a column that no index starts with."""
    total = count_of(rows)
    if total.number <= COUNTED_ROWS:
        grouped = rows.order_by().values_list(column).annotate(number=Count("pk"))
        return Shares(dict(grouped))
    sample = Counter(rows.order_by().values_list(column, flat=True)[:SAMPLED_ROWS])
    scale = total.number / max(1, sample.total())
    return Shares({value: round(n * scale) for value, n in sample.items()}, is_exact=False)


def estimated(total: int, counted: Mapping[str, int]) -> Shares:
    """Estimate how many rows have each value, when counting has stopped at a limit.

    Args:
        total: the estimated number of all rows.
        counted: value -> counted rows. The total is divided in proportion to these.
    """
    seen = max(1, sum(counted.values()))
    numbers = {value: round(n * max(seen, total) / seen) for value, n in counted.items()}
    return Shares(numbers, is_exact=False)


def estimates_of(each: Sequence[QuerySet[Any]]) -> list[int]:
    """Estimate how many rows each query finds, if there are known to be many. Runs one statement,
    unless the database has no estimates."""
    each = [rows.order_by().values("pk") for rows in each]
    branches: Sequence[Any] | None = None
    if len(each) > 1:
        plan = _plan(each[0].union(*each[1:], all=True))
        branches = _branches(plan, len(each)) if plan is not None else None
    known = [_planned_rows(one) for one in branches or ()] or [_estimate(rows) for rows in each]
    return [
        rows.count() if number is None else number for rows, number in zip(each, known, strict=True)
    ]


def _estimate(rows: QuerySet[Any]) -> int | None:
    plan = _plan(rows)
    return None if plan is None else _planned_rows(plan)


def _plan(rows: QuerySet[Any]) -> Any:
    """Return the plan of a query, or None if the database does not estimate numbers of rows."""
    if "JSON" not in connections[rows.db].features.supported_explain_formats:
        return None
    plan: Any = rows.explain(format="JSON")
    while isinstance(plan, str):  # on MySQL, Django returns a JSON string inside JSON
        plan = json.loads(plan)
    return plan


def _branches(plan: Any, number: int) -> Sequence[Any] | None:
    """Return the plans of the queries that a union consists of. The names in a plan depend on the
    database."""
    if isinstance(plan, list) and len(plan) == number > 1:
        return plan
    inner: Iterable[Any] = plan.values() if isinstance(plan, Mapping) else ()
    inner = plan if isinstance(plan, list) else inner
    found = (_branches(part, number) for part in inner if isinstance(part, Mapping | list))
    return next((part for part in found if part is not None), None)


def _planned_rows(plan: Any) -> int | None:
    """Return the first estimated number of rows in a plan. Its name in the plan depends on the
    database."""
    if isinstance(plan, Mapping):
        for name in ("Plan Rows", "rows_produced_per_join", "estimated_rows", "rows"):
            number = plan.get(name)
            if isinstance(number, int | float):
                return round(number)
        inner: Iterable[Any] = plan.values()
    else:
        inner = plan if isinstance(plan, list) else ()
    found = (_planned_rows(part) for part in inner)
    return next((number for number in found if number is not None), None)
