"""Queues in the admin: number of waiting jobs, their waiting time, and jobs finished per second."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.http.response import HttpResponseBase
from django.utils import timezone

from stoker import metrics
from stoker import queues as known_queues
from stoker.models import PausedQueue
from stoker.operations import queues
from stoker.operations.wording import duration, since
from stoker.queues import QueueDepth

from .base import AdminContext, StoreAdmin

RATE_OVER = timedelta(minutes=5)


@admin.register(PausedQueue)
class QueueAdmin(StoreAdmin):
    view_permission = "stoker.view_job"
    plural = "Queues"
    operations = queues.OPERATIONS

    def all(self, visit: AdminContext) -> HttpResponseBase:
        now = timezone.now()
        measured = metrics.by_queue(visit.settings, now - RATE_OVER, now)
        figures = {one.queue: one.figures for one in measured}
        rows = [
            {**self._row(visit, queue), **_rates(figures.get(queue.name))}
            for queue in known_queues.list(backend=visit.alias)
        ]
        return self.show(visit, "queues", {"rows": rows, "over": "5 minutes"})

    def one(self, visit: AdminContext, object_id: str) -> HttpResponseBase:
        """Return the list page, because queues have no page of their own."""
        return self.all(visit)

    def _row(self, visit: AdminContext, queue: QueueDepth) -> dict[str, Any]:
        operations = [queues.PAUSE if queue.paused is None else queues.RESUME, queues.CLEAR]
        return {
            "queue": queue,
            "url": visit.at("job_changelist", queue=queue.name, state="READY"),
            "oldest": duration(queue.oldest_ready_seconds),
            "about": "" if queue.is_exact else "about ",
            "paused_ago": since(queue.paused.since) if queue.paused else "",
            "buttons": self.buttons(visit, operations, queue.name),
        }

    def _back(self, visit: AdminContext, object_id: str) -> str:
        return visit.at("pausedqueue_changelist")


def _rates(figures: metrics.Figures | None) -> dict[str, Any]:
    if figures is None:
        return {"per_minute": "0", "failed": 0, "run": duration(None)}
    return {
        "per_minute": f"{figures.finished / (RATE_OVER.total_seconds() / 60):,.1f}",
        "failed": figures.failed,
        "run": duration(figures.run.p95),
    }
