"""Jobs of all states: filtered, searched, page by page."""

from __future__ import annotations

from stoker.brokers.adapters import broker_for
from stoker.dashboard.context import DashboardContext
from stoker.dashboard.views import PageContent, PageRefused, page, perform_on_target
from stoker.inspect.jobs import STATES, JobFilter, JobSearch
from stoker.jobs.states import explained
from stoker.models import Job
from stoker.operations import waiting_jobs
from stoker.operations.details import REVEAL
from stoker.operations.jobs import CANCEL, numbers_by_state, rows_of
from stoker.operations.operation import LIMIT, Done, Operation
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
    in_bulk = [*waiting_jobs.IN_BULK, CANCEL]
    context = {
        "rows": rows,
        "in_bulk": [one for one in in_bulk if visit.may(one.permission)],
        "exact": exact,
        "wanted": wanted,
        "states": visit.tabs(("", *STATES), wanted.state, numbers),
        **visit.paging(found.next),
        "is_cut": found.is_cut,
        "is_elsewhere": not broker_for(visit.settings).capabilities.transactional,
    }
    return PageContent("jobs", context)


def perform_on_jobs(visit: DashboardContext, operation: Operation) -> Done:
    """Perform an operation on the jobs that the form names."""
    job_ids = visit.request.POST.getlist("job")[:LIMIT]
    if len(job_ids) <= 1:
        return perform_on_target(visit, operation)
    if operation not in waiting_jobs.OPERATIONS:
        return operation.attempt_each(visit.operator, job_ids)
    options = {one: visit.request.POST.get(one, "") for one in operation.takes}
    return waiting_jobs.attempt_on_many(visit.operator, operation, job_ids, **options)


def _job_of_id(visit: DashboardContext, text: str) -> Job | None:
    """Return the job whose id was searched for."""
    job_id = parse_job_id(text) if len(text) >= 32 else None
    jobs = Job.objects.using(visit.database).defer("package", "value")
    return jobs.filter(pk=job_id).first() if job_id is not None else None
