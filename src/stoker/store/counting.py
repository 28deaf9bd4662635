"""How many rows there are, without a look at every one of very many.

Up to ``COUNTED_ROWS`` rows are counted, whatever the database. Beyond that its planner is asked,
where it can be: it knows about how many without touching them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.models import Count, QuerySet

COUNTED_ROWS = 100_000
SAMPLED_ROWS = 20_000
"""From so many rows the shares of a larger number are taken."""


@dataclass(frozen=True, slots=True)
class Number:
    """How many, and whether they were counted or estimated."""

    number: int
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Shares:
    """How many of each value."""

    numbers: Mapping[str, int]
    is_exact: bool = True


def count_of(rows: QuerySet[Any]) -> Number:
    """How many rows a query finds; it should do so by an index."""
    rows = rows.order_by().values("pk")
    counted = rows[: COUNTED_ROWS + 1].count()
    if counted <= COUNTED_ROWS:
        return Number(counted)
    estimate = _estimate(rows)
    if estimate is None:
        return Number(rows.count())
    return Number(max(counted, estimate), is_exact=False)


def shares_of(rows: QuerySet[Any], column: str) -> Shares:
    """How many rows have each value of a column that no index begins with."""
    total = count_of(rows)
    if total.number <= COUNTED_ROWS:
        grouped = rows.order_by().values_list(column).annotate(number=Count("pk"))
        return Shares(dict(grouped))
    sample = Counter(rows.order_by().values_list(column, flat=True)[:SAMPLED_ROWS])
    scale = total.number / max(1, sample.total())
    return Shares({value: round(n * scale) for value, n in sample.items()}, is_exact=False)


def estimated(rows: QuerySet[Any], counted: Mapping[str, int]) -> Shares:
    """How many rows have each value, where counting has ended at a limit for all together.

    Args:
        rows: all of them.
        counted: value -> how many were counted; what is left is shared out in this proportion.
    """
    seen = max(1, sum(counted.values()))
    total = max(seen, estimate_of(rows))
    numbers = {value: round(number * total / seen) for value, number in counted.items()}
    return Shares(numbers, is_exact=False)


def estimate_of(rows: QuerySet[Any]) -> int:
    """About how many rows a query finds, where it is known that there are very many."""
    rows = rows.order_by().values("pk")
    estimate = _estimate(rows)
    return rows.count() if estimate is None else estimate


def _estimate(rows: QuerySet[Any]) -> int | None:
    if "JSON" not in connections[rows.db].features.supported_explain_formats:
        return None
    plan: Any = rows.explain(format="JSON")
    while isinstance(plan, str):  # on MySQL, Django puts JSON into JSON
        plan = json.loads(plan)
    return _planned_rows(plan)


def _planned_rows(plan: Any) -> int | None:
    """The first number of rows in a plan: each database has its own word for it."""
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
