"""Jobs of all states: filtered, searched, page by page."""

from __future__ import annotations

from typing import Any

from stoker.dashboard.context import DashboardContext
from stoker.dashboard.menus import menus_of
from stoker.dashboard.pages.bulk import all_address, perform_or_undo
from stoker.dashboard.views import PageContent, page
from stoker.inspect.jobs import ENDED, STATES, JobPage, JobSearch
from stoker.operations import bulk, waiting_jobs
from stoker.operations.dead_letters import call_in_list
from stoker.operations.dead_letters import page_of as letters_of
from stoker.operations.details import REVEAL
from stoker.operations.jobs import (
    CANCEL,
    NumberAtBroker,
    broker_notice,
    filter_of,
    number_at_broker,
    numbers_by_state,
    others_of_id,
    rows_of,
)
from stoker.operations.operation import LIMIT, Done, Operation
from stoker.store.engines.sessions import explained
from stoker.values.ids import parse_job_id

ON_A_PAGE = 50
FIRST = "X-Stoker-First"
"""The request header with the id of the first row that the script shows."""
LETTERS = 5
"""Maximum number of dead letters that a search for jobs shows in addition."""


@page("stoker.view_job")
def show(visit: DashboardContext) -> PageContent:
    """Return a page of the list of jobs."""
    given = visit.request.GET
    with explained(visit.database):
        wanted = filter_of(given.dict())
        search = JobSearch(visit.settings, wanted)
        held = _held(visit, search)
        found, new = held or (search.page(ON_A_PAGE, given.get("after") or None), None)
        numbers = numbers_by_state(visit.database)
        rows = rows_of(visit.settings, found.jobs, reveal=visit.may(REVEAL))
        others = {} if given.get("after") or not wanted.text else _others(visit, wanted.text)
    number = NumberAtBroker() if given.get("after") else number_at_broker(visit.settings, wanted)
    in_bulk = [*waiting_jobs.changes_in(visit.settings), CANCEL]
    context = {
        "rows": rows,
        "in_bulk": [one for one in in_bulk if visit.may(one.permission)],
        "all_address_bulk": "" if wanted.state in ENDED else all_address(visit, "job", in_bulk),
        "new": new,
        "by_id": found.by_id,
        **others,
        "wanted": wanted,
        **menus_of(visit),
        "states": visit.tabs(("", *STATES), wanted.state, numbers),
        **visit.paging(found.next),
        "is_cut": found.is_cut,
        "broker_notice": broker_notice(visit.settings, wanted, number),
    }
    return PageContent("jobs", context)


def _held(visit: DashboardContext, search: JobSearch) -> tuple[JobPage, int] | None:
    """Return the page of jobs that the script shows already, and the number of newer jobs. So the
    rows do not move while a user reads them."""
    first_id = parse_job_id(visit.request.headers.get(FIRST, ""))
    if first_id is None or visit.request.GET.get("after"):
        return None
    return search.page_from(first_id, ON_A_PAGE)


def perform_on_jobs(visit: DashboardContext, operation: Operation) -> Done:
    """Perform an operation on the jobs that the form names, or undo it."""
    job_ids = visit.request.POST.getlist("job")[:LIMIT]
    if len(job_ids) <= 1:
        return perform_or_undo(visit, operation)
    options = {one: visit.request.POST.get(one, "") for one in operation.takes}
    return bulk.perform(visit.operator, operation, {"ids": job_ids}, options)


def _others(visit: DashboardContext, text: str) -> dict[str, Any]:
    """Return the dead letter and the workflow whose id is the text."""
    letter_id, workflow_id = others_of_id(visit.settings, text)
    may_see = visit.may("stoker.view_deadletter")
    wanted = {"text": text, "state": "all"}
    letters = letters_of(visit.settings, wanted, LETTERS, None).letters if may_see else ()
    return {
        "letter_id": letter_id if may_see else None,
        "workflow_id": workflow_id if visit.may("stoker.view_workflow") else None,
        "letters": [
            {"is": one, "call": call_in_list(visit.settings, one, reveal=visit.may(REVEAL))}
            for one in letters
        ],
    }
