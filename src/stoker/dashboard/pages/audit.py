"""The history of operations: user, operation, targets, time and reason; with an export."""

from __future__ import annotations

from typing import Any

from django.http import StreamingHttpResponse

from stoker.dashboard.context import DashboardContext
from stoker.dashboard.menus import AGES
from stoker.dashboard.views import PageContent, PageRefused, enclosed, page
from stoker.operations import audit, bulk
from stoker.operations.audit import AuditEntry
from stoker.operations.table import OPERATIONS
from stoker.values.ids import parse_job_id

ON_A_PAGE = 50
FILTERS = ("by", "operation", "q", "since", "until")
PAGES = {
    "job": "job", "letter": "dead-letter", "workflow": "workflow", "guard": "guard", "bulk": "bulk",
    "step": "job",  # a step has the id of its first job
}  # fmt: skip
"""Kind of target -> the page that shows the target with this id."""


@page(bulk.VIEW)
def show(visit: DashboardContext) -> PageContent:
    """Return a page of operations, the newest first."""
    given = visit.request.GET
    wanted = audit.filter_of(given.dict())
    found = audit.find(visit.settings, wanted, ON_A_PAGE, given.get("after", ""))
    filters = {name: given[name] for name in FILTERS if given.get(name)}
    context = {
        "entries": [_shown(visit, one) for one in found.entries],
        "given": given.dict(),
        "is_filtered": bool(filters),
        "is_narrowed": bool(filters.keys() - {"q"}),
        "operations": sorted((one.name, _words(one.name)) for one in OPERATIONS.values()),
        "ages": AGES,
        "is_cut": found.is_cut,
        "exports": [
            (name, visit.at("export-audit", **{"format": name, **filters})) for name in audit.TYPES
        ],
        **visit.paging(found.next),
    }
    return PageContent("audit", context)


def _export(visit: DashboardContext) -> StreamingHttpResponse:
    given = visit.request.GET
    form = given.get("format", "csv")
    if form not in audit.TYPES:
        raise PageRefused(400, f"There is no format {form[:50]!r}: write csv or jsonl.")
    wanted = audit.filter_of(given.dict())
    return audit.export_response(visit.request, visit.settings, wanted, form)


export: Any = enclosed(_export, ("GET", "HEAD"), bulk.VIEW)


def _shown(visit: DashboardContext, entry: AuditEntry) -> dict[str, Any]:
    thing = _thing(entry.kind)
    return {
        "is": entry,
        "row": entry.row,
        "address": _address(visit, entry),
        "what": f"{thing}s: {entry.target}" if entry.is_bulk else f"{thing} {entry.target}".strip(),
    }


def _address(visit: DashboardContext, entry: AuditEntry) -> str:
    """Return the URL of the page of the changed target; "" = there is none."""
    if entry.is_bulk:
        return visit.at("bulk", entry.row.pk)
    if entry.kind == "queue" and entry.row.done:
        return visit.at("queue", name=entry.target)
    target = parse_job_id(entry.target)
    return visit.at(PAGES[entry.kind], target) if entry.kind in PAGES and target else ""


def _words(name: str) -> str:
    """Return ``Pause: queue`` for ``pause-queue``."""
    return f"{OPERATIONS[name].title}: {_thing(OPERATIONS[name].target)}"


def _thing(kind: str) -> str:
    return {"letter": "dead letter", "bulk": "bulk operation"}.get(kind, kind)
