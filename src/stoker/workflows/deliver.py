"""The data about ended jobs, and the format of the messages that steps store until they start."""

from __future__ import annotations

import time
from dataclasses import dataclass
from uuid import UUID, uuid5

from stoker.brokers.contract import Lease
from stoker.models import Job
from stoker.models.job import Message
from stoker.models.need import NewNeed
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
    lease: Lease | None = None
    """The lease under which the job ran; None = it did not run, or this is not known."""

    @property
    def has_succeeded(self) -> bool:
        return self.status == Job.Status.SUCCESSFUL


def run_id_of(lease: Lease) -> UUID:
    """Return the id of the run of a job under this lease. Runs that do not count have one, too."""
    return uuid5(lease.job_id, str(lease.lease_id))


def write(message: Message, delay_seconds: float | None = None) -> bytes:
    """Return the message as bytes, without its id.

    Args:
        delay_seconds: delay between the step's start and the earliest start of the job; None = the
            message's own ``run_after``.
    """
    fields = [
        message.task,
        message.queue,
        message.priority,
        message.package,
        message.run_after,
        delay_seconds,
        [list(need) for need in message.needs],
    ]
    if message.stays_in_store:  # left out otherwise, as earlier versions did not know this field
        fields.append(True)
    return codec.write(codec.encode(fields))


def read(job_id: UUID, data: bytes) -> Message:
    """Return the message of a step that starts now."""
    task, queue, priority, package, run_after, delay_seconds, needs, *rest = codec.read(data)
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
        stays_in_store=bool(rest),
    )
