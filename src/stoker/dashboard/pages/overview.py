"""The overview of one backend."""

from __future__ import annotations

from typing import Any

from stoker import queues
from stoker.dashboard import figures
from stoker.dashboard.axes import time_axis
from stoker.dashboard.charts import all_charts
from stoker.dashboard.context import DashboardContext
from stoker.dashboard.spans import span_of
from stoker.dashboard.views import PageContent, page
from stoker.inspect.queue_depths import QueueDepth
from stoker.inspect.stats import longest_silence
from stoker.models import Cluster, DeadLetter
from stoker.store.counting import Number, count_of
from stoker.store.engines.sessions import explained
from stoker.store.written import MICROSECONDS, DatabaseNow

TASKS = 10
QUEUES = 12


@page("stoker.view_job")
def show(visit: DashboardContext) -> PageContent:
    """Return throughput, latency, failures, backlog and workers, by queue and by task."""
    span = span_of(visit)
    points, tasks = (seen := figures.summary(visit, span)).points, seen.tasks
    axis = time_axis(visit, span, points)
    depths = queues.list(backend=visit.alias)
    context = {
        "span": span,
        "charts": all_charts(axis),
        "totals": _totals(points, span.seconds),
        "waiting": _waiting(depths),
        "queues": sorted(depths, key=lambda one: (-one.ready - one.running, one.name))[:QUEUES],
        "more_queues": max(0, len(depths) - QUEUES),
        "tasks": tasks[:TASKS],
        "more_tasks": max(0, len(tasks) - TASKS),
        "letters": _letters(visit) if visit.may("stoker.view_deadletter") else None,
        "machines": _machines(visit) if visit.may("stoker.view_cluster") else None,
    }
    return PageContent("overview", context)


def _totals(points: Any, seconds: float) -> dict[str, Any]:
    totals: dict[str, Any] = {**figures.totals(points)}
    judged = totals["successful"] + totals["failed"]
    finished = judged + totals["cancelled"]
    return totals | {
        "finished": finished,
        "per_minute": finished * 60 / seconds,
        "failure_percent": 100 * totals["failed"] / judged if judged else None,
    }


def _waiting(depths: tuple[QueueDepth, ...]) -> dict[str, Any]:
    waits = [one.oldest_ready_seconds for one in depths if one.oldest_ready_seconds is not None]
    names = ("ready", "running", "deferred", "blocked")
    sums: dict[str, Any] = {name: sum(getattr(one, name) for one in depths) for name in names}
    return sums | {
        "oldest_seconds": max(waits, default=None),
        "is_exact": all(one.is_exact for one in depths),
        "paused": sum(one.paused is not None for one in depths),
    }


def _letters(visit: DashboardContext) -> Number:
    with explained(visit.database):
        return count_of(DeadLetter.objects.using(visit.database).unclosed())


def _machines(visit: DashboardContext) -> dict[str, int]:
    """Count clusters and workers by their last heartbeats, with one query."""
    with explained(visit.database):
        rows = Cluster.objects.using(visit.database).filter(name=visit.settings.cluster)
        seen: Any = rows.annotate(now_us=DatabaseNow())
        known = [row for row in seen if row.info.get("alias", visit.alias) == visit.alias]
    longest_us = longest_silence(visit.settings) * MICROSECONDS
    alive = [row for row in known if row.now_us - row.heartbeat_us <= longest_us]
    workers = [worker for row in alive for worker in row.info.get("workers", ())]
    return {
        "clusters": len(alive),
        "silent": len(known) - len(alive),
        "workers": len(workers),
        "busy": sum(bool(worker["running"]) for worker in workers),
    }
