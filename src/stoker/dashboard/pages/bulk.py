"""Bulk operations: the preview, the progress of each, and the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.http import HttpResponse, HttpResponseRedirect

from stoker.dashboard.context import DashboardContext
from stoker.dashboard.views import (
    PageContent,
    PageRefused,
    enclosed,
    page,
    perform_on_target,
    require,
)
from stoker.models import BulkOperation
from stoker.operations import bulk, bulk_walk, steps
from stoker.operations.dead_letters import REQUEUE
from stoker.operations.details import REVEAL
from stoker.operations.jobs import CANCEL
from stoker.operations.operation import Done, Operation
from stoker.operations.waiting_jobs import EDIT
from stoker.store.counting import Number
from stoker.store.engines.sessions import explained

ON_A_PAGE = 30
REFUSALS = 50
SAMPLES = 5
KINDS = {"job": bulk_walk.ON_JOBS, "letter": bulk_walk.ON_LETTERS, "step": (steps.RETRY,)}
ANY = {"job": CANCEL, "letter": REQUEUE, "step": steps.RETRY}
"""Kind of target -> an operation without options, which is used to find the targets."""
EDITS = {"job": EDIT, "letter": REQUEUE, "step": None}
"""Kind of target -> the operation that changes arguments."""
TARGETS = {"job": "job", "letter": "open dead letter", "step": "step"}
LISTS = {"job": "jobs", "letter": "dead-letters", "step": "workflows"}


@page(bulk.VIEW)
def show(visit: DashboardContext) -> PageContent:
    """Return the bulk operations, the newest first."""
    with explained(visit.database):
        found = bulk.find(visit.settings, ON_A_PAGE, visit.request.GET.get("after", ""))
    context = {"rows": [_shown(row) for row in found.rows], "is_cut": found.is_cut}
    return PageContent("bulk_operations", {**context, **visit.paging(found.next)})


@page(bulk.VIEW)
def show_one(visit: DashboardContext, bulk_id: UUID) -> PageContent:
    """Return one bulk operation: its progress, and the targets that it did not change."""
    with explained(visit.database):
        row = bulk.get(visit.settings, bulk_id)
        operation = bulk_walk.BY_NAME[row.operation]
        context = {
            **_shown(row),
            "sentence": bulk.sum_up(visit.settings, row).sentence,
            "refusals": bulk.refusals_of(visit.settings, row, REFUSALS),
            "can_undo": bulk.can_undo(visit.settings, row),
            "may_change": visit.may(operation.permission),
            "targets": "dead-letter" if operation.target == "letter" else "job",
        }
    return PageContent("bulk", context)


@page(bulk.VIEW)
def show_new(visit: DashboardContext) -> PageContent:
    """Return the operations that can be performed on all matching targets, with a preview."""
    given = visit.request.GET
    kind = given.get("kind", "job")
    if kind not in KINDS:
        raise PageRefused(400, f"There is no kind {kind!r}.")
    may = [one for one in KINDS[kind] if visit.may(one.permission)]
    if not may:
        require(visit, KINDS[kind][0].permission)
    filters = bulk.given_filters(given)
    require_to_search(visit, kind, filters)
    may_view = visit.may(bulk.VIEW_TARGETS[kind])
    text = given.get("arguments", "")
    with explained(visit.database):
        try:
            operation = (EDITS[kind] if text.strip() else None) or ANY[kind]
            row = bulk.preview(visit.operator, operation, filters, {"arguments": text})
            samples = []
            if may_view:
                samples = bulk_walk.samples_of(
                    visit.settings, row, SAMPLES, reveal=visit.may(REVEAL)
                )
        except ValueError as error:
            raise PageRefused(400, str(error)) from None
        notice = bulk.broker_notice(visit.settings, row)
    number = Number(row.matched, is_exact=row.is_counted)
    words = bulk.number_in_words(number, TARGETS[kind])
    context = {
        "row": row,
        "heading": f"{words[0].upper()}{words[1:]}",
        "is_none": number == Number(0),
        "may_view": may_view,
        "broker_notice": notice,
        "kind": kind,
        "operations": [one for one in may if one is not EDIT or text.strip()],
        "edits": EDITS[kind] if EDITS[kind] in may else None,
        "filters": filters.items(),
        "samples": samples,
        "arguments": text,
        "back": visit.at(LISTS[kind], **filters),
    }
    return PageContent("new_bulk", context)


def _start(visit: DashboardContext) -> HttpResponse:
    """Start an operation on all matching targets, and show its progress."""
    post = visit.request.POST
    operation = bulk_walk.BY_NAME.get(post.get("operation", ""))
    if operation is None:
        raise PageRefused(400, "The form names no operation.")
    require(visit, operation.permission)
    filters = bulk.given_filters(post)
    require_to_search(visit, operation.target, filters)
    done = bulk.perform(visit.operator, operation, filters, _options(operation, post))
    if done.value is None:
        raise PageRefused(400, done.sentence)
    return HttpResponseRedirect(visit.at("bulk", done.value.pk))


start: Any = enclosed(_start, ("POST",), bulk.VIEW)


def require_to_search(visit: DashboardContext, target: str, filters: Mapping[str, Any]) -> None:
    """Raise PageRefused if the user may not search for targets by these filters."""
    for permission in bulk.permissions_to_search(target, filters):
        require(visit, permission)


def control(visit: DashboardContext, operation: Operation) -> Done:
    """Pause, resume, stop or undo a bulk operation; an operation on other targets is undone. This
    also needs the permission for the operation that it performs."""
    row = bulk.get(visit.settings, visit.request.POST.get("bulk", ""))
    require(visit, bulk_walk.BY_NAME[row.operation].permission)
    if operation.target != "bulk" or operation is bulk.UNDO:
        return bulk.undo_at_once(visit.operator, str(row.pk))
    return perform_on_target(visit, operation)


def perform_or_undo(visit: DashboardContext, operation: Operation) -> Done:
    """Perform an operation on its target, or undo the bulk operation that the form names."""
    act = control if visit.request.POST.get("bulk") else perform_on_target
    return act(visit, operation)


def all_address(visit: DashboardContext, kind: str, operations: Sequence[Operation]) -> str:
    """Return the URL of the page for bulk operations on all rows that match the current filters; ""
    = the user may perform no operation."""
    if not visit.may(bulk.VIEW) or not any(visit.may(one.permission) for one in operations):
        return ""
    given = visit.request.GET
    return visit.at("new-bulk", kind=kind, **{name: given.get(name) for name in bulk.FILTERS[kind]})


def _options(operation: Operation, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the options in the form."""
    # The filter of the list is named queue, too.
    names = {one: "to" if one == "queue" else one for one in operation.takes}
    options = {one: given.get(name, "") for one, name in names.items()}
    if operation is REQUEUE:
        options["arguments"] = given.get("arguments", "")
    return options


def _shown(row: BulkOperation) -> dict[str, Any]:
    operation = bulk_walk.BY_NAME[row.operation]
    most = max(row.matched, row.done + row.refused)
    verb = operation.word.capitalize() if operation is steps.RETRY else operation.title
    title = f"{verb}: {operation.things}"
    return {
        "row": row,
        "title": f"Undo: {title}" if row.undoes else title,
        "passed": row.done + row.refused,
        "most": most,
        "filters": [(name, value) for name, value in row.filters.items() if name != "ids"],
        "options": [(name, value) for name, value in row.options.items()],
    }
