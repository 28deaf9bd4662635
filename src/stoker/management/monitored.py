"""What ``stoker monitor`` shows: gathered, and put into rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stoker.conf import Settings
from stoker.durations import in_words
from stoker.metrics import by_queue
from stoker.queue_depths import QueueDepth, queues
from stoker.stats import ClusterState, clusters, dead_letters, longest_silence, state_of

PERIOD_SECONDS = 60

Table = tuple[str, Sequence[str], list[Sequence[str]]]
"""Title, columns, rows."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What became of one queue in the last minute."""

    queue: str
    finished: int
    failed: int
    retried: int
    per_second: float
    run_p95_seconds: float | None
    wait_p95_seconds: float | None


@dataclass(frozen=True, slots=True)
class SeenBackend:
    """One backend at one moment."""

    name: str
    queues: tuple[QueueDepth, ...]
    clusters: tuple[ClusterState, ...]
    dead_letters: int
    last_minute: tuple[Pace, ...]
    max_silence_seconds: float
    """For how long a cluster that is well may give no sign of life."""

    def tables(self) -> Iterator[Table]:
        """What is shown of it."""
        yield "clusters", CLUSTER_COLUMNS, list(self._cluster_rows())
        yield "queues", QUEUE_COLUMNS, list(self._queue_rows())
        yield "workers", WORKER_COLUMNS, list(_worker_rows(self.clusters))
        yield f"dead letters: {self.dead_letters:,}", (), []

    def _cluster_rows(self) -> Iterator[Sequence[str]]:
        for one in self.clusters:
            started_at = one.started_at
            now = datetime.now(started_at.tzinfo)
            busy = sum(1 for worker in one.workers if worker.running)
            yield (
                f"{one.name} on {one.host}",
                str(one.pid),
                state_of(one, self.max_silence_seconds),
                f"{busy} of {len(one.workers)} busy",
                f"{one.leases:,}",
                f"{in_words(one.silent_seconds)} ago",
                in_words((now - started_at).total_seconds()),
            )

    def _queue_rows(self) -> Iterator[Sequence[str]]:
        paces = {one.queue: one for one in self.last_minute}
        for queue in self.queues:
            pace = paces.get(queue.name)
            about = "" if queue.is_exact else "~"
            waited = queue.oldest_ready_seconds
            yield (
                f"{queue.name} (paused)" if queue.paused is not None else queue.name,
                f"{about}{queue.ready:,}",
                f"{about}{queue.deferred:,}",
                f"{about}{queue.blocked:,}",
                f"{about}{queue.running:,}",
                "" if waited is None else in_words(waited),
                f"{pace.per_second:,.1f}" if pace is not None else "0.0",
                f"{pace.failed:,}" if pace is not None else "0",
                _time(pace.run_p95_seconds if pace is not None else None),
                _time(pace.wait_p95_seconds if pace is not None else None),
            )


@dataclass(frozen=True, slots=True)
class Seen:
    """One look."""

    taken_at: datetime
    backends: tuple[SeenBackend, ...]


CLUSTER_COLUMNS = ("cluster", "process", "state", "workers", "leases", "last sign of life", "up")
QUEUE_COLUMNS = (
    "queue", "ready", "deferred", "blocked", "running", "next has waited", "done/s", "failed/min",
    "p95 run", "p95 wait",
)  # fmt: skip
WORKER_COLUMNS = ("worker", "process", "jobs done", "runs", "for")


def look(settings: Iterable[Settings]) -> Seen:
    """These backends now.

    Raises:
        BrokerUnavailable, NotMigrated: the store can't be read.
    """
    return Seen(datetime.now(UTC), tuple(_look(one) for one in settings))


def _look(settings: Settings) -> SeenBackend:
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
    return SeenBackend(
        name=settings.alias,
        queues=queues(settings),
        clusters=clusters(settings),
        dead_letters=dead_letters(settings).total,
        last_minute=tuple(paces),
        max_silence_seconds=longest_silence(settings),
    )


def _worker_rows(known: Iterable[ClusterState]) -> Iterator[Sequence[str]]:
    for cluster in known:
        for worker in cluster.workers:
            place = (f"{worker.number} on {cluster.host}", str(worker.pid), f"{worker.jobs_done:,}")
            for job in worker.running:
                yield (*place, f"{job.task or 'a job'} {job.job_id}", in_words(job.seconds))
            if not worker.running:
                yield (*place, "idle", "")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:,.1f} ms" if seconds < 1 else in_words(seconds)
