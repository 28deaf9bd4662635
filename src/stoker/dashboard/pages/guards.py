"""Guards: the keys in use, the jobs that hold them, and the jobs that wait for them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from stoker.dashboard.context import DashboardContext
from stoker.dashboard.views import PageContent, page
from stoker.inspect import guards
from stoker.inspect.guards import KeyPage, KeyState
from stoker.models import Need
from stoker.operations.details import REVEAL
from stoker.operations.guards import LIMIT, MOST_PLACES
from stoker.operations.jobs import rows_of
from stoker.store.counting import Number

ON_A_PAGE = 50
JOBS = 20
HOLDERS = 3
"""Number of holders that the list shows for each key."""
UNIQUE = "unique"
LONGEST_TEXT = 255


@page("stoker.view_job")
def show(visit: DashboardContext) -> PageContent:
    """Return a page of the keys in use."""
    given = visit.request.GET
    state, text = given.get("state", ""), given.get("q", "").strip()[:LONGEST_TEXT]
    after = given.get("after", "")
    found: KeyPage[Any]
    rows: list[dict[str, Any]]
    if state == UNIQUE:
        found = guards.unique_keys(visit.settings, ON_A_PAGE, after, text=text)
        rows = [{"is": one, "job": found.jobs.get(one.job_id)} for one in found.keys]
    else:
        found = guards.keys(visit.settings, ON_A_PAGE, after, state=state, text=text)
        rows = [_shown(one, found) for one in found.keys]
        rows.sort(key=lambda row: (-row["is"].waiting.number, row["is"].name))
    context = {
        "rows": rows,
        "state": state,
        "text": text,
        "is_unique": state == UNIQUE,
        "states": visit.tabs(("", *guards.STATES, UNIQUE), state),
        "is_cut": found.is_cut,
        **visit.paging(found.next),
    }
    return PageContent("guards", context)


@page("stoker.view_job")
def show_one(visit: DashboardContext, guard_id: UUID) -> PageContent:
    """Return one key, with the jobs that hold it and the jobs that wait for it."""
    one = guards.key(visit.settings, guard_id)
    held, waiting = guards.jobs_at(visit.settings, one, JOBS)
    rows = rows_of(visit.settings, [*held, *waiting], reveal=visit.may(REVEAL))
    context = {
        "one": one,
        "waiting": _number(one.waiting),
        "is_rate": one.kind == Need.Kind.RATE,
        "may_change": one.kind == Need.Kind.LIMIT,
        "limit": LIMIT,
        "most_places": MOST_PLACES,
        "held_rows": rows[: len(held)],
        "waiting_rows": rows[len(held) :],
    }
    return PageContent("guard", context)


def _shown(one: KeyState, found: KeyPage[KeyState]) -> dict[str, Any]:
    return {
        "is": one,
        "waiting": _number(one.waiting),
        "holders": [(job_id, found.jobs.get(job_id)) for job_id in one.holders[:HOLDERS]],
        "more": max(0, len(one.holders) - HOLDERS),
    }


def _number(number: Number) -> str:
    return f"{number.number:,}" if number.is_exact else f"{number.number:,}+"
