"""Jobs of all states: filtered, searched, page by page."""

from __future__ import annotations

from typing import Any

from stoker.brokers.adapters import broker_for
from stoker.dashboard.request_context import Visit
from stoker.dashboard.views import Page, Refusal, page
from stoker.inspect.jobs import COUNTED, STATES, JobFilter, JobSearch, tally
from stoker.inspect.timeline import seconds_between
from stoker.jobs.states import JobState, explained
from stoker.models import Job
from stoker.values.ids import parse_job_id

ON_A_PAGE = 50


@page("stoker.view_job")
def show(visit: Visit) -> Page:
    """The list."""
    given = visit.request.GET
    state = given.get("state", "").upper()
    wanted = JobFilter(
        state=state,
        queue=given.get("queue", "")[:100],
        task=given.get("task", "")[:255],
        text=given.get("q", "").strip(),
    )
    query = {"queue": wanted.queue, "task": wanted.task, "q": wanted.text}
    with explained(visit.database):
        try:
            search = JobSearch(visit.database, wanted)
            found = search.page(ON_A_PAGE, given.get("after"))
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        counts = tally(visit.database)
        rows = with_states(visit, found.jobs)
        exact = _of_that_id(visit, wanted.text)
    next_page = found.next and visit.at("jobs", state=state, **query, after=found.next)
    first_page = given.get("after") and visit.at("jobs", state=state, **query)
    context = {
        "rows": rows,
        "exact": exact,
        "wanted": wanted,
        "states": [_tab(visit, one, counts, state, query) for one in ("", *STATES)],
        "next": next_page,
        "first": first_page,
        "is_cut": found.is_cut,
        "is_elsewhere": not broker_for(visit.settings).capabilities.transactional,
    }
    return Page("jobs", context)


def with_states(visit: Visit, jobs: Any) -> list[dict[str, Any]]:
    """These jobs, each with its state. One query where some have not ended."""
    broker = broker_for(visit.settings)
    under_way = [job.pk for job in jobs if job.status is None]
    places = broker.whereabouts(under_way) if under_way and broker.capabilities.look_up else {}
    return [
        # One on the move from one table to the next is in neither of two looks, or in both.
        {
            "job": job,
            "state": job.status or places.get(job.pk, "ready").upper(),
            "ran": seconds_between(job.started_at, job.finished_at),
        }
        for job in jobs
    ]


def _tab(
    visit: Visit, state: str, counts: dict[str, int], current: str, query: dict[str, str]
) -> dict[str, Any]:
    number = counts.get(state, 0)
    return {
        "title": JobState(state).value.capitalize() if state else "All",
        "address": visit.at("jobs", state=state, **query),
        "number": "" if not state else f"{COUNTED:,}+" if number > COUNTED else f"{number:,}",
        "is_current": state == current,
    }


def _of_that_id(visit: Visit, text: str) -> Job | None:
    """The job whose id was searched for."""
    job_id = parse_job_id(text) if len(text) >= 32 else None
    jobs = Job.objects.using(visit.database).defer("package", "value")
    return jobs.filter(pk=job_id).first() if job_id is not None else None
