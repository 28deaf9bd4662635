"""The numbers in the history of metrics, and what each counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

from stoker.models import Sample
from stoker.models.metrics import PEAKS, SAMPLE_SECONDS, Sums, highest
from stoker.values.histogram import percentile


@dataclass(frozen=True, slots=True)
class Times:
    """Distribution of a duration, in seconds. Percentiles have an error of up to 10 %."""

    count: int
    """Number of measurements."""
    mean: float | None
    """Mean; this and the percentiles are None if nothing was measured."""
    p50: float | None
    """Median."""
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Outcomes of jobs in a period."""

    successful: int
    """Jobs that succeeded."""
    failed: int
    """Jobs that became dead letters, crashed, timed out and expired ones included."""
    cancelled: int
    """Jobs that a cluster ended as cancelled. Jobs that were withdrawn while they waited are not
    included."""
    retried: int
    """Attempts that failed, crashed or timed out and are retried."""
    run: Times
    """Duration of attempts with any outcome, including atomic tasks and crashed workers."""
    wait: Times
    """Time from the enqueue, or from ``run_after``, until the first attempt began. It includes time
    in the queue, behind guards and in paused queues."""

    @property
    def finished(self) -> int:
        """Jobs that ended in any state."""
        return self.successful + self.failed + self.cancelled

    @property
    def failure_rate(self) -> float | None:
        """Failed jobs divided by failed and successful jobs, from 0 to 1. None if there are
        none."""
        judged = self.successful + self.failed
        return self.failed / judged if judged else None


@dataclass(frozen=True, slots=True)
class Backlog:
    """Number of jobs by state: the maximum of samples taken once a minute, summed over queues."""

    ready: int
    """Jobs that could start."""
    deferred: int
    """Jobs that waited for their start time or their next attempt."""
    blocked: int
    """Jobs that waited for a guard."""
    running: int
    """Jobs that were leased to a cluster."""
    oldest_ready_seconds: float | None
    """Longest wait of the next ready job in any of the queues; None if none was ready."""


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a history."""

    start: datetime
    """Start in UTC."""
    seconds: int
    """Length in seconds."""
    figures: Figures
    backlog: Backlog | None
    """None for steps without a sample, such as most steps shorter than a minute, and in the history
    of one task."""

    @property
    def per_second(self) -> float:
        """Jobs that ended per second. The last point of a history may still be in progress."""
        return self.figures.finished / self.seconds


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """Figures of one task over a whole period."""

    task: str
    """Dotted path; "" = packages that could not be opened."""
    figures: Figures


@dataclass(frozen=True, slots=True)
class Summary:
    """The history of a period, and its figures by task."""

    points: tuple[Point, ...]
    tasks: tuple[TaskFigures, ...]
    """Sorted by total run time, the longest first."""


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """Figures of one queue over a whole period."""

    queue: str
    figures: Figures
    backlog: Backlog | None
    """Maximum of each number in the period; None if no sample was taken."""


@dataclass(frozen=True, slots=True)
class Total:
    """All-time totals of one task in one queue, including rows that ``KEEP_METRICS`` has
    deleted."""

    queue: str
    task: str
    """Dotted path; "" = packages that could not be opened."""
    successful: int
    failed: int
    cancelled: int
    retried: int
    run_seconds: float
    wait_seconds: float


def figures_of(sums: Sums) -> Figures:
    """Convert sums to figures."""
    return Figures(
        successful=sums.successful,
        failed=sums.failed,
        cancelled=sums.cancelled,
        retried=sums.retried,
        run=_times(sums.run_classes, sums.run_seconds),
        wait=_times(sums.wait_classes, sums.wait_seconds),
    )


def _times(classes: dict[int, int], seconds: float) -> Times:
    count = sum(classes.values())
    return Times(
        count=count,
        mean=seconds / count if count else None,
        p50=percentile(classes, 0.50),
        p95=percentile(classes, 0.95),
        p99=percentile(classes, 0.99),
    )


def backlog_of(samples: Iterable[Sample]) -> Backlog | None:
    """Return the maximum of simultaneous samples, or None without samples."""
    seen = list(samples)
    if not seen:
        return None
    once = {(sample.start // SAMPLE_SECONDS, sample.queue): sample for sample in seen}
    together: dict[int, list[Sample]] = {}
    for (at, _), sample in once.items():
        together.setdefault(at, []).append(sample)
    return Backlog(
        **{
            name: max(sum(map(attrgetter(name), some)) for some in together.values())
            for name in PEAKS[:-1]
        },
        oldest_ready_seconds=highest(sample.oldest_ready_seconds for sample in seen),
    )
