"""Of a job that may start: what keeps it from it, or who is before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Q
from django.utils import timezone

from stoker.durations import in_words
from stoker.exceptions import PackageError
from stoker.metrics import ended_lately
from stoker.models import Cluster, Ready
from stoker.models.counting import Number, count_of
from stoker.stats import ClusterState

from .answer import Answer, Kind, when
from .asked import Asked

RATE_SECONDS = 300.0
"""From so much of the history it is told how fast a queue moves."""


def answer_ready(asked: Asked, row: Ready | None) -> Answer:
    """Of a job that is ready; or would be, if a cluster looked (None)."""
    if row is not None:
        asked.queue = row.queue
    return (
        _unreadable(asked)
        or _paused(asked)
        or _not_served(asked)
        or _unknown_task(asked)
        or _in_line(asked, row)
    )


def _unreadable(asked: Asked) -> Answer | None:
    if not isinstance(asked.package, PackageError):
        return None
    return asked.answer(
        Kind.UNREADABLE,
        f"Its package can't be opened: {asked.package}",
        "It becomes a dead letter when a cluster fetches it. If clusters have the same SECRET_KEY, "
        "CLUSTER and SERIALIZER as this process, mend the settings first.",
        error=str(asked.package),
    )


def _paused(asked: Asked) -> Answer | None:
    pause = asked.pause
    if pause is None:
        return None
    by, why = (
        (f" by {pause.by}" if pause.by else ""),
        (f": {pause.because}" if pause.because else ""),
    )
    return asked.answer(
        Kind.PAUSED,
        f"The queue {asked.queue} is paused since {when(pause.since)}{by}{why}",
        f"`manage.py stoker resume {asked.queue}`.",
        since=pause.since,
        by=pause.by,
        because=pause.because,
    )


def _not_served(asked: Asked) -> Answer | None:
    """No cluster would fetch it."""
    alive = [one for one in asked.clusters if asked.is_alive(one)]
    if not alive:
        silent = [_shown(one) for one in asked.clusters]
        last = min((one.silent_seconds for one in asked.clusters), default=None)
        seen = "" if last is None else f"; the last one was heard {in_words(last)} ago"
        return asked.answer(
            Kind.NO_CLUSTER,
            f"No cluster of the backend {asked.settings.alias!r} is alive{seen}.",
            "Start one by `manage.py stoker run`.",
            silent=silent,
        )
    serving = [one for one in alive if _serves(one, asked.queue)]
    if not serving:
        return asked.answer(
            Kind.NOT_SERVED,
            f"No cluster serves the queue {asked.queue}.",
            f"Start one by `manage.py stoker run --queues {asked.queue}`, or name the queue under "
            "QUEUES.",
            clusters=[_shown(one) for one in alive],
        )
    if all(one.state != Cluster.State.RUNNING for one in serving):
        return asked.answer(
            Kind.CLUSTERS_QUIET,
            f"Every cluster that serves the queue {asked.queue} was asked to take no more jobs, or "
            "is stopping.",
            f"`manage.py stoker clusters resume {serving[0].id}`, or start another.",
            clusters=[_shown(one) for one in serving],
        )
    return None


def _unknown_task(asked: Asked) -> Answer | None:
    if asked.job is None or asked.unknown_task is None:
        return None
    return asked.answer(
        Kind.UNKNOWN_TASK,
        f"Its task is not known here: {asked.unknown_task}",
        "If the clusters do not have it either, deploy the code that has it, or cancel the job.",
        error=str(asked.unknown_task),
        due_at=None,
    )


def _in_line(asked: Asked, row: Ready | None) -> Answer:
    before = Number(0) if row is None else _before(asked, row)
    pace = _pace(asked)
    waiting = [one for one in asked.clusters if asked.is_alive(one)]
    free = sum(1 for one in waiting for worker in one.workers if not worker.running)
    waited = _waited_seconds(asked)
    expected = before.number / pace if pace else None
    about = "" if before.is_exact else "about "
    line = f"{about}{before.number:,} are before it" if before.number else "nobody is before it"
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
        "" if free or expected is not None else "All workers are busy: more of them would help.",
        before=before.number,
        is_exact=before.is_exact,
        waited_seconds=waited,
        per_second=pace,
        expected_seconds=expected,
        free_workers=free,
    )


def _before(asked: Asked, row: Ready) -> Number:
    """Along the index of the claim."""
    line = Ready.objects.using(asked.alias).filter(queue=row.queue)
    return count_of(line.filter(Q(rank__lt=row.rank) | Q(rank=row.rank, pk__lt=row.pk)))


def _pace(asked: Asked) -> float | None:
    """How many attempts end in a second in its queue, as of late; None where none did."""
    return ended_lately(asked.settings, asked.queue, RATE_SECONDS) / RATE_SECONDS or None


def _waited_seconds(asked: Asked) -> float | None:
    job = asked.job
    if job is None:
        return None
    since = max(filter(None, (job.enqueued_at, job.run_after)))
    return max(0.0, (timezone.now() - since).total_seconds())


def _serves(cluster: ClusterState, queue: str) -> bool:
    return not queue or not cluster.queues or queue in cluster.queues


def _shown(cluster: ClusterState) -> dict[str, Any]:
    queues: Sequence[str] = cluster.queues
    return {
        "id": cluster.id,
        "host": cluster.host,
        "pid": cluster.pid,
        "state": cluster.state,
        "queues": list(queues),
        "silent_seconds": cluster.silent_seconds,
    }
