"""Convert messages to rows of an outbox, and back."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from stoker.models import Outgoing
from stoker.models.job import Message
from stoker.models.need import NewNeed
from stoker.models.outbox import as_json


def as_row(backend: str, message: Message, claim: tuple[Any, ...] | None = None) -> Outgoing:
    """Return the outbox row of a message.

    Args:
        backend: the name under ``TASKS``.
        claim: claim on the job's unique key, if it has one.
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
