"""Queues: number of jobs in each state, and number of ended jobs."""

from __future__ import annotations

from stoker import queues
from stoker.dashboard import figures
from stoker.dashboard.axes import time_axis
from stoker.dashboard.charts import all_charts
from stoker.dashboard.context import DashboardContext
from stoker.dashboard.spans import span_of
from stoker.dashboard.views import PageContent, page
from stoker.inspect.jobs import JobFilter, JobSearch
from stoker.operations.details import REVEAL
from stoker.operations.jobs import broker_notice, number_at_broker, rows_of
from stoker.store.engines.sessions import explained

ON_A_PAGE = 50
FIRST_JOBS = 15


@page("stoker.view_job")
def show(visit: DashboardContext) -> PageContent:
    """Return a page of queues by name."""
    span, after = span_of(visit), visit.request.GET.get("after", "")
    depths = [one for one in queues.list(backend=visit.alias) if one.name > after]
    shown = depths[:ON_A_PAGE]
    seen = figures.of_queues(visit, span)
    context = {
        "span": span,
        "rows": [{"depth": depth, "seen": seen.get(depth.name)} for depth in shown],
        **visit.paging(shown[-1].name if len(depths) > ON_A_PAGE else None),
    }
    return PageContent("queues", context)


@page("stoker.view_job")
def show_one(visit: DashboardContext) -> PageContent:
    """Return one queue, with the jobs that start next."""
    name = visit.request.GET.get("name", "")
    span = span_of(visit)
    depth = queues.get(name, backend=visit.alias)
    points = figures.summary(visit, span, queue=name).points
    axis = time_axis(visit, span, points, queue=name)
    with explained(visit.database):
        wanted = JobFilter(state="READY", queue=name)
        first = JobSearch(visit.settings, wanted).page(FIRST_JOBS)
        rows = rows_of(visit.settings, first.jobs, reveal=visit.may(REVEAL))
    context = {
        "depth": depth,
        "span": span,
        "charts": all_charts(axis),
        "totals": figures.totals(points),
        "rows": rows,
        "broker_notice": broker_notice(
            visit.settings, wanted, number_at_broker(visit.settings, wanted)
        ),
    }
    return PageContent("queue", context)
