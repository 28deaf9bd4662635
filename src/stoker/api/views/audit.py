"""The history of operations: list and export."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from django.http import HttpRequest
from ninja import Query
from pydantic import Field

from stoker.api.access import Routes
from stoker.api.filters import Body, Mark, PageLimit
from stoker.api.shapes import PlainText, Shape
from stoker.api.values import Backend, Moment, cursor_of, mark_of, settings_of
from stoker.operations import audit, bulk
from stoker.operations.audit import AuditFilter

routes = Routes(tags=["audit"])


class AuditQuery(Body):
    """Filters of operations. A filter that is left out matches all."""

    by: Annotated[str, Field(max_length=150)] = ""
    """The user who performed the operation."""
    operation: Annotated[str, Field(max_length=50)] = ""
    """The name of the operation, such as `pause-queue`."""
    q: Annotated[str, Field(max_length=255)] = ""
    """Text in the target or in the reason."""
    since: Moment | None = None
    until: Moment | None = None

    def wanted(self) -> AuditFilter:
        """Return the filter."""
        names = ("by", "operation", "since", "until")
        return AuditFilter(text=self.q, **{name: getattr(self, name) for name in names})


class AuditPageQuery(AuditQuery):
    """Filters of a page of operations."""

    limit: PageLimit = 50
    after: Mark | None = None
    """`next` of the previous page."""


class AuditExportQuery(AuditQuery):
    """Filters of an export, and its format."""

    format: Literal["csv", "jsonl"] = "csv"


class AuditEntryShape(Shape):
    """One operation of an operator."""

    id: UUID
    at: datetime
    by: str
    """The user, or the value of `--by` of a command."""
    operation: str
    """The name of the operation, such as `pause-queue`."""
    target: PlainText
    """Name or id of the target. For operations on many: the filters that found them."""
    matched: int
    """Number of targets that were found."""
    done: int
    """Number of targets that were changed."""
    refused: int
    state: str
    """`done`; for operations on many that have not ended, the state of the bulk operation."""
    because: PlainText
    backend: str


class AuditPageShape(Shape):
    """A page of operations, the newest first."""

    operations: list[AuditEntryShape]
    next: str | None
    """Pass it as `after` to get the next page; null on the last page."""
    is_cut: bool
    """Whether older operations may match that were not searched yet. `next` continues there."""


@routes.show("/audit", bulk.VIEW, AuditPageShape)
def list_operations(
    request: HttpRequest, wanted: Query[AuditPageQuery], backend: Backend = None
) -> Any:
    """List a page of the operations of the dashboard, the admin, the API and the commands."""
    settings, mark = settings_of(backend), mark_of(wanted.after)
    page = audit.find(settings, wanted.wanted(), wanted.limit, mark or "")
    entries = [audit.plain(one) for one in page.entries]
    return {"operations": entries, "next": cursor_of(page.next), "is_cut": page.is_cut}


@routes.export("/audit/export", bulk.VIEW, audit.TYPES)
def export_operations(
    request: HttpRequest, wanted: Query[AuditExportQuery], backend: Backend = None
) -> Any:
    """Export the newest 10,000 operations that match, as CSV or JSON lines."""
    return audit.export_response(request, settings_of(backend), wanted.wanted(), wanted.format)
