"""Dead letters: grouped by fault, and single ones."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from stoker.dashboard.context import DashboardContext
from stoker.dashboard.menus import menus_of
from stoker.dashboard.pages.bulk import all_address, require_to_search
from stoker.dashboard.views import PageContent, PageRefused, page, perform_on_target
from stoker.dead_letters import service as dead_letters
from stoker.operations import bulk
from stoker.operations.dead_letters import (
    DISCARD,
    REQUEUE,
    call_in_list,
    facts_of,
    faults_of,
    filters_of,
    kind_of,
    page_of,
)
from stoker.operations.details import REVEAL, call_of, opened_call
from stoker.operations.jobs import others_of_id
from stoker.operations.operation import LIMIT, Done, Operation
from stoker.operations.tracebacks import fitting

ON_A_PAGE = 20
FAULTS = 12
GROUPED = ("fingerprint", "task", "reason")
STATES = (
    ("Needs attention", ""),
    ("Open", "open"),
    ("Requeued", "requeued"),
    ("Resolved", "resolved"),
    ("Discarded", "discarded"),
)


@page("stoker.view_deadletter")
def show(visit: DashboardContext) -> PageContent:
    """Return the faults, and the dead letters of one fault or of all."""
    given = visit.request.GET
    wanted = {name: given.get(name, "")[:255] for name in (*GROUPED, "state")}
    filters = filters_of(given.dict())
    found = page_of(visit.settings, filters, ON_A_PAGE, given.get("after") or None)
    faults = faults_of(visit.settings, filters, FAULTS)
    can_change = wanted["state"] in bulk.OPEN_STATES
    context = {
        "wanted": wanted,
        **(menus := menus_of(visit)),
        "is_filtered": menus["is_filtered"] or any(wanted[name] for name in GROUPED),
        "exact": others_of_id(visit.settings, given.get("q", ""))[0],
        "faults": [_fault(visit, one) for one in faults.groups],
        "is_cut": faults.is_cut,
        "is_letters_cut": found.is_cut,
        "letters": [
            {"is": one, "call": call_in_list(visit.settings, one, reveal=visit.may(REVEAL))}
            for one in found.letters
        ],
        **visit.paging(found.next),
        "states": [
            {
                "title": title,
                "address": visit.here(state=state, after=""),
                "is_current": wanted["state"] == state,
            }
            for title, state in STATES
        ],
        "all_address_bulk": all_address(visit, "letter", (REQUEUE, DISCARD)) if can_change else "",
        "can_change": can_change,
        "most": LIMIT,
    }
    return PageContent("dead_letters", context)


@page("stoker.view_deadletter")
def show_one(visit: DashboardContext, letter_id: UUID) -> PageContent:
    """Return one dead letter, with the errors of its newest attempts and its newest requeues."""
    story = dead_letters.get(letter_id, backend=visit.alias)
    attempts = list(reversed(story.attempts))
    shown = fitting([one.traceback for one in attempts])
    shows_all = visit.request.GET.get("errors") == "all"
    context = {
        "letter": story.letter,
        "kind": kind_of(story.letter),
        "facts": facts_of(story.letter),
        "attempts": attempts,
        "with_traceback": attempts if shows_all else attempts[:shown],
        "requeues": story.requeues,
        "has_more": story.has_more,
        **call_of(
            opened_call(visit.settings, bytes(story.letter.package), reveal=visit.may(REVEAL))
        ),
    }
    return PageContent("dead_letter", context)


def perform_on_letters(visit: DashboardContext, operation: Operation) -> Done:
    """Perform an operation on one dead letter, on the ticked ones, or on all open ones of a
    fault."""
    ids = visit.request.POST.getlist("letter")[:LIMIT]
    if len(ids) == 1:
        return perform_on_target(visit, operation)
    return bulk.perform(visit.operator, operation, {"ids": ids} if ids else _fault_of(visit))


def _fault(visit: DashboardContext, group: Any) -> dict[str, Any]:
    """Return a fault with its URLs, which keep the filters of the page: its number counts only the
    dead letters that match them."""
    fault: dict[str, Any] = {name: visit.request.GET.get(name) for name in bulk.FILTERS["letter"]}
    fault |= {name: getattr(group, name) for name in GROUPED}
    return {
        "is": group,
        "kind": kind_of(group),
        "address": visit.at("dead-letters", **fault),
        **{one.word: visit.at(one.name, **fault) for one in (REQUEUE, DISCARD)},
    }


def _fault_of(visit: DashboardContext) -> dict[str, Any]:
    """Return the filters of the form or of its URL. Raise PageRefused if there are none, so that a
    mistake cannot change all dead letters."""
    filters = bulk.given_filters({**visit.request.GET.dict(), **visit.request.POST.dict()})
    if not any(name in filters for name in GROUPED):
        raise PageRefused(400, "The form names no dead letter.")
    require_to_search(visit, "letter", filters)
    return filters
