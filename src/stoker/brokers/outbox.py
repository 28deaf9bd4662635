"""Messages as rows of an outbox, and back; and how those are carried to the broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction

from stoker.models import Outgoing
from stoker.models.need import NewNeed
from stoker.models.outbox import as_json
from stoker.store.statements import delete_by_key
from stoker.store.transactions import after_commit

from .contract import Broker, Message


def carry(
    broker: Broker,
    alias: str,
    lock: Callable[[], Sequence[Outgoing]],
    hand_over: Callable[[Sequence[Outgoing], float], None],
) -> list[Outgoing]:
    """Lock outbox rows, hand them over and delete them. Return the rows.

    Args:
        broker: receives the rows.
        alias: the database of the outbox.
        lock: locks and returns the rows.
        hand_over: is called with the rows, if any, and the time limit from ``Broker.relay_until``.
            If it raises, the rows stay in the outbox.
    """
    until = broker.relay_until()
    outgoing = Outgoing.objects.using(alias)
    with transaction.atomic(using=alias):
        outgoing.be_the_writer()
        rows = list(lock())
        if rows:
            hand_over(rows, until)
            job_ids = [row.pk for row in rows]
            delete_by_key(outgoing, job_ids)
            forget = partial(broker.relayed_for_good, job_ids)
            after_commit(alias, forget)
    return rows


def as_row(backend: str, message: Message, claim: tuple[Any, ...] | None = None) -> Outgoing:
    """The row of a message.

    Args:
        backend: the name under ``TASKS``.
        claim: that on its unique key, if it has one.
    """
    return Outgoing(
        job_id=message.job_id,
        backend=backend,
        task=message.task,
        queue=message.queue,
        priority=message.priority,
        package=message.package,
        enqueued_at=message.enqueued_at,
        run_after=message.run_after,
        needs=[as_json(need) for need in message.needs],
        stays_in_store=message.stays_in_store,
        claim=None if claim is None else as_json(claim),
    )


def as_message(row: Outgoing) -> Message:
    return Message(
        job_id=row.job_id,
        task=row.task,
        queue=row.queue,
        priority=row.priority,
        package=bytes(row.package),
        run_after=row.run_after,
        enqueued_at=row.enqueued_at,
        needs=[NewNeed(UUID(key_id), *rest) for key_id, *rest in row.needs],
        stays_in_store=row.stays_in_store,
    )
