"""Enqueue jobs that follow from other jobs, in the transaction that records those."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import Message
from stoker.brokers.outbox import as_message, as_row, carry
from stoker.conf import Settings
from stoker.exceptions import BrokerError
from stoker.models import Job
from stoker.models.need import NewNeed
from stoker.models.outbox import Outgoing
from stoker.signals import tell
from stoker.store.transactions import after_commit
from stoker.values import codec


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that has ended."""

    job_id: UUID
    status: str
    """A value of ``Job.Status``."""
    attempt: int
    value: bytes | None = None
    """The sealed return value."""
    exception_class: str = ""
    message: str = ""
    """The error's message, or the reason of the cancellation."""

    @property
    def has_succeeded(self) -> bool:
        return self.status == Job.Status.SUCCESSFUL


def write(message: Message, delay_seconds: float | None = None) -> bytes:
    """Return the message as bytes, without its id.

    Args:
        delay_seconds: delay between the step's start and the earliest start of the job; None = as
            the message says.
    """
    return codec.write(
        codec.encode(
            [
                message.task,
                message.queue,
                message.priority,
                message.package,
                message.run_after,
                delay_seconds,
                [list(need) for need in message.needs],
            ]
        )
    )


def read(job_id: UUID, data: bytes) -> Message:
    """Return the message of a step that starts now."""
    task, queue, priority, package, run_after, delay_seconds, needs = codec.read(data)
    now = time.time()
    return Message(
        job_id=job_id,
        task=task,
        queue=queue,
        priority=priority,
        package=package,
        run_after=run_after if delay_seconds is None else now + delay_seconds,
        enqueued_at=now,
        needs=[NewNeed(*need) for need in needs],
    )


AT_ONCE = 1000


def deliver(settings: Settings, messages: Sequence[Message]) -> None:
    """Enqueue these messages in the open transaction.

    For a broker outside the store they are written to the outbox and relayed after the commit. If
    this process dies before, a scheduler relays them.
    """
    if not messages:
        return
    broker, alias = broker_for(settings), settings.database
    inside = [message for message in messages if broker.joins(message)]
    outside = [message for message in messages if not broker.joins(message)]
    if inside:
        for start in range(0, len(inside), AT_ONCE):
            broker.enqueue(inside[start : start + AT_ONCE])
        call = partial(broker.wake_up, {message.queue for message in inside})
        after_commit(alias, call)
    if outside:
        rows = [as_row(settings.alias, message) for message in outside]
        Outgoing.objects.using(alias).bulk_create(rows, batch_size=AT_ONCE, ignore_conflicts=True)
        after_commit(alias, partial(bring, settings, [message.job_id for message in outside]))


def bring(settings: Settings, job_ids: Sequence[UUID]) -> None:
    """Relay these rows from the outbox to the broker, except those that another process is
    relaying."""
    broker, outgoing = broker_for(settings), Outgoing.objects.using(settings.database)

    def relay(rows: Sequence[Outgoing], until: float) -> None:
        broker.relay([as_message(row) for row in rows], until=until)

    for start in range(0, len(job_ids), AT_ONCE):
        lock = partial(outgoing.lock_these, job_ids[start : start + AT_ONCE])
        try:
            rows = carry(broker, settings.database, lock, relay)
        except BrokerError as error:
            tell("relay_put_off", error=error)
            return
        broker.wake_up({row.queue for row in rows}, inside=False)
