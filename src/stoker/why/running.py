"""Of a job that a cluster has: where it runs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from stoker.durations import in_words
from stoker.models import Cancellation, Claimed, Cluster
from stoker.stats import ClusterState, RunningJob, WorkerState, longest_silence

from .answer import Answer, Kind
from .asked import Asked

Seat = tuple[ClusterState, WorkerState, RunningJob]


def answer_running(asked: Asked, row: Claimed) -> Answer:
    """Of a job that is leased in the store."""
    asked.queue = row.queue
    cluster = _cluster_of(asked, row.holder)
    if cluster is None:
        return _answer_of_stranger(asked, row) or _answer_silent(asked, row, None)
    if not asked.is_alive(cluster):
        return _answer_silent(asked, row, cluster)
    seat = _seat_of(asked)
    if seat is not None:
        return _answer_at_work(asked, seat, row.attempts)
    where = {"cluster": cluster.id, "host": cluster.host}
    return asked.answer(
        Kind.HANDED_OUT,
        f"The cluster on {cluster.host} (process {cluster.pid}) has it, and had not begun it at "
        f"its last sign of life, {in_words(cluster.silent_seconds)} ago: it waits there for a free "
        "worker, or has begun since.",
        attempt=row.attempts,
        **where,
    )


def answer_running_elsewhere(asked: Asked) -> Answer | None:
    """Of a job that a broker outside the database may have: clusters show what they run."""
    seat = _seat_of(asked)
    return None if seat is None else _answer_at_work(asked, seat, seat[2].attempt)


def _answer_at_work(asked: Asked, seat: Seat, attempt: int | None) -> Answer:
    cluster, worker, running = seat
    asked.task = asked.task or running.task
    asks = Cancellation.objects.using(asked.alias).filter(pk=asked.job_id).first()
    facts: dict[str, Any] = {
        "cluster": cluster.id,
        "host": cluster.host,
        "worker": worker.number,
        "pid": worker.pid,
        "seconds": running.seconds,
        "attempt": attempt,
        "is_being_cancelled": asks is not None,
    }
    tried = f" in attempt {attempt}" if attempt else ""
    sentence = (
        f"It runs{tried} in worker {worker.number} (process {worker.pid}) on {cluster.host}, for "
        f"{in_words(running.seconds)}."
    )
    if cluster.silent_seconds > longest_silence(asked.settings):
        silence = in_words(cluster.silent_seconds)
        sentence += f" So it was {silence} ago: that cluster has given no sign of life since."
    if asks is not None:
        because = f" ({asks.reason})" if asks.reason else ""
        sentence += f" It was told to end{because}."
    return asked.answer(Kind.RUNNING, sentence, **facts)


def _answer_of_stranger(asked: Asked, row: Claimed) -> Answer | None:
    """Of a job that a cluster of another backend has, whose queues are in the same store."""
    clusters = Cluster.objects.using(asked.alias).alive_within(asked.settings.lease_seconds)
    cluster = clusters.filter(pk=row.holder).first()
    if cluster is None:
        return None
    return asked.answer(
        Kind.HANDED_OUT,
        f"The cluster {cluster.name} on {cluster.host} (process {cluster.pid}) has it, which is of "
        "another backend: ask there.",
        cluster=str(cluster.pk),
        host=cluster.host,
        attempt=row.attempts,
    )


def _answer_silent(asked: Asked, row: Claimed, cluster: ClusterState | None) -> Answer:
    left = max(0.0, asked.seconds_until(row.leased_until_us))
    facts: dict[str, Any] = {
        "cluster": str(row.holder),
        "host": cluster.host if cluster is not None else None,
        "silent_seconds": cluster.silent_seconds if cluster is not None else None,
        "lease_seconds": left,
    }
    who = "The cluster that had it is gone"
    if cluster is not None:
        silence = in_words(cluster.silent_seconds)
        who = f"The cluster on {cluster.host} that has it has given no sign of life for {silence}"
    others = [one for one in asked.clusters if asked.is_alive(one)]
    return asked.answer(
        Kind.CLUSTER_SILENT,
        f"{who}. Its lease ends in {in_words(left)}: then another cluster takes the job over.",
        "" if others else "No other cluster is alive: start one by `manage.py stoker run`.",
        **facts,
    )


def _cluster_of(asked: Asked, holder: UUID) -> ClusterState | None:
    for cluster in asked.clusters:
        if cluster.id == str(holder):
            return cluster
    return None


def _seat_of(asked: Asked) -> Seat | None:
    """Where it runs, as of its cluster's last sign of life."""
    for cluster in asked.clusters:
        for worker in cluster.workers:
            for running in worker.running:
                if running.job_id == str(asked.job_id):
                    return cluster, worker, running
    return None
