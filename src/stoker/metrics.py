"""The history of metrics: outcomes of jobs, run and wait times, and queue sizes over time.

::

    now = timezone.now()
    history(settings, now - timedelta(hours=1), now, 60)      a point for every minute
    by_task(settings, now - timedelta(days=1), now)           a row for every task

The numbers come from the monitors, each of which writes its sums every few seconds. They are not
exact: if a monitor is killed, its last few seconds are missing. They are kept for ``KEEP_METRICS``;
older numbers are stored in coarser steps (see ``finest_step``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from django.db.models import Sum

from stoker.inspect.figures import (
    Backlog,
    Figures,
    Point,
    QueueFigures,
    TaskFigures,
    Times,
    Total,
    backlog_of,
    figures_of,
)
from stoker.store.engines.sessions import explained

from .conf import Settings
from .models import Sample, Tally
from .models.metrics import COLUMNS, FINEST_SECONDS, FOLDS, SAMPLE_SECONDS, Sums, TallyRow

__all__ = [
    "Backlog",
    "Figures",
    "Point",
    "QueueFigures",
    "TaskFigures",
    "Times",
    "Total",
    "by_queue",
    "by_task",
    "ended_lately",
    "finest_step",
    "history",
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
        step_seconds: length of a step. It is increased to a multiple of ``finest_step`` if the
            metrics of that age are stored in longer steps.
        queue: only this queue.
        task: only this task, by its dotted path.

    Raises:
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    finest = finest_step(since)
    step = max(1, round(step_seconds / finest)) * finest
    begin = int(since.timestamp()) // step * step
    end = int(until.timestamp()) // step * step + step
    sums: dict[int, Sums] = {}
    backlogs: dict[int, list[Sample]] = {}
    with explained(settings.database):
        for row in _tallies(settings, begin, end, queue, task):
            sums.setdefault(row.start // step * step, Sums()).add_row(row)
        if task is None:
            for sample in _samples(settings, begin, end, queue):
                backlogs.setdefault(sample.start // step * step, []).append(sample)
    return tuple(
        Point(
            start=datetime.fromtimestamp(start, UTC),
            seconds=step,
            figures=figures_of(sums.get(start, Sums())),
            backlog=backlog_of(backlogs.get(start, ())),
        )
        for start in range(begin, end, step)
    )


def by_task(settings: Settings, since: datetime, until: datetime) -> tuple[TaskFigures, ...]:
    """Return the tasks with attempts in a period, sorted by total run time, the longest first.

    Raises: as ``history``.
    """
    totals = _totals(settings, since, until, lambda row: row.task)
    names = sorted(totals, key=lambda name: (-totals[name].run_seconds, name))
    return tuple(TaskFigures(name, figures_of(totals[name])) for name in names)


def by_queue(settings: Settings, since: datetime, until: datetime) -> tuple[QueueFigures, ...]:
    """Return the queues with attempts or waiting jobs in a period, by name. Raises: as
    ``history``."""
    totals = _totals(settings, since, until, lambda row: row.queue)
    samples: dict[str, list[Sample]] = {}
    with explained(settings.database):
        begin, end = _whole(since, until)
        for sample in _samples(settings, begin // SAMPLE_SECONDS * SAMPLE_SECONDS, end):
            samples.setdefault(sample.queue, []).append(sample)
    return tuple(
        QueueFigures(name, figures_of(totals.get(name, Sums())), backlog_of(samples.get(name, ())))
        for name in sorted({*totals, *samples})
    )


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


def _totals(
    settings: Settings, since: datetime, until: datetime, name_of: Callable[[TallyRow], str]
) -> dict[str, Sums]:
    totals: dict[str, Sums] = {}
    with explained(settings.database):
        for row in _tallies(settings, *_whole(since, until)):
            totals.setdefault(name_of(row), Sums()).add_row(row)
    return totals


def _whole(since: datetime, until: datetime) -> tuple[int, float]:
    """Return the period, extended to the last whole step before ``since``."""
    finest = finest_step(since)
    return int(since.timestamp()) // finest * finest, until.timestamp()


def _tallies(
    settings: Settings, begin: int, end: float, queue: str | None = None, task: str | None = None
) -> Iterable[TallyRow]:
    rows: Any = Tally.objects.using(settings.database).between(begin, end)
    if queue is not None:
        rows = rows.filter(queue=queue)
    if task is not None:
        rows = rows.filter(task=task)
    found: Iterable[TallyRow] = rows.values_list(*COLUMNS, named=True).iterator(chunk_size=2000)
    return found


def _samples(
    settings: Settings, begin: int, end: float, queue: str | None = None
) -> Iterable[Sample]:
    rows = Sample.objects.using(settings.database).between(begin, end)
    return rows if queue is None else rows.filter(queue=queue)
