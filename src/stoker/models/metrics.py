"""The history of metrics: outcomes of jobs and queue sizes, in short periods.

Processes only add rows, each with its own sums of a few seconds, so they never conflict. Readers
add them up. Upkeep replaces old rows by fewer rows of longer periods:

::

    seconds     10    until 15 minutes ago
                60    until 90 minutes ago
               600    until 26 hours ago
              3600    for as long as KEEP_METRICS says
                 0    for ever: one row for each queue and task, for all that is past
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.db import models, transaction
from django.db.models.functions import Cast, Floor

from stoker.store.engines import engine_of
from stoker.values.histogram import add_written, written

FINEST_SECONDS = 10
SAMPLE_SECONDS = 60
"""Interval between samples of queue sizes. Counting rows takes longer than counting outcomes."""
AT_ONCE = 500
"""Number of rows per transaction."""


class Fold(NamedTuple):
    """Aggregation of old rows: rows of one period become fewer rows of a longer one."""

    seconds: int
    into_seconds: int
    after_seconds: int


FOLDS = (Fold(10, 60, 900), Fold(60, 600, 90 * 60), Fold(600, 3600, 26 * 3600))
EVER = 0
"""Period of rows that hold the totals of deleted rows."""
WIDTHS = (FINEST_SECONDS, *(fold.into_seconds for fold in FOLDS))


@dataclass(slots=True)
class Sums:
    """Totals of attempts."""

    successful: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    run_seconds: float = 0.0
    wait_seconds: float = 0.0
    run_classes: Counter[int] = field(default_factory=Counter)
    """Class of ``values.histogram`` -> number of attempts with that duration."""
    wait_classes: Counter[int] = field(default_factory=Counter)

    def add(self, row: Tally | Sums) -> None:
        """Add the numbers of a row, or other totals."""
        self.successful += row.successful
        self.failed += row.failed
        self.cancelled += row.cancelled
        self.retried += row.retried
        self.run_seconds = added_seconds(self.run_seconds, row.run_seconds)
        self.wait_seconds = added_seconds(self.wait_seconds, row.wait_seconds)
        add_written(self.run_classes, row.run_classes)
        add_written(self.wait_classes, row.wait_classes)


PARTS = 1e6
"""Seconds are added in whole microseconds. The sum of floats depends on their order, so a total
could decrease in the last digit when rows are folded."""


def added_seconds(*terms: float) -> float:
    """Return the sum of some seconds, each rounded to microseconds. It does not depend on the order
    in which they are added, also not over several calls."""
    return sum(math.floor(one * PARTS + 0.5) for one in terms) / PARTS


def summed(rows: Iterable[Sequence[Any]]) -> Sums:
    """Return the totals of at least one row with the columns of ``TallyQuerySet.texts``."""
    _start, _queue, _task, *columns, runs, waits = zip(*rows, strict=True)
    numbers: dict[str, Any] = {
        name: sum(column) for name, column in zip(SUMMED, columns, strict=True)
    }
    # Thousands of dictionaries take less time than counters. They are only read.
    return Sums(**numbers | {"run_classes": _classes(runs), "wait_classes": _classes(waits)})


def _classes(texts: Sequence[str]) -> dict[int, int]:
    """Add up histograms, each as JSON."""
    total: dict[str, int] = {}
    for counts in json.loads(f"[{','.join(texts)}]"):  # one call for thousands of small texts
        for number, count in counts.items():
            total[number] = total.get(number, 0) + count
    return {int(number): count for number, count in total.items()}


COUNTED = ("successful", "failed", "cancelled", "retried")
TIMED = ("run_seconds", "wait_seconds")
SUMMED = (*COUNTED, *TIMED)


class TaskInQueue(NamedTuple):
    """The jobs of one task in one queue."""

    queue: str
    task: str


class TallyQuerySet(models.QuerySet["Tally"]):
    def rows_of(
        self, start: int, seconds: int, sums: Mapping[TaskInQueue, Sums]
    ) -> Iterator[Tally]:
        """Yield unsaved rows for one period."""
        for place, one in sums.items():
            yield Tally(
                start=start,
                seconds=seconds,
                queue=place.queue,
                task=place.task[:255],
                run_classes=written(one.run_classes),
                wait_classes=written(one.wait_classes),
                **{name: getattr(one, name) for name in SUMMED},
            )

    def between(self, since: float, until: float) -> TallyQuerySet:
        """Return rows whose period starts in this range, in seconds since 1970."""
        return self.filter(seconds__in=WIDTHS, start__gte=since, start__lt=until)

    def add_to_totals(self, rows: Sequence[Tally]) -> None:
        """Add rows that will be deleted to the totals."""
        places = {TaskInQueue(row.queue, row.task) for row in rows}
        known = [
            one for one in self.filter(seconds=EVER) if TaskInQueue(one.queue, one.task) in places
        ]
        self.bulk_create(self.merged([*known, *rows], 0, EVER))
        self.filter(pk__in=[row.pk for row in known]).delete()

    def texts(self) -> models.QuerySet[Tally, tuple[Any, ...]]:
        """Return tuples of start, queue, task, the numbers of ``SUMMED``, and both histograms as
        JSON. Parsing each histogram separately would take most of the time of a page."""
        classes = (Cast(name, models.TextField()) for name in ("run_classes", "wait_classes"))
        return self.values_list("start", "queue", "task", *SUMMED, *classes)

    def totals(self) -> Iterator[tuple[TaskInQueue, dict[str, Any]]]:
        """Yield all-time totals, which never decrease."""
        counts = [models.Sum(name) for name in COUNTED]
        # Sums of whole numbers are exact, and `added_seconds` rounds in the same way.
        parts = [models.Sum(Floor(models.F(name) * PARTS + 0.5)) for name in TIMED]
        numbers = dict(zip(SUMMED, [*counts, *parts], strict=True))
        sums = {f"{name}_sum": number for name, number in numbers.items()}
        rows = self.order_by("queue", "task").values("queue", "task").annotate(**sums)
        for queue, task, *found in rows.values_list("queue", "task", *sums):
            totals = dict(zip(SUMMED, found, strict=True))
            seconds = {name: totals[name] / PARTS for name in TIMED}
            yield TaskInQueue(queue, task), {**totals, **seconds}

    def merged(self, rows: Sequence[Tally], start: int, seconds: int) -> Iterator[Tally]:
        """Yield fewer rows for one period with the same sums."""
        sums: dict[TaskInQueue, Sums] = {}
        for row in rows:
            sums.setdefault(TaskInQueue(row.queue, row.task), Sums()).add(row)
        return self.rows_of(start, seconds, sums)


class Tally(models.Model):
    """Outcomes of one task in one queue during one period, as recorded by one process."""

    id = models.BigAutoField(primary_key=True)
    start = models.BigIntegerField()
    """Start of the period: seconds since 1970 on the clock of the recording host."""
    seconds = models.IntegerField()
    """Length of the period."""
    queue = models.CharField(max_length=100)
    task = models.CharField(max_length=255)
    """Dotted path; "" = packages that could not be opened."""
    successful = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    """Jobs that became dead letters."""
    cancelled = models.BigIntegerField(default=0)
    retried = models.BigIntegerField(default=0)
    """Failed attempts that will be retried."""
    run_seconds = models.FloatField(default=0)
    """Sum of the durations that are counted in the classes."""
    wait_seconds = models.FloatField(default=0)
    run_classes = models.JSONField(default=dict)
    """Class of ``values.histogram`` -> number of attempts with that duration."""
    wait_classes = models.JSONField(default=dict)
    """Class -> number of first attempts that waited that long."""

    objects = TallyQuerySet.as_manager()

    class Meta:
        verbose_name = "tally"
        verbose_name_plural = "tallies"
        indexes = (models.Index(fields=["seconds", "start"], name="stoker_tally_time"),)

    def __str__(self) -> str:
        return f"{self.task} in {self.queue} at {self.start}"


PEAKS = ("ready", "deferred", "blocked", "running", "oldest_ready_seconds")


class SampleQuerySet(models.QuerySet["Sample"]):
    def between(self, since: float, until: float) -> SampleQuerySet:
        """Return rows whose period starts in this range, in seconds since 1970."""
        return self.filter(seconds__in=WIDTHS, start__gte=since, start__lt=until)

    def merged(self, rows: Sequence[Sample], start: int, seconds: int) -> Iterator[Sample]:
        """Yield one row for each queue, with the maximum of each number."""
        by_queue: dict[str, list[Sample]] = {}
        for row in rows:
            by_queue.setdefault(row.queue, []).append(row)
        for queue, seen in by_queue.items():
            peaks = {name: highest(getattr(row, name) for row in seen) for name in PEAKS}
            yield Sample(start=start, seconds=seconds, queue=queue, **peaks)


class Sample(models.Model):
    """Number of jobs of one queue by state, at one moment."""

    id = models.BigAutoField(primary_key=True)
    start = models.BigIntegerField()
    """Seconds since 1970."""
    seconds = models.IntegerField()
    """Length of the period. If it is longer than a minute, each number is the maximum of several
    samples."""
    queue = models.CharField(max_length=100)
    ready = models.BigIntegerField(default=0)
    deferred = models.BigIntegerField(default=0)
    blocked = models.BigIntegerField(default=0)
    running = models.BigIntegerField(default=0)
    oldest_ready_seconds = models.FloatField(null=True)
    """How long the next ready job had waited, in seconds; NULL if no job was ready."""

    objects = SampleQuerySet.as_manager()

    class Meta:
        verbose_name = "sample"
        indexes = (models.Index(fields=["seconds", "start"], name="stoker_sample_time"),)

    def __str__(self) -> str:
        return f"{self.queue} at {self.start}"


def highest(numbers: Iterable[Any]) -> Any:
    """Return the largest number that is not None, or None if there is none."""
    return max((number for number in numbers if number is not None), default=None)


def fold_oldest(rows: TallyQuerySet | SampleQuerySet, fold: Fold, now: float) -> bool:
    """Replace the oldest rows of this fold by fewer rows. Return False if there are none.

    Concurrent calls wait for each other; the second one finds nothing to do.

    Args:
        now: seconds since 1970.
    """
    limit = int(now - fold.after_seconds) // fold.into_seconds * fold.into_seconds
    due: Any = rows.filter(seconds=fold.seconds, start__lt=limit).order_by("start", "pk")
    oldest = due.values_list("start", flat=True).first()
    if oldest is None:
        return False
    start = oldest // fold.into_seconds * fold.into_seconds
    with transaction.atomic(using=rows.db):
        due = due.filter(start__lt=start + fold.into_seconds)
        due = engine_of(rows.db).lockable(due, waits=True)
        seen = list(due[:AT_ONCE])
        merged: Any = rows.merged(seen, start, fold.into_seconds)
        rows.bulk_create(merged)
        rows.filter(pk__in=[row.pk for row in seen]).delete()
    return True


def forget_before(rows: TallyQuerySet | SampleQuerySet, start: float) -> int:
    """Delete some of the rows that start before ``start``, and add them to the totals. Return their
    number."""
    due = rows.filter(seconds__in=WIDTHS, start__lt=start).order_by("start", "pk")
    with transaction.atomic(using=rows.db):
        due = engine_of(rows.db).lockable(due, waits=True)
        seen: list[Any] = list(due[:AT_ONCE])
        if isinstance(rows, TallyQuerySet) and seen:
            rows.add_to_totals(seen)
        rows.filter(pk__in=[row.pk for row in seen]).delete()
    return len(seen)
