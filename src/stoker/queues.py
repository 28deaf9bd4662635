"""Queues: seen, paused, resumed and cleared.

::

    from stoker import queues

    queues.pause("mail", by="alice", because="the provider is down")
    queues.resume("mail")
    queues.clear("mail", by="alice", because="yesterday's news", dry_run=True)

A pause is stored: it holds for every cluster, within a second, until somebody resumes the queue.
Jobs that run go on; what was fetched and has not started is given back, its attempt uncounted. Jobs
may be enqueued all the while. Every call takes ``backend``, a name under ``TASKS``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Model

from stoker.brokers.adapters import broker_for
from stoker.inspect.queue_depths import Pause, QueueDepth, pauses
from stoker.inspect.queue_depths import queues as depths
from stoker.jobs.cancel import cancel_those_waiting
from stoker.jobs.states import explained
from stoker.store.places import PLACES, WAITING
from stoker.store.transactions import after_commit
from stoker.values.progress import come_so_far

from .conf import Settings, settings_for
from .exceptions import QueueNotFound
from .models import PausedQueue
from .setting_values import checked_limit

__all__ = ["Cleared", "Pause", "QueueDepth", "clear", "get", "list", "pause", "resume"]

AT_ONCE = 500
LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Cleared:
    """What became of the jobs that waited in a queue."""

    matched: int
    """How many waited, up to the limit."""
    done: int
    """How many of them were cancelled; with ``dry_run`` 0. Others had begun by then."""


def list(*, backend: str = "default") -> tuple[QueueDepth, ...]:  # noqa: A001 - read as queues.list
    """The queues that have a job, are paused, or are named by ``QUEUES``; by name.

    Raises:
        BrokerUnavailable, NotMigrated: the store can't be read.
    """
    return depths(settings_for(backend))


def get(queue: str, *, backend: str = "default") -> QueueDepth:
    """One of them. Raises: QueueNotFound, and as ``list``."""
    for one in list(backend=backend):
        if one.name == queue:
            return one
    settings = settings_for(backend)
    _check(settings, queue)
    return QueueDepth(queue, 0, 0, 0, 0, is_exact=True, oldest_ready_seconds=None)


def pause(queue: str, *, by: str = "", because: str = "", backend: str = "default") -> Pause:
    """Let no cluster start jobs of this queue until it is resumed. One that is paused already stays
    so as it is.

    Args:
        queue: its name.
        by: who does it, at most 150 characters.
        because: why, at most 255 characters of it are kept.

    Returns:
        The pause that holds now.

    Raises:
        QueueNotFound: ``QUEUES`` does not name it, and it has no job.
        BrokerUnavailable, NotMigrated: the store can't be read.
    """
    settings = settings_for(backend)
    _check(settings, queue)
    with explained(settings.database):
        PausedQueue.objects.using(settings.database).pause(queue, by, because)
        return pauses(settings).get(queue) or pause(queue, by=by, because=because, backend=backend)


def resume(queue: str, *, backend: str = "default") -> bool:
    """Let the jobs of this queue be started again. False: it was not paused.

    Raises: as ``pause``.
    """
    settings = settings_for(backend)
    _refuse_impossible(queue)
    with explained(settings.database):
        if not PausedQueue.objects.using(settings.database).resume(queue):
            _check(settings, queue)
            return False
    wake_up = broker_for(settings).wake_up
    after_commit(settings.database, lambda: wake_up([queue]))
    return True


def clear(
    queue: str,
    *,
    by: str = "",
    because: str = "",
    limit: int | None = None,
    dry_run: bool = False,
    backend: str = "default",
) -> Cleared:
    """Cancel the jobs that wait in a queue: each is kept as CANCELLED, with who did it and why.
    Those that run go on. It goes in batches, each a transaction of its own; what is enqueued
    meanwhile may be among them, so pause the queue first.

    Args:
        limit: how many at most, above 0; None = all. A broker outside the database knows no
            limit, and keeps nothing of those that it removes.
        dry_run: only say how many.

    Raises: as ``pause``.
    """
    settings = settings_for(backend)
    _check(settings, queue)
    if limit is not None:
        checked_limit(limit)
    size = broker_for(settings).sizes().get(queue, {})
    waiting = sum(count for place, count in size.items() if place != "running")
    matched = waiting if limit is None else min(waiting, limit)
    if dry_run or not matched:
        return Cleared(matched, 0)
    if not broker_for(settings).capabilities.transactional:
        return Cleared(waiting, broker_for(settings).purge(queue))
    reason = f"the queue was cleared{f' by {by}' if by else ''}{f': {because}' if because else ''}"
    done = 0
    for job_ids in _batches(settings, queue):
        done += len(cancel_those_waiting(settings, job_ids[: matched - done], reason))
        come_so_far(done, matched)
        if done >= matched:
            break
    return Cleared(matched, done)


Batch = tuple[UUID, ...]


def _batches(settings: Settings, queue: str) -> Iterator[Batch]:
    """The jobs that wait there, along the primary keys. Those that go to ready meanwhile are found
    there, as that comes last."""
    for name in ("blocked", "deferred", "ready"):
        rows = WAITING[name].objects.using(settings.database).order_by("pk")
        after: UUID | None = None
        while True:
            later = rows if after is None else rows.filter(pk__gt=after)
            with explained(settings.database):
                found = later.filter(queue=queue).values_list("pk", flat=True)[:AT_ONCE]
                job_ids: Batch = tuple(found)
            if not job_ids:
                break
            yield job_ids
            after = job_ids[-1]


def _refuse_impossible(queue: str) -> None:
    """No queue can have such a name."""
    if not 0 < len(queue) <= LONGEST_NAME or "\x00" in queue:
        raise QueueNotFound(
            f"There is no queue {queue!r}: a name has 1 to 100 characters, none of them NUL."
        )


def _check(settings: Settings, queue: str) -> None:
    """A name that nothing knows is a mistyped one."""
    _refuse_impossible(queue)
    if not settings.queues or queue in settings.queues:
        return
    with explained(settings.database):
        tables: tuple[type[Model], ...] = (PausedQueue, *PLACES.values())
        if any(
            table._default_manager.using(settings.database).filter(queue=queue).exists()
            for table in tables
        ):
            return
    known = ", ".join(settings.queues)
    raise QueueNotFound(
        f"There is no queue {queue!r}: QUEUES of the backend {settings.alias!r} has {known}, and "
        "no job is in a queue of that name."
    )
