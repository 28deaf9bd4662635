"""Read-only statistics for screens and commands.

Queries must not slow the store down: rows are found by an index, and large numbers are estimated
instead of counted (store/counting.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import Max
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable
from stoker.jobs.states import rows_at_broker
from stoker.models import Attempt, Claimed, Cluster, DeadLetter, Job
from stoker.models.cluster import name_of
from stoker.store.counting import count_of, shares_of
from stoker.store.engines.sessions import explained
from stoker.store.written import MICROSECONDS, DatabaseNow

from .queue_depths import QueueDepth, queues


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that runs in a worker."""

    job_id: str
    task: str
    queue: str
    attempt: int | None
    seconds: float
    """Duration of this attempt so far."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker process, as of its cluster's last heartbeat."""

    number: int
    name: str
    """Number and incarnation of the worker, such as ``0.1``. The worker's id in results ends with
    it."""
    pid: int
    jobs_done: int
    running: tuple[RunningJob, ...]
    resident_bytes: int = 0
    """Resident memory; 0 = unknown."""
    handed_out: tuple[str, ...] = ()
    """Ids of jobs that were sent to it and not started, next job first; incomplete if there are
    many."""
    is_recycled: bool = False
    """Whether the worker was asked to exit after its running jobs, to be replaced by a new
    process."""
    is_leaving: bool = False
    """Whether the worker starts no more jobs and exits after its running ones, because it is
    recycled or its cluster gets fewer workers."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process of a cluster other than a worker, as of the cluster's last heartbeat."""

    role: str
    """``sentinel``, ``pusher``, ``monitor`` or ``scheduler``; with ``--single`` ``core`` instead of
    the last three."""
    pid: int
    resident_bytes: int
    """Resident memory; 0 = unknown."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster with a row in the table of clusters."""

    id: str
    name: str
    host: str
    pid: int
    """Process id of the sentinel."""
    state: str
    """``running``, ``quiet`` (takes no new jobs, on request) or ``stopping``, as of its last
    heartbeat. A cluster that was killed keeps its state: see ``state_of``."""
    request: str
    """The pending request: "", ``quiet`` or ``stop``."""
    started_at: datetime
    silent_seconds: float
    """Seconds since its last heartbeat, on the database's clock."""
    queues: tuple[str, ...]
    """The queues that it serves; empty = all."""
    leases: int
    workers: tuple[WorkerState, ...]
    loops: Mapping[str, float] = field(default_factory=dict)
    """Name of a process (``pusher``, ``monitor`` or ``scheduler``) -> seconds between the last turn
    of its loop and the heartbeat."""
    processes: tuple[ProcessState, ...] = ()
    """The cluster's processes other than the workers; empty for a cluster of an older version."""
    wanted_workers: int | None = None
    """The number of workers that an operator has asked for. None = the number at its start."""
    most_workers: int = 0
    """The largest number of workers that can be requested; 0 = it cannot be resized."""
    is_single: bool = False
    """Whether its pusher, monitor and scheduler share one process (``stoker run --single``)."""


@dataclass(frozen=True, slots=True)
class FinishedCounts:
    """Number of stored jobs that have finished."""

    successful: int
    failed: int
    cancelled: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class DeadLetterCounts:
    """Number of open and requeued dead letters."""

    total: int
    by_reason: Mapping[str, int]
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Overview:
    """Statistics of one backend."""

    backend: str
    cluster: str
    """The setting ``CLUSTER``."""
    broker: str
    """URL of the broker, such as ``orm://default``."""
    server: str
    """Name and version of the server, such as ``PostgreSQL 15.4``."""
    taken_at: datetime
    queues: tuple[QueueDepth, ...]
    clusters: tuple[ClusterState, ...]
    finished: FinishedCounts
    dead_letters: DeadLetterCounts


def overview(settings: Settings) -> Overview:
    """Return all statistics of one backend.

    Raises:
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    broker = broker_for(settings).info()
    return Overview(
        backend=settings.alias,
        cluster=settings.cluster,
        broker=str(broker["broker"]),
        server=str(broker["server"]),
        taken_at=timezone.now(),
        queues=queues(settings),
        clusters=clusters(settings),
        finished=finished(settings),
        dead_letters=dead_letters(settings),
    )


def clusters(settings: Settings, *, facts: Facts | None = None) -> tuple[ClusterState, ...]:
    """Return the clusters of this backend, the longest running first.

    A dead cluster is included until upkeep removes it.

    Args:
        settings: the backend's.
        facts: what is known of running jobs. Other jobs of the last heartbeats are included without
            their task and queue. None = read it; jobs whose lease has ended since are left out.

    Raises:
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    with explained(settings.database):
        known = Cluster.objects.using(settings.database).filter(name=settings.cluster)
        rows: list[Any] = [
            row
            for row in known.annotate(now_us=DatabaseNow()).order_by("started_at", "pk")
            if row.info.get("alias", settings.alias) == settings.alias
        ]
        is_partial = facts is not None
        if facts is None:
            shown = [job for row in rows for worker in _workers(row) for job in worker["running"]]
            facts = _facts_of(settings, {UUID(job["job"]) for job in shown})
        return tuple(_cluster_state(row, row.now_us, facts, is_partial) for row in rows)


def finished(settings: Settings) -> FinishedCounts:
    """Count the stored jobs that have finished. Raises: as ``overview``."""
    with explained(settings.database):
        jobs = Job.objects.using(settings.database)
        counts = {status: count_of(jobs.filter(status=status)) for status in Job.Status}
    numbers = {status.lower(): count.number for status, count in counts.items()}
    return FinishedCounts(**numbers, is_exact=all(count.is_exact for count in counts.values()))


def dead_letters(settings: Settings) -> DeadLetterCounts:
    """Count the dead letters by reason. Raises: as ``overview``."""
    with explained(settings.database):
        shares = shares_of(DeadLetter.objects.using(settings.database).unclosed(), "reason")
    by_reason = dict(sorted(shares.numbers.items()))
    return DeadLetterCounts(sum(by_reason.values()), by_reason, shares.is_exact)


# -- running --------------------------------------------------------------------------------------


Facts = Mapping[UUID, tuple[str, str, int | None]]
"""Job id -> task, queue and attempt of running jobs."""


def _facts_of(settings: Settings, job_ids: set[UUID]) -> Facts:
    jobs = Job.objects.using(settings.database).filter(pk__in=job_ids)
    known = {
        job_id: (task, queue) for job_id, task, queue in jobs.values_list("pk", "task", "queue")
    }
    claimed = Claimed.objects.using(settings.database).filter(pk__in=job_ids)
    rows = claimed.values_list("pk", "queue", "attempts")
    facts: dict[UUID, tuple[str, str, int | None]] = {
        job_id: (known.get(job_id, ("",))[0], queue, attempt) for job_id, queue, attempt in rows
    }
    outside = job_ids - facts.keys()
    if not outside or broker_for(settings).broker is None:
        return facts
    with suppress(BrokerUnavailable):  # then the tasks of first attempts are unknown
        at_broker = rows_at_broker(settings, [one for one in outside if one not in known])
        known |= {job_id: (row.task, row.queue) for job_id, row in at_broker.items()}
    attempts = Attempt.objects.using(settings.database).filter(job_id__in=outside)
    tried = dict(attempts.values_list("job_id").annotate(last=Max("number")))
    return facts | {
        job_id: (*known.get(job_id, ("", "")), tried.get(job_id, 0) + 1) for job_id in outside
    }


def state_of(one: ClusterState, max_silence_seconds: float) -> str:
    """Return the state of a cluster as one word; ``silent`` if the last heartbeat is too old."""
    return "silent" if one.silent_seconds > max_silence_seconds else one.state


def longest_silence(settings: Settings) -> float:
    """Return the longest normal time between two heartbeats, in seconds."""
    return max(
        3 * settings.heartbeat_seconds, settings.heartbeat_seconds + settings.database_seconds
    )


def _cluster_state(row: Cluster, now_us: int, facts: Facts, is_partial: bool) -> ClusterState:
    silent_seconds = max(0.0, (now_us - row.heartbeat_us) / MICROSECONDS)
    running = partial(_running, silent_seconds=silent_seconds, facts=facts, is_partial=is_partial)
    to_recycle, wanted = row.recycle.split(), row.workers
    workers = [
        WorkerState(
            number=worker["number"],
            name=name_of(worker.get("id", "")),
            pid=worker["pid"],
            jobs_done=worker["jobs_done"],
            running=tuple(running(worker["running"])),
            resident_bytes=int(worker.get("resident_bytes", 0)),
            handed_out=tuple(worker.get("handed_out", ())),
            is_recycled=(is_recycled := name_of(worker.get("id", "")) in to_recycle),
            # The cluster obeys within a second, and says so in its next heartbeat.
            is_leaving=is_recycled
            or bool(worker.get("leaving"))
            or (wanted is not None and worker["number"] >= wanted),
        )
        for worker in _workers(row)
    ]
    return ClusterState(
        id=str(row.pk),
        name=row.name,
        host=row.host,
        pid=row.pid,
        state=row.state,
        request=row.request,
        started_at=row.started_at,
        silent_seconds=round(silent_seconds, 3),
        queues=tuple(row.info.get("queues", ())),
        leases=int(row.info.get("leases", 0)),
        workers=tuple(workers),
        loops=dict(row.info.get("loops", {})),
        processes=tuple(ProcessState(**one) for one in row.info.get("processes", ())),
        wanted_workers=row.workers,
        most_workers=int(row.info.get("most_workers", 0)),
        is_single=bool(row.info.get("single")),
    )


def _running(
    shown: Iterable[Mapping[str, Any]], silent_seconds: float, facts: Facts, is_partial: bool
) -> Iterable[RunningJob]:
    """Return the jobs of the last heartbeat. If all facts were read, leave out those whose lease
    has ended since."""
    for job in shown:
        job_id = UUID(job["job"])
        if is_partial or job_id in facts:
            task, queue, attempt = facts.get(job_id, ("", "", None))
            seconds = round(job["seconds"] + silent_seconds, 1)
            yield RunningJob(str(job_id), task, queue, attempt, seconds)


def _workers(row: Cluster) -> list[dict[str, Any]]:
    return list(row.info.get("workers", ()))
