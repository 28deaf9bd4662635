"""The history of metrics for pages, cached for some seconds.

Pages are fetched again whenever something has changed. The sums of a week take long to add up and
hardly change within seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from stoker import metrics
from stoker.conf import Settings
from stoker.metrics import Point, QueueFigures, Summary, TaskFigures

from .context import DashboardContext
from .spans import Span

KEPT_SECONDS = {"hour": 2.0, "day": 20.0, "week": 60.0}
MOST_KEPT = 200
T = TypeVar("T")

_kept: dict[tuple[str, ...], tuple[float, Any]] = {}
_lock = threading.Lock()


def summary(visit: DashboardContext, span: Span, **wanted: str) -> Summary:
    """Return the history and the figures of each task, the busiest first.

    Args:
        wanted: only the jobs of this ``queue`` or ``task``.
    """
    key = tuple(f"{name} {value}" for name, value in wanted.items())
    since, until, step = span.since, span.until, span.step_seconds
    return _remembered(
        visit, span, key, lambda: metrics.summary(visit.settings, since, until, step, **wanted)
    )


def totals(points: Sequence[Point]) -> dict[str, int]:
    """Return the number of jobs by outcome in a whole history, and of retried attempts."""
    names = ("successful", "failed", "cancelled", "retried")
    return {name: sum(getattr(point.figures, name) for point in points) for name in names}


def of_tasks(visit: DashboardContext, span: Span) -> Sequence[TaskFigures]:
    """Return the figures of each task, the busiest first."""
    return _read(visit, span, "tasks", metrics.by_task)


def of_queues(visit: DashboardContext, span: Span) -> dict[str, QueueFigures]:
    """Return the figures of each queue, by name."""
    return {one.queue: one for one in _read(visit, span, "queues", metrics.by_queue)}


def names(visit: DashboardContext, span: Span) -> tuple[set[str], set[str]]:
    """Return the tasks with attempts in a period, and their queues."""
    return _read(visit, span, "names", metrics.names)


def forget() -> None:
    """Clear the cache."""
    with _lock:
        _kept.clear()


def _read(
    visit: DashboardContext,
    span: Span,
    what: str,
    read: Callable[[Settings, datetime, datetime], T],
) -> T:
    return _remembered(visit, span, (what,), lambda: read(visit.settings, span.since, span.until))


def _remembered(
    visit: DashboardContext, span: Span, what: tuple[str, ...], read: Callable[[], T]
) -> T:
    key = (visit.alias, span.name, *what)
    now = time.monotonic()
    with _lock:
        until, value = _kept.get(key, (0.0, None))
    if now < until:
        return value  # type: ignore[no-any-return] # as it was made
    value = read()
    with _lock:
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[key] = (now + KEPT_SECONDS[span.name], value)
    return value
