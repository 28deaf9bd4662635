"""Tasks: number of jobs, run times, failures."""

from __future__ import annotations

from typing import Any

from stoker.dashboard import figures
from stoker.dashboard.axes import time_axis
from stoker.dashboard.charts import latency_chart, throughput_chart, wait_chart
from stoker.dashboard.context import DashboardContext
from stoker.dashboard.spans import span_of
from stoker.dashboard.views import PageContent, PageRefused, page, start_of
from stoker.exceptions import UnknownTask
from stoker.inspect.jobs import JobFilter, JobSearch
from stoker.operations.details import REVEAL, calls_of_jobs
from stoker.operations.jobs import rows_of
from stoker.store.engines.sessions import explained
from stoker.tasks.registry import find_task

ON_A_PAGE = 50
NEWEST = 15


@page("stoker.view_job")
def show(visit: DashboardContext) -> PageContent:
    """Return a page of the tasks that have recorded attempts in the period."""
    span, start = span_of(visit), start_of(visit)
    rows, end = figures.of_tasks(visit, span), start + ON_A_PAGE
    context = {
        "span": span,
        "rows": rows[start:end],
        **visit.paging(str(end) if len(rows) > end else None),
    }
    return PageContent("tasks", context)


@page("stoker.view_job")
def show_one(visit: DashboardContext) -> PageContent:
    """Return one task."""
    name = visit.request.GET.get("name", "")[:255]
    if not name:
        raise PageRefused(404, "No task was named.")
    span = span_of(visit)
    seen = figures.summary(visit, span, task=name)
    axis = time_axis(visit, span, seen.points, task=name)
    with explained(visit.database):
        newest = JobSearch(visit.settings, JobFilter(task=name)).page(NEWEST)
        slowest = JobSearch(visit.settings, JobFilter(task=name)).slowest(NEWEST, span.since)
        rows = rows_of(visit.settings, newest.jobs, reveal=visit.may(REVEAL))
        ids = [job.pk for job in slowest]
        calls = calls_of_jobs(visit.settings, ids, reveal=visit.may(REVEAL))
    context = {
        "name": name,
        "span": span,
        "figures": seen.tasks[0].figures if seen.tasks else None,
        "charts": [throughput_chart(axis), latency_chart(axis), wait_chart(axis)],
        "rows": rows,
        "slowest": [{"is": job, "call": calls.get(job.pk)} for job in slowest],
        "options": _options(name),
    }
    return PageContent("task", context)


def _options(name: str) -> list[tuple[str, str]]:
    """Return the options of a task; none if this process does not know it."""
    try:
        task = find_task(name)
    except UnknownTask:
        return []
    names = ("queue_name", "priority", "max_attempts", "timeout", "backoff", "unique", "lock")
    told = [(one.replace("_", " "), getattr(task, one, None)) for one in names]
    return [(one, _written(value)) for one, value in told if value not in (None, "")]


def _written(value: Any) -> str:
    """Return a value as text. A function is shown by its name."""
    return str(getattr(value, "__qualname__", None) or value)
