"""Tasks: number of jobs, run times, failures."""

from __future__ import annotations

from typing import Any

from stoker.dashboard import figures
from stoker.dashboard.axes import time_axis
from stoker.dashboard.charts import latency_chart, throughput_chart, wait_chart
from stoker.dashboard.context import DashboardContext
from stoker.dashboard.spans import span_of
from stoker.dashboard.views import PageContent, PageRefused, page
from stoker.exceptions import UnknownTask
from stoker.inspect.jobs import JobFilter, JobSearch
from stoker.operations.details import REVEAL
from stoker.operations.jobs import rows_of
from stoker.store.engines.sessions import explained
from stoker.tasks.registry import find_task

NEWEST = 15


@page("stoker.view_job")
def show(visit: DashboardContext) -> PageContent:
    """Return the tasks that have recorded attempts in the period."""
    span = span_of(visit)
    rows = figures.of_tasks(visit, span)
    return PageContent("tasks", {"span": span, "rows": rows})


@page("stoker.view_job")
def show_one(visit: DashboardContext) -> PageContent:
    """Return one task."""
    name = visit.request.GET.get("name", "")[:255]
    if not name:
        raise PageRefused(404, "No task was named.")
    span = span_of(visit)
    points = figures.of_task(visit, span, name)
    axis = time_axis(visit, span, points, task=name)
    totals = {one.task: one for one in figures.of_tasks(visit, span)}
    with explained(visit.database):
        newest = JobSearch(visit.settings, JobFilter(task=name)).page(NEWEST)
        slowest = JobSearch(visit.settings, JobFilter(task=name)).slowest(NEWEST, span.since)
        rows = rows_of(visit.settings, newest.jobs, reveal=visit.may(REVEAL))
    context = {
        "name": name,
        "span": span,
        "figures": totals[name].figures if name in totals else None,
        "charts": [
            throughput_chart(axis),
            latency_chart(axis),
            wait_chart(axis),
        ],
        "rows": rows,
        "slowest": slowest,
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
