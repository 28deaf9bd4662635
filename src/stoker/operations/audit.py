"""The history of operations: user, operation, targets, time and reason."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db.models import Q
from django.http import HttpRequest, StreamingHttpResponse
from django.utils import timezone

from stoker.conf import Settings
from stoker.inspect.scan import scan
from stoker.models import BulkOperation
from stoker.store.engines.sessions import explained
from stoker.values.ids import first_id_at
from stoker.values.marks import bounds_of

from .bulk_walk import BY_NAME
from .table import OPERATIONS

SCANNED = 10_000
"""Maximum number of operations that a page with a filter reads."""
MOST_EXPORTED = 10_000
EXPORTED_AT_ONCE = 500
MOST_LOOKS = 200
"""Maximum number of pages that an export reads."""
COLUMNS = (
    "at", "by", "operation", "target", "matched", "done", "refused", "state", "because", "backend",
    "id",
)  # fmt: skip
TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl"}
"""Format of an export -> its content type."""
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of texts that spreadsheets execute as formulas."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """A filter of operations; "" = any."""

    by: str = ""
    operation: str = ""
    """A name, such as ``pause-queue``."""
    text: str = ""
    """Text in the target or in the reason."""
    since: datetime | None = None
    until: datetime | None = None

    @property
    def condition(self) -> Q:
        """Return the condition that no index covers."""
        condition = Q()
        if self.by:
            condition &= Q(by__iexact=self.by)
        if self.operation:
            condition &= Q(operation=self.operation)
        if self.text:
            by_target = Q(filters__target__icontains=self.text)
            by_target |= Q(filters__workflow__icontains=self.text)
            condition &= by_target | Q(because__icontains=self.text)
        return condition


class AuditEntry(NamedTuple):
    """One operation as the audit page shows it."""

    row: BulkOperation
    title: str
    """The label of the operation's button, such as ``Pause``."""
    kind: str
    """Kind of the target: ``queue``, ``job``, ...; "" = the operation belongs to a newer
    version."""
    target: str
    """Name or id of the target; if there are several, the filters that found them."""
    is_bulk: bool
    """Whether this is a bulk operation, which has a page with its progress."""


class AuditPage(NamedTuple):
    """A page of operations, the newest first."""

    entries: list[AuditEntry]
    next: str | None
    """Start of the next page; None = this is the last page."""
    is_cut: bool
    """Whether operations that were not read may match as well."""


def filter_of(given: Mapping[str, str]) -> AuditFilter:
    """Return the filter in a query string.

    Raises:
        ValueError: ``since`` or ``until`` is not a valid moment.
    """
    since, until = bounds_of(given)
    return AuditFilter(
        by=given.get("by", "").strip()[:150],
        operation=given.get("operation", "")[:50],
        text=given.get("q", "").strip()[:255],
        since=since,
        until=until,
    )


def find(settings: Settings, wanted: AuditFilter, limit: int, after: str = "") -> AuditPage:
    """Return a page of operations.

    Args:
        limit: maximum number.
        after: ``AuditPage.next`` of the previous page.

    Raises:
        ValueError: ``after`` is invalid.
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    rows = BulkOperation.objects.using(settings.database).filter(backend=settings.alias)
    if wanted.since is not None:
        rows = rows.filter(pk__gte=first_id_at(wanted.since.timestamp()))
    if wanted.until is not None:
        rows = rows.filter(pk__lt=first_id_at(wanted.until.timestamp()))
    with explained(settings.database):
        page = scan(rows, wanted.condition, limit, after, most=SCANNED, newest_first=True)
    return AuditPage([_entry(row) for row in page.rows], page.next, page.is_cut)


def exported(settings: Settings, wanted: AuditFilter, form: str) -> Iterator[str]:
    """Yield the newest operations as text: at most ``MOST_EXPORTED``, read in small batches.

    Args:
        form: "csv" or "jsonl".
    """
    write = _csv_line if form == "csv" else _json_line
    if form == "csv":
        yield _csv_line({name: name for name in COLUMNS})
    after: str | None = ""
    left = MOST_EXPORTED
    for _ in range(MOST_LOOKS):
        page = find(settings, wanted, min(left, EXPORTED_AT_ONCE), after or "")
        lines = [write(plain(one)) for one in page.entries]
        yield "".join(lines)
        left, after = left - len(lines), page.next
        if after is None or not left:
            return


def export_response(
    request: HttpRequest, settings: Settings, wanted: AuditFilter, form: str
) -> StreamingHttpResponse:
    """Return an export as a response. It is read in small batches, while it is sent."""
    texts = exported(settings, wanted, form)
    is_asynchronous = isinstance(request, ASGIRequest)
    response = StreamingHttpResponse(
        _awaited(texts) if is_asynchronous else texts, content_type=TYPES[form]
    )
    response.headers["Content-Disposition"] = f'attachment; filename="stoker-audit.{form}"'
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


async def _awaited(texts: Iterator[str]) -> AsyncIterator[str]:
    while (text := await sync_to_async(_next)(texts)) is not None:
        yield text


def _next(texts: Iterator[str]) -> str | None:
    return next(texts, None)


def plain(entry: AuditEntry) -> dict[str, Any]:
    """Return the values of an operation as an export has them."""
    at = entry.row.started_at
    at = at if timezone.is_aware(at) else timezone.make_aware(at)
    converted = {"at": at.isoformat(), "target": entry.target, "id": str(entry.row.pk)}
    return {
        name: converted[name] if name in converted else getattr(entry.row, name) for name in COLUMNS
    }


def _entry(row: BulkOperation) -> AuditEntry:
    operation = OPERATIONS.get(row.operation)
    title = operation.title if operation else row.operation
    kind = operation.target if operation else ""
    if "target" in row.filters:
        return AuditEntry(row, title, kind, str(row.filters["target"]), is_bulk=False)
    is_known = row.operation in BY_NAME
    if row.undoes is not None:
        return AuditEntry(row, f"Undo: {title}", kind, "those it changed", is_bulk=is_known)
    return AuditEntry(row, title, kind, _found_by(row.filters), is_bulk=is_known)


def _found_by(filters: Mapping[str, Any]) -> str:
    if "ids" in filters:
        return f"{len(filters['ids']):,} chosen"
    return ", ".join(f"{name}={value}" for name, value in filters.items()) or "all"


def _json_line(values: Mapping[str, Any]) -> str:
    return f"{json.dumps(values, ensure_ascii=False)}\n"


def _csv_line(values: Mapping[str, Any]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(map(_field, values.values()))
    return line.getvalue()


def _field(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(FORMULAS):
        return f"'{value}"
    return value
