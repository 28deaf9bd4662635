"""Explain why a ready job does not start: its queue, the clusters, or other jobs before it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone

from stoker.exceptions import PackageError
from stoker.inspect.stats import ClusterState
from stoker.jobs.package import Package
from stoker.metrics import ended_lately
from stoker.models import Blocked, Cluster, Ready
from stoker.store.counting import Number, count_of
from stoker.store.written import moment
from stoker.values.durations import in_words
from stoker.values.text import plural

from .answer import Answer, Asked, Kind, when

RATE_SECONDS = 300.0
"""Length of the past period that is used to compute the speed of a queue."""


def answer_ready(asked: Asked, row: Ready | None) -> Answer:
    """Answer for a job that is ready, or for an overdue deferred one (``row=None``)."""
    if row is not None:
        asked.queue = row.queue
    return (
        _unreadable(asked)
        or _expired(asked, time.time())
        or _paused(asked)
        or _not_served(asked)
        or _unknown_task(asked)
        or _in_line(asked, row)
    )


def with_next_obstacle(asked: Asked, answer: Answer | None) -> Answer | None:
    """Add to the answer for a deferred or blocked job why it will not run afterwards either."""
    if answer is None or answer.needs_somebody:
        return answer
    starts_at = time.time() + answer.facts.get("seconds", 0.0)
    obstacle = _expired(asked, starts_at) or _paused(asked) or _not_served(asked)
    if obstacle is None:
        return answer
    return replace(
        answer,
        sentence=f"{answer.sentence} {obstacle.sentence}",
        advice=f"{answer.advice} {obstacle.advice}".lstrip(),
        facts={**answer.facts, "then": obstacle.kind.value},
    )


def _unreadable(asked: Asked) -> Answer | None:
    if not isinstance(asked.package, PackageError):
        return None
    return asked.answer(
        Kind.UNREADABLE,
        f"Its package can't be opened: {asked.package}",
        "It becomes a dead letter when a cluster claims it, unless a cluster with another key is "
        "alive. If clusters have the same SECRET_KEY, CLUSTER and SERIALIZER as this process, fix "
        "the settings first.",
        error=str(asked.package),
    )


def _expired(asked: Asked, starts_at: float) -> Answer | None:
    """Answer if the job expires before it starts. The hosts' clocks decide about that.

    Args:
        starts_at: in seconds since 1970.
    """
    package = asked.package
    expires_at = package.options.expires_at if isinstance(package, Package) else None
    if expires_at is None or expires_at > starts_at:
        return None
    expires = "expires" if expires_at > time.time() else "expired"
    return asked.answer(
        Kind.EXPIRED,
        f"It {expires} at {when(moment(expires_at))}: it becomes a dead letter instead of running.",
        "Requeue the dead letter if it is still needed.",
        expires_at=moment(expires_at),
    )


def _paused(asked: Asked) -> Answer | None:
    pause = asked.pause
    if pause is None:
        return None
    by = f" by {pause.by}" if pause.by else ""
    why = f": {pause.because}" if pause.because else ""
    return asked.answer(
        Kind.PAUSED,
        f"The queue {asked.queue} is paused since {when(pause.since)}{by}{why}",
        f"{asked.command('resume', asked.queue)}.",
        since=pause.since,
        by=pause.by,
        because=pause.because,
    )


def _not_served(asked: Asked) -> Answer | None:
    """Answer if no cluster would claim the job."""
    alive = [one for one in asked.clusters if asked.is_alive(one)]
    if not alive:
        silent = [_shown_seconds(one) for one in asked.clusters]
        last = min((one.silent_seconds for one in asked.clusters), default=None)
        seen = "" if last is None else f"; the last heartbeat of one was {in_words(last)} ago"
        return asked.answer(
            Kind.NO_CLUSTER,
            f"No cluster of the backend {asked.settings.alias!r} is alive{seen}.",
            f"Start one with {asked.command('run')}.",
            silent=silent,
        )
    serving = [one for one in alive if _serves(one, asked.queue)]
    if not serving:
        return asked.answer(
            Kind.NOT_SERVED,
            f"No cluster serves the queue {asked.queue}.",
            f"Start one with {asked.command('run --queues', asked.queue)}, or name the queue under "
            "QUEUES.",
            clusters=[_shown_seconds(one) for one in alive],
        )
    if all(one.state != Cluster.State.RUNNING for one in serving):
        return asked.answer(
            Kind.CLUSTERS_QUIET,
            f"Every cluster that serves the queue {asked.queue} was asked to take no more jobs, or "
            "is stopping.",
            f"{asked.command('clusters resume', serving[0].id)}, or start another.",
            clusters=[_shown_seconds(one) for one in serving],
        )
    return None


def _unknown_task(asked: Asked) -> Answer | None:
    if asked.job is None or asked.unknown_task is None:
        return None
    return asked.answer(
        Kind.UNKNOWN_TASK,
        f"This process does not know its task: {asked.unknown_task}",
        "If the clusters do not have it either, deploy the code that has it, or cancel the job.",
        error=str(asked.unknown_task),
        due_at=None,
    )


def _in_line(asked: Asked, row: Ready | None) -> Answer:
    before = (
        Number(0) if row is None else number_before(Ready.objects.using(asked.alias).all(), row)
    )
    pace = _pace(asked)
    free = _free_workers(asked)
    waited = _waited_seconds(asked)
    expected = before.number / pace if pace else None
    about = "" if before.is_exact else "about "
    count = plural(before.number, "job is", "jobs are")
    line = f"{about}{count} before it" if before.number else "no other job is before it"
    if row is None:
        line = "it waits at its broker"
    sentence = f"It may start, in the queue {asked.queue or 'of its broker'}: {line}"
    if waited is not None:
        sentence += f", and it has waited {in_words(waited)}"
    if expected is not None and before.number:
        sentence += f". At {pace:,.1f} a second its turn comes in about {in_words(expected)}"
    elif before.number:
        sentence += ". Nothing has ended in this queue for five minutes"
    return asked.answer(
        Kind.IN_LINE,
        sentence + ".",
        "" if free or expected else "All workers are busy: start more workers or another cluster.",
        before=before.number,
        is_exact=before.is_exact,
        waited_seconds=waited,
        per_second=pace,
        expected_seconds=expected,
        free_workers=free,
    )


def _free_workers(asked: Asked) -> int:
    """Count the idle workers of clusters that would claim the job."""
    return sum(
        not worker.running and not worker.is_leaving
        for one in asked.clusters
        if asked.is_alive(one) and one.state == Cluster.State.RUNNING and _serves(one, asked.queue)
        for worker in one.workers
    )


def number_before(line: QuerySet[Any], row: Ready | Blocked) -> Number:
    """Count the jobs of the queue that come before this one, along an index."""
    earlier = Q(rank__lt=row.rank) | Q(rank=row.rank, pk__lt=row.pk)
    return count_of(line.filter(earlier, queue=row.queue))


def _pace(asked: Asked) -> float | None:
    """Return the attempts per second that recently ended in the queue; None if there were none."""
    return ended_lately(asked.settings, asked.queue, RATE_SECONDS) / RATE_SECONDS or None


def _waited_seconds(asked: Asked) -> float | None:
    job = asked.job
    if job is None:
        return None
    since = max(filter(None, (job.enqueued_at, job.run_after)))
    return max(0.0, (timezone.now() - since).total_seconds())


def _serves(cluster: ClusterState, queue: str) -> bool:
    return not queue or not cluster.queues or queue in cluster.queues


def _shown_seconds(cluster: ClusterState) -> dict[str, Any]:
    return {
        "id": cluster.id,
        "host": cluster.host,
        "pid": cluster.pid,
        "state": cluster.state,
        "queues": list(cluster.queues),
        "silent_seconds": cluster.silent_seconds,
    }
