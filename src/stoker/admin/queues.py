"""Queues: how deep, how old, how fast; paused, resumed, cleared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.http.response import HttpResponseBase
from django.utils import timezone

from stoker import metrics, queues
from stoker.models import PausedQueue
from stoker.queues import QueueDepth

from .base import Outcome, StoreAdmin, Verb, Visit, ago, duration, shown_moment

RATE_OVER = timedelta(minutes=5)
MOST_CLEARED = 1000
"""In one go. A page has to answer."""


def pause(visit: Visit, name: str, because: str) -> Outcome:
    queues.pause(name, by=visit.by, because=because, backend=visit.alias)
    return Outcome(f"The queue {name} is paused: its jobs wait until somebody resumes it.")


def resume(visit: Visit, name: str, because: str) -> Outcome:
    if queues.resume(name, backend=visit.alias):
        return Outcome(f"The queue {name} goes on.")
    return Outcome(f"The queue {name} was not paused.", is_good=False)


def clear(visit: Visit, name: str, because: str) -> Outcome:
    cleared = queues.clear(
        name, by=visit.by, because=because, limit=MOST_CLEARED, backend=visit.alias
    )
    more = "" if cleared.matched < MOST_CLEARED else " There may be more: clear it again."
    return Outcome(f"{cleared.done:,} jobs of the queue {name} are cancelled.{more}")


@admin.register(PausedQueue)
class QueueAdmin(StoreAdmin):
    view_permission = "stoker.view_job"
    plural = "Queues"
    verbs = (
        Verb(
            "pause",
            "Pause",
            "stoker.pause_queue",
            pause,
            asks="Pause the queue {name}? What runs goes on; what waits does so until somebody "
            "resumes the queue.",
        ),
        Verb("resume", "Resume", "stoker.pause_queue", resume),
        Verb(
            "clear",
            "Clear",
            "stoker.clear_queue",
            clear,
            asks="Cancel the jobs that wait in the queue {name}, up to a thousand of them? Those "
            "that run go on.",
            is_grave=True,
        ),
    )

    def pages(self) -> Sequence[tuple[str, str, Callable[..., HttpResponseBase]]]:
        return ()

    def all(self, visit: Visit) -> HttpResponseBase:
        now = timezone.now()
        figures = {
            one.queue: one.figures for one in metrics.by_queue(visit.settings, now - RATE_OVER, now)
        }
        rows = [
            {**_row(visit, queue), **_rates(figures.get(queue.name)), **self._verbs(visit, queue)}
            for queue in queues.list(backend=visit.alias)
        ]
        return self.show(visit, "queues", {"rows": rows, "over": "5 minutes"})

    def one(self, visit: Visit, object_id: str) -> HttpResponseBase:
        """A queue has no page of its own here: its jobs are one list, its figures one line."""
        return self.all(visit)

    def _verbs(self, visit: Visit, queue: QueueDepth) -> dict[str, Any]:
        names = ["pause" if queue.paused is None else "resume", "clear"]
        return {"buttons": self.buttons(visit, names, queue.name)}

    def _back(self, visit: Visit, object_id: str) -> str:
        return visit.at("pausedqueue_changelist")


def _row(visit: Visit, queue: QueueDepth) -> dict[str, Any]:
    paused = queue.paused
    return {
        "queue": queue,
        "url": visit.at("job_changelist", queue=queue.name, state="READY"),
        "oldest": duration(queue.oldest_ready_seconds),
        "about": "" if queue.is_exact else "about ",
        "paused": paused
        and {
            "since": shown_moment(paused.since),
            "ago": ago(paused.since),
            "by": paused.by,
            "because": paused.because,
        },
    }


def _rates(figures: metrics.Figures | None) -> dict[str, Any]:
    if figures is None:
        return {"per_minute": "0", "failed": 0, "run": duration(None)}
    per_minute = figures.finished / (RATE_OVER.total_seconds() / 60)
    return {
        "per_minute": f"{per_minute:,.1f}",
        "failed": figures.failed,
        "run": duration(figures.run.p95),
    }
