"""The history of metrics for pages, cached for some seconds.

Pages are fetched again whenever something has changed. The sums of a week take long to add up and
hardly change within seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from stoker import metrics
from stoker.metrics import Point, QueueFigures, TaskFigures

from .context import DashboardContext
from .spans import Span

KEPT_SECONDS = {"hour": 2.0, "day": 20.0, "week": 60.0}
MOST_KEPT = 200

_kept: dict[tuple[str, ...], tuple[float, Any]] = {}
_lock = threading.Lock()


def of_all(visit: DashboardContext, span: Span) -> Sequence[Point]:
    """Return the history of all jobs."""
    return _history(visit, span)


def of_tasks(visit: DashboardContext, span: Span) -> Sequence[TaskFigures]:
    """Return the figures of each task, the busiest first."""
    return _remembered(  # type: ignore[no-any-return] # as it was made
        visit,
        span,
        ("tasks",),
        lambda: metrics.by_task(visit.settings, span.since, span.until),
    )


def of_queues(visit: DashboardContext, span: Span) -> dict[str, QueueFigures]:
    """Return the figures of each queue, by name."""
    return _remembered(  # type: ignore[no-any-return] # as above
        visit,
        span,
        ("queues",),
        lambda: {
            one.queue: one for one in metrics.by_queue(visit.settings, span.since, span.until)
        },
    )


def of_queue(visit: DashboardContext, span: Span, name: str) -> Sequence[Point]:
    """Return the history of one queue."""
    return _history(visit, span, queue=name)


def of_task(visit: DashboardContext, span: Span, name: str) -> Sequence[Point]:
    """Return the history of one task."""
    return _history(visit, span, task=name)


def forget() -> None:
    """Clear the cache."""
    with _lock:
        _kept.clear()


def _history(visit: DashboardContext, span: Span, **wanted: str) -> Sequence[Point]:
    return _remembered(  # type: ignore[no-any-return] # as above
        visit,
        span,
        tuple(f"{name} {value}" for name, value in wanted.items()),
        lambda: metrics.history(
            visit.settings, span.since, span.until, span.step_seconds, **wanted
        ),
    )


def _remembered(
    visit: DashboardContext, span: Span, what: tuple[str, ...], read: Callable[[], Any]
) -> Any:
    key = (visit.alias, span.name, *what)
    now = time.monotonic()
    with _lock:
        until, value = _kept.get(key, (0.0, None))
    if now < until:
        return value
    value = read()
    with _lock:
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[key] = (now + KEPT_SECONDS[span.name], value)
    return value
