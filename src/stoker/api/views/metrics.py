"""The history of metrics, by time, queue and task."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from django.http import HttpRequest
from django.utils import timezone
from ninja import Query
from pydantic import Field

from stoker import metrics
from stoker.api.access import Routes
from stoker.api.filters import Body
from stoker.api.problems import CallRefused
from stoker.api.shapes import Shape
from stoker.api.values import Backend, Moment, Name, settings_of
from stoker.metrics import Point, QueueFigures, TaskFigures

VIEW = "stoker.view_job"
LONGEST_DAYS = 3660
MOST_POINTS = 2000
HOUR = timedelta(hours=1)
routes = Routes(tags=["metrics"])


class PeriodQuery(Body):
    """A period of the history."""

    since: Moment | None = None
    """Default: an hour before `until`."""
    until: Moment | None = None
    """Default: now."""

    def period(self) -> tuple[datetime, datetime]:
        """Return the start and the end, aware.

        Raises:
            CallRefused: The period ends before it starts, or is longer than ten years.
        """
        until = _aware(self.until) or timezone.now()
        since = _aware(self.since) or until - HOUR
        if not timedelta() <= until - since <= timedelta(days=LONGEST_DAYS):
            raise CallRefused(422, f"since: write a time 0 to {LONGEST_DAYS} days before until.")
        return since, until


class HistoryQuery(PeriodQuery):
    """A period of the history, in steps."""

    step_seconds: Annotated[int, Field(ge=1, le=LONGEST_DAYS * 86400)] = 60
    """Length of a step in seconds. It is rounded to a multiple of the step in which metrics of that
    age are stored: 10 seconds for recent ones, up to an hour for old ones."""
    queue: Annotated[str, Field(max_length=100)] | None = None
    task: Name | None = None
    """The dotted path, such as `shop.tasks.charge`."""


class HistoryShape(Shape):
    """Metrics over time."""

    points: list[Point]
    """One for each step, the oldest first. Steps without jobs are included."""


class TaskFiguresList(Shape):
    """Metrics of each task."""

    tasks: list[TaskFigures]
    """Sorted by total run time, the longest first."""


class QueueFiguresList(Shape):
    """Metrics of each queue."""

    queues: list[QueueFigures]
    """Sorted by name."""


@routes.show("/metrics", VIEW, HistoryShape)
def get_history(request: HttpRequest, wanted: Query[HistoryQuery], backend: Backend = None) -> Any:
    """Show outcomes, run and wait times and queue sizes over time."""
    settings, (since, until) = settings_of(backend), wanted.period()
    step = max(wanted.step_seconds, metrics.finest_step(since))
    if (until - since).total_seconds() / step > MOST_POINTS:
        raise CallRefused(
            422, f"step_seconds: at most {MOST_POINTS} steps; write longer steps or less time."
        )
    points = metrics.history(
        settings, since, until, step, queue=wanted.queue or None, task=wanted.task or None
    )
    return {"points": points}


@routes.show("/metrics/tasks", VIEW, TaskFiguresList)
def get_task_metrics(
    request: HttpRequest, wanted: Query[PeriodQuery], backend: Backend = None
) -> Any:
    """Show outcomes, run and wait times of each task in a period."""
    return {"tasks": metrics.by_task(settings_of(backend), *wanted.period())}


@routes.show("/metrics/queues", VIEW, QueueFiguresList)
def get_queue_metrics(
    request: HttpRequest, wanted: Query[PeriodQuery], backend: Backend = None
) -> Any:
    """Show outcomes, run and wait times and the largest size of each queue in a period."""
    return {"queues": metrics.by_queue(settings_of(backend), *wanted.period())}


def _aware(moment: datetime | None) -> datetime | None:
    if moment is None or timezone.is_aware(moment):
        return moment
    return timezone.make_aware(moment)
