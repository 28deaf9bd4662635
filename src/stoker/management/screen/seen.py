"""The data that the monitor reads: clusters, queues, the last minute, dead letters, failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stoker.conf import Settings
from stoker.dead_letters.search import FaultGroup
from stoker.inspect.jobs import JobFilter, JobSearch
from stoker.inspect.queue_depths import QueueDepth, queues
from stoker.inspect.stats import ClusterState, clusters, dead_letters, longest_silence
from stoker.metrics import by_queue
from stoker.models import Attempt
from stoker.operations.dead_letters import faults_of
from stoker.operations.queues import QUEUE_COLUMNS, queue_row
from stoker.store.engines.sessions import explained
from stoker.values.durations import in_words

PERIOD_SECONDS = 60
MOST_SHOWN = 10
"""Maximum number of faults and failures of a backend."""
PACE_COLUMNS = (*QUEUE_COLUMNS, "done/s", "failed/min", "p95 run", "p95 wait")


@dataclass(frozen=True, slots=True)
class Pace:
    """Number of jobs of one queue that ended in the last minute, and their times."""

    queue: str
    finished: int
    failed: int
    retried: int
    per_second: float
    run_p95_seconds: float | None
    wait_p95_seconds: float | None


@dataclass(frozen=True, slots=True)
class RecentFailure:
    """A job that has failed for good."""

    job_id: str
    task: str
    queue: str
    failed_at: datetime | None
    error: str
    """Class and message of its last attempt's error."""


@dataclass(frozen=True, slots=True)
class QueuesSeen:
    """The queues of a backend, as read at one moment."""

    queues: tuple[QueueDepth, ...]
    last_minute: tuple[Pace, ...]


@dataclass(frozen=True, slots=True)
class SeenBackend:
    """One backend, as read at one moment."""

    name: str
    queues: tuple[QueueDepth, ...]
    clusters: tuple[ClusterState, ...]
    dead_letters: int
    last_minute: tuple[Pace, ...]
    max_silence_seconds: float
    """Seconds without a heartbeat after which a cluster counts as silent."""
    faults: tuple[FaultGroup, ...]
    """The most frequent faults among the dead letters."""
    failures: tuple[RecentFailure, ...]
    """The newest first."""


@dataclass(frozen=True, slots=True)
class Seen:
    """All shown backends, as read at one moment."""

    taken_at: datetime
    backends: tuple[SeenBackend, ...]


def look(settings: Iterable[Settings]) -> Seen:
    """Read the state of the backends.

    Raises:
        BrokerUnavailable, NotMigrated: The store cannot be read.
    """
    return Seen(datetime.now(UTC), tuple(_look(one) for one in settings))


def _look(settings: Settings) -> SeenBackend:
    seen = queues_seen(settings)
    return SeenBackend(
        name=settings.alias,
        queues=seen.queues,
        clusters=clusters(settings),
        dead_letters=dead_letters(settings).total,
        last_minute=seen.last_minute,
        max_silence_seconds=longest_silence(settings),
        faults=tuple(faults_of(settings, {}, MOST_SHOWN).groups),
        failures=failures(settings, MOST_SHOWN),
    )


def queues_seen(settings: Settings) -> QueuesSeen:
    """List queues and rates of the last minute. Raises as ``look``."""
    now = datetime.now(UTC)
    paces = (
        Pace(
            queue=one.queue,
            finished=one.figures.finished,
            failed=one.figures.failed,
            retried=one.figures.retried,
            per_second=round(one.figures.finished / PERIOD_SECONDS, 3),
            run_p95_seconds=one.figures.run.p95,
            wait_p95_seconds=one.figures.wait.p95,
        )
        for one in by_queue(settings, now - timedelta(seconds=PERIOD_SECONDS), now)
    )
    return QueuesSeen(queues(settings), tuple(paces))


def failures(settings: Settings, limit: int) -> tuple[RecentFailure, ...]:
    """Return the jobs that have failed for good, the newest first. Raises: as ``look``."""
    with explained(settings.database):
        jobs = JobSearch(settings, JobFilter(state="FAILED")).page(limit).jobs
        attempts = Attempt.objects.using(settings.database)
        attempts = attempts.filter(job_id__in=[one.pk for one in jobs]).order_by("number")
        names = ("job_id", "exception_class", "message", "kind")
        errors = {
            job_id: f"{name.rpartition('.')[2] or kind}: {message}".rstrip(": ")
            for job_id, name, message, kind in attempts.values_list(*names)
        }
    return tuple(
        RecentFailure(
            job_id=str(one.pk),
            task=one.task,
            queue=one.queue,
            failed_at=one.finished_at,
            error=errors.get(one.pk, one.reason),
        )
        for one in jobs
    )


def queue_rows(known: Sequence[QueueDepth], last_minute: Iterable[Pace]) -> Iterator[Sequence[str]]:
    """Return the cells of each queue for ``PACE_COLUMNS``."""
    paces = {one.queue: one for one in last_minute}
    for queue in known:
        pace = paces.get(queue.name)
        name, *numbers = queue_row(queue)
        yield (
            f"{name} (paused)" if queue.paused is not None else name,
            *numbers,
            f"{pace.per_second:,.1f}" if pace is not None else "0.0",
            f"{pace.failed:,}" if pace is not None else "0",
            _time(pace.run_p95_seconds if pace is not None else None),
            _time(pace.wait_p95_seconds if pace is not None else None),
        )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:,.1f} ms" if seconds < 1 else in_words(seconds)
