"""Jobs of all states: filtered, searched, page by page."""

from __future__ import annotations

from stoker.brokers.adapters import broker_for
from stoker.dashboard.context import DashboardContext
from stoker.dashboard.views import PageContent, PageRefused, page
from stoker.inspect.jobs import STATES, JobFilter, JobSearch
from stoker.jobs.states import explained
from stoker.models import Job
from stoker.operations.details import REVEAL
from stoker.operations.jobs import numbers_by_state, rows_of
from stoker.values.ids import parse_job_id

ON_A_PAGE = 50


@page("stoker.view_job")
def show(visit: DashboardContext) -> PageContent:
    """Return a page of the list."""
    given = visit.request.GET
    wanted = JobFilter(
        state=given.get("state", "").upper(),
        queue=given.get("queue", "")[:100],
        task=given.get("task", "")[:255],
        text=given.get("q", "").strip(),
    )
    with explained(visit.database):
        try:
            search = JobSearch(visit.database, wanted)
            found = search.page(ON_A_PAGE, given.get("after") or None)
        except ValueError as error:
            raise PageRefused(400, str(error)) from None
        numbers = numbers_by_state(visit.database)
        rows = rows_of(visit.settings, found.jobs, reveal=visit.may(REVEAL))
        exact = _job_of_id(visit, wanted.text)
    context = {
        "rows": rows,
        "exact": exact,
        "wanted": wanted,
        "states": visit.tabs(("", *STATES), wanted.state, numbers),
        **visit.paging(found.next),
        "is_cut": found.is_cut,
        "is_elsewhere": not broker_for(visit.settings).capabilities.transactional,
    }
    return PageContent("jobs", context)


def _job_of_id(visit: DashboardContext, text: str) -> Job | None:
    """Return the job whose id was searched for."""
    job_id = parse_job_id(text) if len(text) >= 32 else None
    jobs = Job.objects.using(visit.database).defer("package", "value")
    return jobs.filter(pk=job_id).first() if job_id is not None else None
