"""How many jobs of each queue are where, and which queues are paused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Max
from django.utils import timezone

from .brokers import broker_for
from .conf import Settings
from .models import Attempt, Blocked, Claimed, Deferred, Job, PausedQueue, Ready
from .models.counting import Shares, count_of, shares_of
from .progress import explained

STATES = ("ready", "deferred", "blocked", "running")


@dataclass(frozen=True, slots=True)
class Pause:
    """Since when a queue is paused, by whom, and why."""

    since: datetime
    by: str
    because: str


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How many jobs of one queue are where."""

    name: str
    ready: int
    deferred: int
    blocked: int
    running: int
    """Leased to a cluster: running in a worker, or about to."""
    is_exact: bool
    """Whether the numbers are counted, not estimated."""
    oldest_ready_seconds: float | None
    """How long the next job has waited since it might have started: of each priority the next one
    is looked at, and the longest wait is told. None without a ready job, and where only the broker
    could tell."""
    paused: Pause | None = None
    """None = it is not."""


def queues(settings: Settings) -> tuple[QueueDepth, ...]:
    """The queues that have a job, are paused, or are named by ``QUEUES``; by name.

    Raises:
        BrokerUnavailable, NotMigrated: the store can't be read.
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
        ready = _ready_by_queue(settings.database)
        places = {"ready": ready} | {
            state: shares_of(model.objects.using(settings.database), "queue")
            for state, model in (("deferred", Deferred), ("blocked", Blocked), ("running", Claimed))
        }
        with_jobs = {name for place in places.values() for name in place.numbers}
        return tuple(
            QueueDepth(
                name=name,
                **{state: place.numbers.get(name, 0) for state, place in places.items()},
                is_exact=all(place.is_exact for place in places.values()),
                oldest_ready_seconds=_oldest_ready_seconds(settings.database, name),
                paused=paused.get(name),
            )
            for name in sorted({*settings.queues, *paused, *with_jobs})
        )


def pauses(settings: Settings) -> dict[str, Pause]:
    """Queue -> its pause, of those that are paused. Raises: as ``queues``."""
    with explained(settings.database):
        rows = PausedQueue.objects.using(settings.database)
        return {row.queue: Pause(row.since, row.by, row.because) for row in rows}


def _ready_by_queue(alias: str) -> Shares:
    ready = Ready.objects.using(alias)
    counts = {name: count_of(ready.filter(queue=name)) for name in ready.queues()}
    numbers = {name: count.number for name, count in counts.items()}
    return Shares(numbers, all(count.is_exact for count in counts.values()))


def _oldest_ready_seconds(alias: str, queue: str) -> float | None:
    """Along the index of the claim: the next job of each priority, of which there are few."""
    line = Ready.objects.using(alias).filter(queue=queue).order_by("rank", "job_id")
    fronts: list[UUID] = []
    front = line.values_list("rank", "job_id").first()
    while front is not None:
        fronts.append(front[1])
        front = line.filter(rank__gt=front[0]).values_list("rank", "job_id").first()
    since = _ready_since(alias, fronts)
    return max(0.0, (timezone.now() - min(since)).total_seconds()) if since else None


def _ready_since(alias: str, job_ids: Sequence[UUID]) -> list[datetime]:
    """Since when each might have started: not before its moment, nor while it was being tried."""
    if not job_ids:
        return []
    tried = dict(
        Attempt.objects.using(alias)
        .filter(job_id__in=job_ids)
        .values_list("job_id")
        .annotate(last=Max("finished_at"))
    )
    jobs = Job.objects.using(alias).filter(pk__in=job_ids)
    return [
        max(filter(None, (enqueued_at, run_after, tried.get(job_id))))
        for job_id, enqueued_at, run_after in jobs.values_list("pk", "enqueued_at", "run_after")
    ]
