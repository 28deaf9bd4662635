"""Number of jobs per queue and state, and paused queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import OuterRef, Subquery
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.models import Attempt, Job, PausedQueue, Ready
from stoker.store import counting
from stoker.store.counting import Shares, estimated, estimates_of
from stoker.store.engines import engine_of
from stoker.store.engines.sessions import explained
from stoker.store.places import PLACES
from stoker.store.written import as_uuid, statement

QUEUES_AT_ONCE = 200
MOST_READY, LEAST_OF_QUEUE = 100_000, 1_000
"""The ready jobs of all queues together are counted up to about this number, those of each queue at
least up to the second one."""
STATES = ("ready", "deferred", "blocked", "running")


@dataclass(frozen=True, slots=True)
class Pause:
    """The pause of a queue: its time, the person, and the reason."""

    since: datetime
    by: str
    because: str


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Number of jobs of one queue by state."""

    name: str
    ready: int
    deferred: int
    blocked: int
    running: int
    """Jobs that are leased to a cluster."""
    is_exact: bool
    """Whether the numbers are counted, not estimated."""
    oldest_ready_seconds: float | None
    """Longest wait among the next ready job of each priority. None if no job is ready, or if jobs
    wait outside the database."""
    paused: Pause | None = None
    """The pause of the queue; None = it is not paused."""


def queues(settings: Settings) -> tuple[QueueDepth, ...]:
    """Return the queues that have jobs, are paused or are named in ``QUEUES``, by name.

    Raises:
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    broker = broker_for(settings)
    paused = pauses(settings)
    if not broker.capabilities.transactional:
        sizes = broker.sizes()
        empty = {name: dict.fromkeys(STATES, 0) for name in {*settings.queues, *paused}}
        return tuple(
            QueueDepth(
                name, **size, is_exact=True, oldest_ready_seconds=None, paused=paused.get(name)
            )
            for name, size in sorted({**empty, **sizes}.items())
        )
    with explained(settings.database):
        fronts = _fronts(settings.database)
        places = _by_queue(settings.database, sorted({queue for queue, _ in fronts}))
        waits = _oldest_ready_seconds(settings.database, fronts)
        with_jobs = {name for place in places.values() for name in place.numbers}
        return tuple(
            QueueDepth(
                name=name,
                **{state: place.numbers.get(name, 0) for state, place in places.items()},
                is_exact=all(place.is_exact for place in places.values()),
                oldest_ready_seconds=waits.get(name),
                paused=paused.get(name),
            )
            for name in sorted({*settings.queues, *paused, *with_jobs, *waits})
        )


def pauses(settings: Settings) -> dict[str, Pause]:
    """Return the pauses of queues, by queue. Raises: as ``queues``."""
    with explained(settings.database):
        rows = PausedQueue.objects.using(settings.database)
        return {row.queue: Pause(row.since, row.by, row.because) for row in rows}


def _by_queue(alias: str, with_ready: Sequence[str]) -> dict[str, Shares]:
    """Return state -> number of jobs per queue.

    Runs one query per two hundred queues, and one more if there are more jobs than are counted.

    Args:
        alias: of the database.
        with_ready: the queues that have a ready job.
    """
    limit = counting.COUNTED_ROWS + 1
    of_queue = min(limit, max(LEAST_OF_QUEUE, MOST_READY // max(1, len(with_ready))))
    counted: dict[str, dict[str, int]] = {name: {} for name in STATES}
    for start in range(0, len(with_ready) or 1, QUEUES_AT_ONCE):
        some = with_ready[start:][:QUEUES_AT_ONCE]
        for place, queue, count in _counts(alias, some, limit, of_queue):
            counted[place][queue] = count
    ready = counted.pop("ready")
    unknown: dict[str, Any] = {
        place: PLACES[place]._default_manager.using(alias).all()
        for place, numbers in counted.items()
        if sum(numbers.values()) >= limit
    }
    rows = Ready.objects.using(alias)
    large = {queue: rows.filter(queue=queue) for queue, one in ready.items() if one >= of_queue}
    each = [*unknown.values(), *([rows.all(), *large.values()] if large else ())]
    estimates = iter(estimates_of(each) if each else ())
    totals = {place: next(estimates) for place in unknown}
    places = {
        place: estimated(totals[place], numbers) if place in totals else Shares(numbers)
        for place, numbers in counted.items()
    }
    if not large:
        return {"ready": Shares(ready), **places}
    total, weights = next(estimates), dict(zip(large, estimates, strict=True))
    return {"ready": _ready(ready, of_queue, total, weights), **places}


def _ready(
    counted: Mapping[str, int], limit: int, total: int, weights: Mapping[str, int]
) -> Shares:
    """Return the number of ready jobs per queue. Estimate queues that are too large to count.

    The planner's estimate for a single queue may be outdated, but its estimate for the whole table
    is good. So that number is distributed over the large queues.

    Args:
        counted: queue -> number, up to the limit.
        limit: of each queue.
        total: estimate of the number of all ready jobs.
        weights: the large queues -> estimate of the number of ready jobs.
    """
    rest = total - sum(counted[queue] for queue in counted.keys() - weights.keys())
    scale = rest / sum(max(1, weight) for weight in weights.values())
    known = {queue: max(limit, round(max(1, one) * scale)) for queue, one in weights.items()}
    return Shares({**counted, **known}, is_exact=False)


def _counts(
    alias: str, with_ready: Sequence[str], limit: int, of_queue: int
) -> list[tuple[str, str, int]]:
    names = {f"queue{number}": queue for number, queue in enumerate(with_ready)}
    ready = (
        statement("ready_of_queue", queue=f"%({name})s", limit=str(of_queue)) for name in names
    )
    text = "\nUNION ALL\n".join([statement("places_by_queue", limit=str(limit)), *ready])
    with connections[alias].cursor() as cursor:
        cursor.execute(text, names)
        rows: list[tuple[str, str, int]] = cursor.fetchall()
        return rows


def _fronts(alias: str) -> list[tuple[str, UUID]]:
    """Return (queue, job id) of the next ready job of each queue and priority."""
    connection = connections[alias]
    rows = engine_of(alias).fetch("ready_fronts", {}, rank=connection.ops.quote_name("rank"))
    return [(queue, as_uuid(job_id)) for queue, job_id in rows if job_id is not None]


def _oldest_ready_seconds(alias: str, fronts: Sequence[tuple[str, UUID]]) -> dict[str, float]:
    """Return the longest wait among these jobs, by queue."""
    since = _ready_since(alias, [job_id for _, job_id in fronts])
    now = timezone.now()
    waits: dict[str, float] = {}
    for queue, job_id in fronts:
        if job_id in since:
            seconds = max(0.0, (now - since[job_id]).total_seconds())
            waits[queue] = max(seconds, waits.get(queue, 0.0))
    return waits


def _ready_since(alias: str, job_ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """Return when each job became ready: after its start time and its last attempt."""
    if not job_ids:
        return {}
    attempts = Attempt.objects.filter(job_id=OuterRef("pk")).order_by("-number")
    jobs = Job.objects.using(alias).filter(pk__in=job_ids)
    jobs = jobs.annotate(tried_until=Subquery(attempts.values("finished_at")[:1]))
    names = ("pk", "enqueued_at", "run_after", "tried_until")
    return {job_id: max(filter(None, moments)) for job_id, *moments in jobs.values_list(*names)}
