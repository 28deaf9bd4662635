"""Public functions for queues: list, pause, resume and clear them.

::

    from stoker import queues

    queues.pause("mail", by="alice", because="the provider is down")
    queues.resume("mail")
    queues.clear("mail", by="alice", because="yesterday's news", dry_run=True)

A pause is stored and affects every cluster within a second, until the queue is resumed. Running
jobs go on; claimed jobs that have not started are released, without counting the attempt. Jobs can
still be enqueued. Every function takes ``backend``, an alias in ``TASKS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from django.db import connections
from django.db.models import Model
from django.db.transaction import TransactionManagementError

from stoker.brokers.adapters import broker_for
from stoker.brokers.arrivals import Arrivals
from stoker.brokers.dispatch import Dispatch
from stoker.brokers.outage import read_or_default
from stoker.inspect.queue_depths import Pause, QueueDepth
from stoker.inspect.queue_depths import queues as depths
from stoker.jobs.cancel import (
    cancel_those_outgoing,
    cancel_those_outside,
    cancel_those_waiting,
)
from stoker.models.outbox import count_outgoing, outgoing_in
from stoker.store.engines.sessions import explained
from stoker.store.places import PLACES
from stoker.store.transactions import after_commit, commits_by_hand, is_in_transaction
from stoker.values.progress import come_so_far

from .conf import Settings, settings_for
from .exceptions import QueueNotFound
from .models import PausedQueue
from .setting_values import QUEUE_NAME, checked_limit, is_queue_name

__all__ = ["Cleared", "Pause", "QueueDepth", "clear", "get", "list", "pause", "resume"]


@dataclass(frozen=True, slots=True)
class Cleared:
    """The outcome of clearing a queue."""

    matched: int
    """Number of waiting jobs, up to the limit."""
    done: int
    """Number of cancelled jobs; 0 with ``dry_run``. The others had started meanwhile."""
    not_kept: int = 0
    """Number of those that were deleted at a message server (Amazon SQS, Disque, IronMQ) before
    they were received. No record of them is kept."""
    left_at_server: int = 0
    """Number of those that were left at a message server, because it would have deleted more jobs
    than the limit allows. It may be an estimate."""


def list(*, backend: str = "default") -> tuple[QueueDepth, ...]:  # noqa: A001 - read as queues.list
    """Return the queues that have jobs, are paused or are named in ``QUEUES``, by name.

    Raises:
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    return depths(settings_for(backend))


def get(queue: str, *, backend: str = "default") -> QueueDepth:
    """Return one queue. Raises QueueNotFound, and the errors of ``list``."""
    for one in list(backend=backend):
        if one.name == queue:
            return one
    settings = settings_for(backend)
    _check(settings, queue)
    return QueueDepth(queue, 0, 0, 0, 0, is_exact=True, oldest_ready_seconds=None)


def pause(queue: str, *, by: str = "", because: str = "", backend: str = "default") -> Pause:
    """Stop starting jobs of this queue until it is resumed. An existing pause is not changed.

    Args:
        queue: its name.
        by: person, at most 150 characters.
        because: reason, cut to 255 characters.

    Returns:
        The pause that applies now.

    Raises:
        QueueNotFound: ``QUEUES`` does not name it, and it contains no job; or a queue is paused
            whose name the database takes for the same.
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    settings = settings_for(backend)
    _check(settings, queue)
    with explained(settings.database):
        row = PausedQueue.objects.using(settings.database).pause(queue, by, because)
    if row.queue != queue:
        raise QueueNotFound(
            f"There is no queue {queue!r} beside {row.queue!r}, which is paused: the database "
            "takes both names for the same."
        )
    return Pause(row.since, row.by, row.because)


def resume(queue: str, *, backend: str = "default") -> bool:
    """Resume a paused queue. Return False if it was not paused.

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
    """Cancel the waiting jobs of a queue. Each is kept as CANCELLED, with person and reason.

    Running jobs go on. Jobs are cancelled in batches, each in its own transaction. Jobs enqueued
    meanwhile may be cancelled, too, so pause the queue first. Within a transaction, jobs at a
    broker outside the database are cancelled when that commits.

    Args:
        limit: maximum number, above 0; None = all. A message server (Amazon SQS, Disque, IronMQ)
            cannot list its jobs. It deletes all of them, without a record, or none if they are
            more than the limit allows. Cancel workflows whose steps were among them.
        dry_run: count only.

    Raises:
        TransactionManagementError: autocommit is off, and the broker is outside the database, so
            that its jobs cannot be withdrawn when the caller commits. Nothing is cancelled.
        QueueNotFound, BrokerUnavailable, NotMigrated: as in ``pause``.
    """
    settings = settings_for(backend)
    _check(settings, queue)
    if limit is not None:
        checked_limit(limit)
    broker = broker_for(settings)
    waiting = _waiting(broker, queue)
    matched = waiting if limit is None else min(waiting, limit)
    if dry_run or not matched:
        return Cleared(matched, 0)
    _refuse_commit_by_hand(settings.database, broker, queue)
    reason = f"the queue was cleared{f' by {by}' if by else ''}{f': {because}' if because else ''}"
    done = 0
    for cancel, job_ids in _batches(settings, queue):
        done += cancel(job_ids[: matched - done], reason)
        come_so_far(done, matched)
        if done >= matched:
            return Cleared(matched, done)
    if broker.arrivals is None:
        return Cleared(matched, done)
    at_server = broker.arrivals.size(queue)
    if limit is not None and at_server > limit - done:
        return Cleared(matched, done, left_at_server=at_server)
    purged = _purge(settings, broker.arrivals, queue)
    return Cleared(max(matched, done + purged), done + purged, purged)


def _waiting(broker: Dispatch, queue: str) -> int:
    """Return the number of waiting jobs. A message server is asked for this queue, because it may
    list it under another name."""
    sizes = [read_or_default(one.sizes, {}).get(queue, {}) for one in broker.lessors]
    count = sum(count for size in sizes for place, count in size.items() if place != "running")
    count += sum(count_outgoing(alias, queue, broker.settings) for alias in broker.outboxes())
    if broker.arrivals is None:
        return count
    return count + read_or_default(broker.arrivals.size, 0, queue)


Cancel = Callable[[Sequence[UUID], str], int]


def _batches(settings: Settings, queue: str) -> Iterator[tuple[Cancel, Sequence[UUID]]]:
    """Yield the waiting jobs that can be listed, in batches, each with the function that cancels
    jobs in that place."""
    broker = broker_for(settings)
    for alias in broker.outboxes():  # first, because jobs leave it for the other places
        for job_ids in outgoing_in(alias, queue, settings):
            yield partial(cancel_those_outgoing, settings), job_ids
    if broker.store is not None:
        for job_ids in broker.store.waiting_in(queue):
            yield partial(cancel_those_waiting, settings), job_ids
    if broker.broker is not None:
        for job_ids in broker.broker.waiting_in(queue):
            yield partial(cancel_those_outside, settings, queue), job_ids


def _refuse_commit_by_hand(alias: str, broker: Dispatch, queue: str) -> None:
    """Raise TransactionManagementError if jobs would have to be withdrawn from a broker outside
    the store when the caller commits by hand, which cannot be observed. Until upkeep finds the
    requests to cancel these jobs, clusters may claim some, and would then stop them."""
    is_outside = broker.broker is not None or broker.arrivals is not None
    if is_outside and commits_by_hand(connections[alias]):
        raise TransactionManagementError(
            f"The queue {queue!r} cannot be cleared while autocommit is off on the database "
            f"{alias!r}: its broker could not withdraw the jobs when you commit. Commit, and turn "
            "autocommit on first."
        )


def _purge(settings: Settings, arrivals: Arrivals, queue: str) -> int:
    """Delete the messages of a queue at its server, within a transaction when that commits. Return
    their number, which may be an estimate."""
    if not is_in_transaction(settings.database):
        return arrivals.purge(queue)
    count = arrivals.size(queue)
    after_commit(settings.database, partial(arrivals.purge, queue))
    return count


def _refuse_impossible(queue: str) -> None:
    """Raise QueueNotFound if the name cannot be the name of a queue."""
    if not is_queue_name(queue):
        raise QueueNotFound(f"There is no queue {queue!r}: {QUEUE_NAME}.")


def _check(settings: Settings, queue: str) -> None:
    """Raise QueueNotFound if neither the setting ``QUEUES`` nor a table has this name. Without the
    setting, accept every name."""
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
