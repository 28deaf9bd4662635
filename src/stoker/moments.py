"""What a job's life is made of: see ``timeline``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import TextChoices

from .models import Attempt
from .progress import JobState


class MomentKind(TextChoices):
    """What happened, or is so now."""

    ENQUEUED = "enqueued", "enqueued"
    SCHEDULED = "scheduled", "enqueued by a schedule"
    CARRIES_ON = "carries_on", "carries on a job that failed"
    IN_WORKFLOW = "in_workflow", "a step of a workflow"
    DEFERRED = "deferred", "not before"
    ATTEMPT_BEGAN = "attempt_began", "attempt began"
    ATTEMPT_FAILED = "attempt_failed", "attempt failed"
    ATTEMPT_TIMED_OUT = "attempt_timed_out", "attempt ran out of time"
    ATTEMPT_CRASHED = "attempt_crashed", "attempt crashed"
    ATTEMPT_CANCELLED = "attempt_cancelled", "attempt was cancelled"
    ATTEMPT_UNKNOWN = "attempt_unknown", "attempt of which nothing is known"
    NOTED = "noted", "said how far it is"
    CANCEL_ASKED = "cancel_asked", "told to end"
    WAITS_FOR_MOMENT = "waits_for_moment", "waits for its moment"
    WAITS_FOR_RETRY = "waits_for_retry", "waits for its next attempt"
    WAITS_FOR_GUARD = "waits_for_guard", "blocked by a guard"
    WAITS_FOR_WORKER = "waits_for_worker", "ready, waits for a worker"
    RUNS = "runs", "runs"
    SUCCEEDED = "succeeded", "succeeded"
    FAILED = "failed", "failed for good"
    CANCELLED = "cancelled", "cancelled"
    DEAD_LETTERED = "dead_lettered", "became a dead letter"
    REQUEUED = "requeued", "sent again as another job"
    RESOLVED = "resolved", "dead letter resolved"
    DISCARDED = "discarded", "dead letter discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One thing that happened to a job; or how it is now."""

    kind: MomentKind
    at: datetime | None = None
    """None = nobody has written down when."""
    is_now: bool = False
    """It has not ended: ``at`` is since when, as far as that is known."""
    text: str = ""
    """What else is to be said in one line: a reason, a guard, the name of a schedule."""
    until: datetime | None = None
    """Of a wait: when it ends by itself."""
    seconds: float | None = None
    """Of an attempt: how long it ran."""
    attempt: Attempt | None = None
    """Of one that did not succeed: its row, with error and traceback."""
    number: int | None = None
    """Of an attempt: its number, from 1."""
    worker_id: str = ""
    """Of one that runs: its host and process."""
    by: str = ""
    """Who did it, where a person did."""
    job_id: UUID | None = None
    """The other job, which this one carries on, or which carries it on."""
    dead_letter_id: UUID | None = None
    workflow_id: UUID | None = None
    fraction: float | None = None
    """How far the job said that it is, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """A job's life, as far as it is known."""

    job_id: UUID
    task: str
    """"" = only its broker knows."""
    state: JobState
    moments: Sequence[Moment]


KIND_OF_ATTEMPT = {
    Attempt.Kind.FAILED: MomentKind.ATTEMPT_FAILED,
    Attempt.Kind.TIMED_OUT: MomentKind.ATTEMPT_TIMED_OUT,
    Attempt.Kind.CRASHED: MomentKind.ATTEMPT_CRASHED,
    Attempt.Kind.CANCELLED: MomentKind.ATTEMPT_CANCELLED,
}


def of_attempt(failure: Attempt) -> Iterator[Moment]:
    """One that did not succeed: how it began, and how it ended."""
    number, worker_id = failure.number, failure.worker_id
    yield Moment(
        kind=MomentKind.ATTEMPT_BEGAN, at=failure.started_at, number=number, worker_id=worker_id
    )
    yield Moment(
        kind=KIND_OF_ATTEMPT[Attempt.Kind(failure.kind)],
        at=failure.finished_at,
        number=number,
        worker_id=worker_id,
        attempt=failure,
        seconds=seconds_between(failure.started_at, failure.finished_at),
        text=failure.message.strip().partition("\n")[0],
    )


def seconds_between(began: datetime | None, ended: datetime | None) -> float | None:
    """None where one of them is not known, and where two clocks say what cannot be."""
    if began is None or ended is None or ended < began:
        return None
    return (ended - began).total_seconds()
