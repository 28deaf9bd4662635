"""A message that waits in the store for its turn to be enqueued, as bytes.

::

    [task, queue, priority, package, run_after, delay_seconds, [need, ...]]
"""

from __future__ import annotations

import time
from uuid import UUID

from stoker import codec
from stoker.brokers.base import Message
from stoker.models.need import NewNeed


def write(message: Message, delay_seconds: float | None = None) -> bytes:
    """The message as bytes, without its id.

    Args:
        delay_seconds: how long after its turn it may start; None = as the message says.
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
    """The message, whose turn is now."""
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
