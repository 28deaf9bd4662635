"""Pages along the primary key of a table, with conditions that no index answers."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Q, QuerySet

from stoker.values.marks import key_of


class ScannedPage(NamedTuple):
    """A page of rows, in the order of the primary key."""

    rows: list[Any]
    next: str | None
    """Start of the next page; None = this is the last page."""
    is_cut: bool
    """Whether rows that were not read may match as well."""


def scan(
    rows: QuerySet[Any],
    condition: Q,
    limit: int,
    after: str,
    *,
    most: int,
    newest_first: bool = False,
) -> ScannedPage:
    """Return the next rows that meet a condition.

    Args:
        limit: maximum number of rows.
        after: ``ScannedPage.next`` of the previous page.
        most: maximum number of rows to read if there is a condition.

    Raises:
        ValueError: ``after`` is invalid.
    """
    sign, beyond, within = ("-", "lt", "gte") if newest_first else ("", "gt", "lte")
    rows = rows.order_by(f"{sign}pk")
    if after:
        rows = rows.filter(**{f"pk__{beyond}": key_of(after, [UUID])[0]})
    edge = None
    if condition:
        edge = rows.values_list("pk", flat=True)[most : most + 1].first()
        rows = rows.filter(condition)
        rows = rows if edge is None else rows.filter(**{f"pk__{within}": edge})
    found = list(rows[: limit + 1])
    if len(found) > limit:
        return ScannedPage(found[:limit], str(found[limit - 1].pk), is_cut=False)
    return ScannedPage(found, edge and str(edge), is_cut=edge is not None)
