"""What the history of metrics says: each number with what it counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from stoker.models import Sample
from stoker.models.metrics import PEAKS, SAMPLE_SECONDS, Sums, highest
from stoker.values.histogram import percentile


@dataclass(frozen=True, slots=True)
class Times:
    """How long something took, in seconds. Percentiles are told to within a tenth of themselves."""

    count: int
    """Of how many the other numbers tell."""
    mean: float | None
    """None, as are the others, where nothing was counted."""
    p50: float | None
    """Half of them took no longer."""
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What became of jobs in one stretch of time."""

    successful: int
    """Jobs that ended well."""
    failed: int
    """Jobs that failed for good and became dead letters: also crashed, timed out or expired."""
    cancelled: int
    """Jobs that a cluster ended as cancelled. Those withdrawn while they waited are not in it."""
    retried: int
    """Attempts that failed, crashed or timed out and are tried again: no end of a job."""
    run: Times
    """How long attempts ran, whatever they came to; of atomic tasks, and of those whose worker
    died, too."""
    wait: Times
    """How long jobs waited for their first attempt: from when they were enqueued, or from
    ``run_after`` on, until a worker began. Time in line, behind guards and in paused queues."""

    @property
    def finished(self) -> int:
        """Jobs that ended, however they did."""
        return self.successful + self.failed + self.cancelled

    @property
    def failure_rate(self) -> float | None:
        """The share of failed ones among those that ended well or failed, from 0 to 1. None where
        none did."""
        judged = self.successful + self.failed
        return self.failed / judged if judged else None


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many jobs were where: the highest number that was seen, by a look every minute. Of
    several queues, their sum."""

    ready: int
    """Could have started."""
    deferred: int
    """Waited for their moment, or for their next attempt."""
    blocked: int
    """A guard held them back."""
    running: int
    """Were leased to a cluster."""
    oldest_ready_seconds: float | None
    """How long the next ready job had waited, of any of the queues; None where none was ready."""


@dataclass(frozen=True, slots=True)
class Point:
    """One stretch of a history."""

    start: datetime
    """In UTC."""
    seconds: int
    """How long it is."""
    figures: Figures
    backlog: Backlog | None
    """None where nobody looked in that time, as in most steps that are shorter than a minute; and
    in the history of one task."""

    @property
    def per_second(self) -> float:
        """Jobs that ended, per second. The last point of a history may not be over yet."""
        return self.figures.finished / self.seconds


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """One task over the whole time."""

    task: str
    """Its dotted path; "" = of packages that could not be opened."""
    figures: Figures


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """One queue over the whole time."""

    queue: str
    figures: Figures
    backlog: Backlog | None
    """The highest of each number in that time; None where nobody looked."""


@dataclass(frozen=True, slots=True)
class Total:
    """What was ever counted of one task in one queue, also what ``KEEP_METRICS`` lets go."""

    queue: str
    task: str
    """Its dotted path; "" = of packages that could not be opened."""
    successful: int
    failed: int
    cancelled: int
    retried: int
    run_seconds: float
    wait_seconds: float


def figures_of(sums: Sums) -> Figures:
    """As screens want them."""
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
    """The highest of what was seen at the same time; None of nothing."""
    seen = list(samples)
    if not seen:
        return None
    once = {(sample.start // SAMPLE_SECONDS, sample.queue): sample for sample in seen}
    sums: dict[int, dict[str, float]] = {}
    for (at, _), sample in once.items():
        place = sums.setdefault(at, dict.fromkeys(PEAKS[:-1], 0))
        for name in place:
            place[name] += getattr(sample, name)
    return Backlog(
        **{name: int(highest(one[name] for one in sums.values())) for name in PEAKS[:-1]},
        oldest_ready_seconds=highest(sample.oldest_ready_seconds for sample in seen),
    )
