"""Queues: how many jobs are where, and what became of them; paused, resumed, cleared."""

from __future__ import annotations

from typing import Any

from stoker import queues
from stoker.dashboard import figures
from stoker.dashboard.charts import backlog_chart, latency_chart, throughput_chart, wait_chart
from stoker.dashboard.request_context import Visit
from stoker.dashboard.spans import span_of
from stoker.dashboard.views import Done, Page, Refusal, action, page
from stoker.inspect.jobs import JobFilter, JobSearch
from stoker.jobs.states import explained

from .jobs import with_states

FIRST_JOBS = 15
MOST_CLEARED = 10_000


@page("stoker.view_job")
def show(visit: Visit) -> Page:
    """All of them."""
    span = span_of(visit)
    depths = queues.list(backend=visit.alias)
    seen = figures.of_queues(visit, span)
    rows = [{"depth": depth, "seen": seen.get(depth.name)} for depth in depths]
    return Page("queues", {"span": span, "rows": rows})


@page("stoker.view_job")
def show_one(visit: Visit) -> Page:
    """One, with what is next in line."""
    name = visit.request.GET.get("name", "")
    span = span_of(visit)
    depth = queues.get(name, backend=visit.alias)
    points = figures.of_queue(visit, span, name)
    with explained(visit.database):
        first = JobSearch(visit.database, JobFilter(state="READY", queue=name)).page(FIRST_JOBS)
        rows = with_states(visit, first.jobs)
    context = {
        "depth": depth,
        "span": span,
        "charts": [
            throughput_chart(points, span),
            backlog_chart(points, span),
            latency_chart(points, span),
            wait_chart(points, span),
        ],
        "totals": _totals(points),
        "rows": rows,
    }
    return Page("queue", context)


@action("stoker.pause_queue")
def pause(visit: Visit) -> Done:
    """No cluster starts its jobs until it is resumed."""
    name, because = _name(visit), visit.request.POST.get("because", "").strip()
    pause = queues.pause(name, by=visit.by, because=because, backend=visit.alias)
    if pause.by != visit.by:
        return Done(f"{name} was paused already, by {pause.by or 'somebody'}.")
    return Done(
        f"{name} is paused: what runs goes on, nothing new is started.",
        undo="resume-queue",
        fields=(("queue", name),),
    )


@action("stoker.pause_queue")
def resume(visit: Visit) -> Done:
    """Let its jobs be started again."""
    name = _name(visit)
    was_paused = queues.resume(name, backend=visit.alias)
    return Done(f"{name} goes on." if was_paused else f"{name} was not paused.")


@action("stoker.clear_queue")
def clear(visit: Visit) -> Done:
    """Cancel what waits in it."""
    name, because = _name(visit), visit.request.POST.get("because", "").strip()
    cleared = queues.clear(
        name, by=visit.by, because=because, limit=MOST_CLEARED, backend=visit.alias
    )
    more = "; there are more" if cleared.matched == MOST_CLEARED else ""
    return Done(f"{cleared.done:,} of {cleared.matched:,} waiting jobs were cancelled{more}.")


def _name(visit: Visit) -> str:
    name = visit.request.POST.get("queue", "")
    if not name:
        raise Refusal(400, "No queue was named.")
    return name


def _totals(points: Any) -> dict[str, int]:
    names = ("successful", "failed", "cancelled", "retried")
    return {name: sum(getattr(point.figures, name) for point in points) for name in names}
