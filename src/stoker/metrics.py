"""The history of metrics: outcomes of jobs, run and wait times, and queue sizes over time.

::

    now = timezone.now()
    history(settings, now - timedelta(hours=1), now, 60)      a point for every minute
    by_task(settings, now - timedelta(days=1), now)           a row for every task

The numbers come from the monitors, each of which writes its sums every few seconds. They are not
exact: if a monitor is killed, its last few seconds are missing, and so is a batch whose commit was
not answered. They are kept for ``KEEP_METRICS``; older numbers are stored in coarser steps (see
``finest_step``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from django.db.models import Max, QuerySet, Sum

from stoker.inspect.figures import (
    Backlog,
    Figures,
    Point,
    QueueFigures,
    Summary,
    TaskFigures,
    Times,
    Total,
    backlog_of,
    figures_of,
)
from stoker.store.engines.sessions import explained

from .conf import Settings
from .models import Sample, Tally
from .models.metrics import FINEST_SECONDS, FOLDS, PEAKS, SAMPLE_SECONDS, Sums, summed

__all__ = [
    "Backlog",
    "Figures",
    "Point",
    "QueueFigures",
    "Summary",
    "TaskFigures",
    "Times",
    "Total",
    "by_queue",
    "by_task",
    "ended_lately",
    "finest_step",
    "history",
    "names",
    "summary",
    "totals",
]


def history(
    settings: Settings,
    since: datetime,
    until: datetime,
    step_seconds: int,
    *,
    queue: str | None = None,
    task: str | None = None,
) -> tuple[Point, ...]:
    """Return one point for every step of a period, oldest first, including steps without jobs.

    Args:
        since: aware. The first point begins at the last whole step before it.
        until: aware. The last point contains it.
        step_seconds: length of a step. It is rounded to a multiple of ``finest_step``, and is at
            least that long.
        queue: only this queue.
        task: only this task, by its dotted path.

    Raises:
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    return summary(settings, since, until, step_seconds, queue=queue, task=task).points


def summary(
    settings: Settings,
    since: datetime,
    until: datetime,
    step_seconds: int,
    *,
    queue: str | None = None,
    task: str | None = None,
) -> Summary:
    """Return the points of ``history``, and the figures of each task in the same period, with one
    read."""
    finest = finest_step(since)
    step = max(1, round(step_seconds / finest)) * finest
    begin = int(since.timestamp()) // step * step
    end = int(until.timestamp()) // step * step + step
    backlogs: dict[int, list[Any]] = {}
    with explained(settings.database):
        sums = _sums(settings, begin, end, lambda start: start // step * step, queue, task)
        if task is None:
            for sample in _samples(settings, begin, end, queue):
                backlogs.setdefault(sample.start // step * step, []).append(sample)
    by_start = _rolled_up(sums, lambda place: place[0])
    points = tuple(
        Point(
            start=datetime.fromtimestamp(start, UTC),
            seconds=step,
            figures=figures_of(by_start.get(start, Sums())),
            backlog=backlog_of(backlogs.get(start, ())),
        )
        for start in range(begin, end, step)
    )
    return Summary(points, _tasks_of(sums))


def by_task(settings: Settings, since: datetime, until: datetime) -> tuple[TaskFigures, ...]:
    """Return the tasks with attempts in a period, sorted by total run time, the longest first.

    Raises: as ``history``.
    """
    with explained(settings.database):
        return _tasks_of(_sums(settings, *_whole(since, until)))


def by_queue(settings: Settings, since: datetime, until: datetime) -> tuple[QueueFigures, ...]:
    """Return the queues with attempts or waiting jobs in a period, by name. Raises: as
    ``history``."""
    with explained(settings.database):
        begin, end = _whole(since, until)
        totals = _rolled_up(_sums(settings, begin, end), lambda place: place[1])
        samples = Sample.objects.using(settings.database)
        samples = samples.between(begin // SAMPLE_SECONDS * SAMPLE_SECONDS, end).order_by()
        peaks = samples.values_list("queue").annotate(*map(Max, PEAKS))
        backlogs = {
            name: Backlog(**dict(zip(PEAKS, numbers, strict=True))) for name, *numbers in peaks
        }
    return tuple(
        QueueFigures(name, figures_of(totals.get(name, Sums())), backlogs.get(name))
        for name in sorted({*totals, *backlogs})
    )


def names(settings: Settings, since: datetime, until: datetime) -> tuple[set[str], set[str]]:
    """Return the names of the tasks with attempts in a period, and of the queues with attempts or
    waiting jobs. Raises: as ``history``."""
    with explained(settings.database):
        tallies = Tally.objects.using(settings.database).between(*_whole(since, until))
        pairs = set(tallies.order_by().values_list("task", "queue").distinct())
        samples = _samples(settings, *_whole(since, until)).order_by()
        queues = set(samples.values_list("queue", flat=True).distinct())
    return {task for task, _ in pairs}, queues | {queue for _, queue in pairs}


def totals(settings: Settings) -> tuple[Total, ...]:
    """Return all-time totals, for counters, because they never decrease. Raises: as ``history``."""
    with explained(settings.database):
        rows = Tally.objects.using(settings.database).totals()
        return tuple(Total(place.queue, place.task, **numbers) for place, numbers in rows)


def ended_lately(settings: Settings, queue: str, seconds: float) -> int:
    """Return the number of attempts of a queue that ended in the last ``seconds``. Raises: as
    ``history``."""
    names = ("successful", "failed", "cancelled", "retried")
    until = time.time()
    with explained(settings.database):
        rows = Tally.objects.using(settings.database).between(until - seconds, until)
        sums = rows.filter(queue=queue).aggregate(**{name: Sum(name) for name in names})
    return sum(sums[name] or 0 for name in names)


def finest_step(since: datetime) -> int:
    """Return the shortest step, in seconds, that is stored for metrics from that moment on."""
    age_seconds = time.time() - since.timestamp()
    steps = [fold.into_seconds for fold in FOLDS if age_seconds > fold.after_seconds]
    return max(steps, default=FINEST_SECONDS)


Place = tuple[int, str, str]
"""The start of a step, a queue and a task."""


def _sums(
    settings: Settings,
    begin: int,
    end: float,
    step_of: Callable[[int], int] = lambda start: 0,
    queue: str | None = None,
    task: str | None = None,
) -> dict[Place, Sums]:
    """Return the totals of each task in each queue and step."""
    rows = Tally.objects.using(settings.database).between(begin, end)
    if queue is not None:
        rows = rows.filter(queue=queue)
    if task is not None:
        rows = rows.filter(task=task)
    together: dict[Place, list[Any]] = {}
    for row in rows.texts():
        together.setdefault((step_of(row[0]), row[1], row[2]), []).append(row)
    return {place: summed(found) for place, found in together.items()}


def _rolled_up(sums: Mapping[Place, Sums], name_of: Callable[[Place], Any]) -> dict[Any, Sums]:
    totals: dict[Any, Sums] = {}
    for place, one in sums.items():
        totals.setdefault(name_of(place), Sums()).add(one)
    return totals


def _tasks_of(sums: Mapping[Place, Sums]) -> tuple[TaskFigures, ...]:
    totals = _rolled_up(sums, lambda place: place[2])
    names = sorted(totals, key=lambda name: (-totals[name].run_seconds, name))
    return tuple(TaskFigures(name, figures_of(totals[name])) for name in names)


def _whole(since: datetime, until: datetime) -> tuple[int, float]:
    """Return the period, extended to the last whole step before ``since``."""
    finest = finest_step(since)
    return int(since.timestamp()) // finest * finest, until.timestamp()


def _samples(
    settings: Settings, begin: int, end: float, queue: str | None = None
) -> QuerySet[Sample, Any]:
    rows = Sample.objects.using(settings.database).between(begin, end)
    if queue is not None:
        rows = rows.filter(queue=queue)
    return rows.values_list("start", "queue", *PEAKS, named=True)  # instances take twice as long
