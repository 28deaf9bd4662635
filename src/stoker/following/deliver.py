"""Deliver: jobs that follow from others are enqueued in the transaction that recorded those."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from django.db import transaction

from stoker.brokers import broker_for
from stoker.brokers.base import Message
from stoker.conf import Settings
from stoker.events import tell
from stoker.exceptions import BrokerError
from stoker.models.need import NewNeed
from stoker.models.outbox import Outgoing, as_json
from stoker.models.statements import delete_by_key

AT_ONCE = 1000


def deliver(settings: Settings, messages: Sequence[Message]) -> None:
    """Enqueue these, in the open transaction. For a broker outside the store they are put into the
    outbox, and brought from there after the commit; what is left behind, every scheduler finds."""
    if not messages:
        return
    broker = broker_for(settings)
    if broker.capabilities.transactional:
        for start in range(0, len(messages), AT_ONCE):
            broker.enqueue(messages[start : start + AT_ONCE])
        queues = {message.queue for message in messages}
        call = partial(broker.wake_up, queues)
    else:
        outgoing = Outgoing.objects.using(settings.database)
        rows = [_outgoing(settings, message) for message in messages]
        outgoing.bulk_create(rows, batch_size=AT_ONCE, ignore_conflicts=True)
        call = partial(bring, settings, [message.job_id for message in messages])
    transaction.on_commit(call, using=settings.database, robust=True)


def bring(settings: Settings, job_ids: Sequence[UUID]) -> None:
    """Bring these from the outbox to the broker, as far as nobody else does."""
    broker, outgoing = broker_for(settings), Outgoing.objects.using(settings.database)
    for start in range(0, len(job_ids), AT_ONCE):
        with transaction.atomic(using=settings.database):
            outgoing.be_the_writer()
            rows = outgoing.lock_these(job_ids[start : start + AT_ONCE])
            try:
                broker.enqueue([_message(row) for row in rows])
            except BrokerError as error:
                tell("relay_put_off", error=error)
                return
            delete_by_key(outgoing, [row.pk for row in rows])
        broker.wake_up({row.queue for row in rows})


def _outgoing(settings: Settings, message: Message) -> Outgoing:
    return Outgoing(
        job_id=message.job_id,
        backend=settings.alias,
        task=message.task,
        queue=message.queue,
        priority=message.priority,
        package=message.package,
        enqueued_at=message.enqueued_at,
        run_after=message.run_after,
        needs=[as_json(need) for need in message.needs],
    )


def _message(row: Outgoing) -> Message:
    return Message(
        job_id=row.job_id,
        task=row.task,
        queue=row.queue,
        priority=row.priority,
        package=bytes(row.package),
        run_after=row.run_after,
        enqueued_at=row.enqueued_at,
        needs=[NewNeed(UUID(key_id), *rest) for key_id, *rest in row.needs],
    )
