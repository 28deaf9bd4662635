"""The timeline of a job: events in order, built from the stored rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, Q, Subquery, TextChoices
from django.utils import timezone

from stoker.conf import Settings
from stoker.jobs.change import is_held
from stoker.jobs.states import JobState, Progress, full_progress_of_one, package_of
from stoker.models import (
    Attempt,
    Blocked,
    Cancellation,
    Claimed,
    DeadLetter,
    Deferred,
    Job,
    Note,
    Ready,
    Requeue,
    Step,
    Workflow,
)
from stoker.schedules.fire import NAME
from stoker.store.engines.sessions import explained
from stoker.store.written import MICROSECONDS, moment
from stoker.values.ids import is_step

from .waits import Waits, waits_of


class MomentKind(TextChoices):
    """Kind of an event, or of the current state."""

    ENQUEUED = "enqueued", "enqueued"
    SCHEDULED = "scheduled", "enqueued by a schedule"
    CARRIES_ON = "carries_on", "continues a failed job"
    IN_WORKFLOW = "in_workflow", "a step of a workflow"
    DEFERRED = "deferred", "not before"
    WAITED = "waited", "waited"
    ATTEMPT_BEGAN = "attempt_began", "attempt began"
    ATTEMPT_FAILED = "attempt_failed", "attempt failed"
    ATTEMPT_TIMED_OUT = "attempt_timed_out", "attempt timed out"
    ATTEMPT_CRASHED = "attempt_crashed", "attempt crashed"
    ATTEMPT_CANCELLED = "attempt_cancelled", "attempt was cancelled"
    ATTEMPT_UNKNOWN = "attempt_unknown", "attempt with unknown outcome"
    NOTED = "noted", "reported progress"
    CANCEL_ASKED = "cancel_asked", "asked to stop"
    WAITS_FOR_MOMENT = "waits_for_moment", "waits for its start time"
    WAITS_FOR_RETRY = "waits_for_retry", "waits for its next attempt"
    WAITS_FOR_GUARD = "waits_for_guard", "blocked by a guard"
    WAITS_FOR_WORKER = "waits_for_worker", "ready, waits for a worker"
    RUNS = "runs", "runs"
    SUCCEEDED = "succeeded", "succeeded"
    FAILED = "failed", "failed for good"
    CANCELLED = "cancelled", "cancelled"
    DEAD_LETTERED = "dead_lettered", "became a dead letter"
    REQUEUED = "requeued", "requeued as another job"
    RESOLVED = "resolved", "dead letter resolved"
    DISCARDED = "discarded", "dead letter discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One event of a job, or its current state."""

    kind: MomentKind
    at: datetime | None = None
    """Time of the event; None = unknown."""
    is_now: bool = False
    """Whether this is the current state; ``at`` is its beginning, if known."""
    text: str = ""
    """Details in one line: a reason, a guard, the name of a schedule."""
    until: datetime | None = None
    """End of a wait, if it is known."""
    seconds: float | None = None
    """Duration of an attempt, or of the wait before it."""
    attempt: Attempt | None = None
    """Row of an unsuccessful attempt, with error and traceback."""
    number: int | None = None
    """Number of an attempt, from 1."""
    worker_id: str = ""
    """Host and process of an attempt."""
    by: str = ""
    """Person who triggered the event."""
    job_id: UUID | None = None
    """The other job of a requeue."""
    dead_letter_id: UUID | None = None
    workflow_id: UUID | None = None
    fraction: float | None = None
    """Reported progress, from 0 to 1."""

    @property
    def title(self) -> str:
        """The kind in words, with the number of the attempt: ``attempt 2 failed``."""
        first, _, rest = str(self.kind.label).partition(" ")
        if self.number is None:
            return str(self.kind.label)
        return f"attempt {self.number} {rest if first == 'attempt' else self.kind.label}"


@dataclass(frozen=True, slots=True)
class Timeline:
    """The known events of a job."""

    job_id: UUID
    task: str
    """Dotted path; "" = unknown, because the broker cannot look up jobs."""
    state: JobState
    moments: Sequence[Moment]
    waits: Waits | None
    """The waits by cause; None = unknown, because the broker cannot look up jobs."""


KIND_OF_ATTEMPT = {
    Attempt.Kind.FAILED: MomentKind.ATTEMPT_FAILED,
    Attempt.Kind.TIMED_OUT: MomentKind.ATTEMPT_TIMED_OUT,
    Attempt.Kind.CRASHED: MomentKind.ATTEMPT_CRASHED,
    Attempt.Kind.CANCELLED: MomentKind.ATTEMPT_CANCELLED,
}


def of_attempt(failure: Attempt) -> Iterator[Moment]:
    """Yield the start and the end of an unsuccessful attempt."""
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
    """Return the seconds between two moments. None if one is unknown, or if clocks of two hosts
    disagree."""
    if began is None or ended is None or ended < began:
        return None
    return (ended - began).total_seconds()


WHO = {
    Requeue.By.PERSON: "",
    Requeue.By.POLICY: "automatically",
    Requeue.By.SUCCESSOR: "a newer job of the same unique key",
}


PLACES = {
    JobState.READY: Ready,
    JobState.DEFERRED: Deferred,
    JobState.BLOCKED: Blocked,
    JobState.CLAIMED: Claimed,
    JobState.RUNNING: Claimed,
}


def row_of(settings: Settings, job_id: UUID, progress: Progress) -> Any:
    """Return the job's row in its hot table. None if it has ended or just moved, or if only the
    broker has it."""
    if progress.claim is not None:
        return progress.claim
    table: Any = PLACES.get(progress.state)
    if table is None:
        return None
    asked = Cancellation.objects.filter(pk=OuterRef("pk")).values("reason")
    rows = table.objects.using(settings.database).annotate(cancellation=Subquery(asked))
    return rows.filter(pk=job_id).first()


def timeline(
    settings: Settings, job_id: UUID, progress: Progress | None = None, row: Any = None
) -> Timeline:
    """Return the events of a job in order, with about ten look-ups by key.

    Args:
        settings: the backend's.
        job_id: of the job.
        progress: the job's progress, if the caller has read it already.
        row: the result of ``row_of``, if the caller has read it already.

    Raises:
        TaskResultDoesNotExist: the job does not exist (any more).
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    progress = progress or full_progress_of_one(settings, job_id)
    with explained(settings.database):
        row = row or row_of(settings, job_id, progress)
        waits = waits_of(settings, progress, row)
        moments = tuple(_Life(settings, job_id, progress, row, waits).moments())
    task = progress.job.task if progress.job else ""
    return Timeline(job_id, task, progress.state, moments, waits)


class _Life:
    """The stored rows of one job. Each is read at most once."""

    def __init__(
        self,
        settings: Settings,
        job_id: UUID,
        progress: Progress,
        row: Any,
        waits: Waits | None,
    ) -> None:
        self._place = row
        """The job's row in a hot table, or None if only the broker has the job."""
        self._waits = {one.number: one for one in waits.before} if waits is not None else {}
        self._settings = settings
        self._alias = settings.database
        self._id = job_id
        self._job = progress.job
        self._state = progress.state
        self._failures = list(progress.failures)
        self._seat = progress.seat

    def moments(self) -> Iterator[Moment]:
        yield from self._beginning()
        yield from self._attempts()
        if self._job is not None and self._job.status is not None:
            yield from self._noted()
            yield self._end(self._job)
            yield from self._afterwards()
        else:
            yield from self._now()

    # -- the beginning ----------------------------------------------------------------------------

    def _beginning(self) -> Iterator[Moment]:
        job = self._job
        enqueued_at = job.enqueued_at if job is not None else None
        package = package_of(self._settings, job)
        schedule = package.metadata.get(NAME, "") if package is not None else ""
        kind = MomentKind.SCHEDULED if schedule else MomentKind.ENQUEUED
        yield Moment(kind=kind, at=enqueued_at, text=schedule)
        for one in self._requeues:
            if one.job_id == self._id:
                yield _handed_on(MomentKind.CARRIES_ON, one, one.from_job_id)
        if is_step(self._id):
            yield from self._workflow()
        if job is not None and job.run_after is not None and not is_held(job.run_after):
            yield Moment(kind=MomentKind.DEFERRED, at=enqueued_at, until=job.run_after)

    @cached_property
    def _requeues(self) -> list[Requeue]:
        """Return the requeues from or to this job, oldest first."""
        rows = Requeue.objects.using(self._alias)
        found = rows.filter(from_job_id=self._id).union(rows.filter(pk=self._id), all=True)
        return sorted(found, key=lambda one: (one.requeued_at, one.pk))

    def _workflow(self) -> Iterator[Moment]:
        steps = Step.objects.using(self._alias).of_jobs([self._id])
        name = Workflow.objects.filter(pk=OuterRef("workflow_id")).values("name")
        found = steps.values_list("workflow_id", Subquery(name)).first()
        if found is not None:  # else the step belongs to another job now
            yield Moment(kind=MomentKind.IN_WORKFLOW, workflow_id=found[0], text=found[1] or "")

    # -- attempts ---------------------------------------------------------------------------------

    def _attempts(self) -> Iterator[Moment]:
        known = {one.number: one for one in self._failures}
        for number in range(1, self._begun + 1):
            failure = known.get(number)
            if failure is not None:
                yield from self._waited(number)
                yield from of_attempt(failure)
            elif number == self._begun and self._state == JobState.SUCCESSFUL:
                yield from self._waited(number)
                yield self._last_attempt()
            elif number < self._begun or self._state != JobState.RUNNING:
                yield Moment(kind=MomentKind.ATTEMPT_UNKNOWN, number=number)

    def _waited(self, number: int) -> Iterator[Moment]:
        """Yield the wait before an attempt that began, unless it waited only for a worker."""
        wait = self._waits.get(number)
        if wait is not None and not wait.is_now and not wait.was_in_queue_only:
            yield Moment(
                kind=MomentKind.WAITED,
                at=wait.began_at,
                text=str(wait),
                seconds=wait.seconds,
            )

    @cached_property
    def _begun(self) -> int:
        """Return the number of attempts that began, including the running one."""
        seen = max((one.number for one in self._failures), default=0)
        if self._job is not None and self._job.status is not None:
            return max(seen, self._job.attempts)
        used = getattr(self._place, "attempts", seen + (self._state == JobState.RUNNING))
        return max(seen, int(used) - (self._state == JobState.CLAIMED))

    def _last_attempt(self) -> Moment:
        assert self._job is not None
        return Moment(
            kind=MomentKind.ATTEMPT_BEGAN,
            at=self._job.started_at,
            number=self._begun,
            worker_id=self._job.worker_id,
        )

    # -- the end ----------------------------------------------------------------------------------

    def _end(self, job: Job) -> Moment:
        kind = {
            Job.Status.SUCCESSFUL: MomentKind.SUCCEEDED,
            Job.Status.FAILED: MomentKind.FAILED,
            Job.Status.CANCELLED: MomentKind.CANCELLED,
        }[Job.Status(str(job.status))]
        is_success = kind is MomentKind.SUCCEEDED
        return Moment(
            kind=kind,
            at=job.finished_at,
            text=job.reason,
            seconds=seconds_between(job.started_at, job.finished_at) if is_success else None,
        )

    def _afterwards(self) -> Iterator[Moment]:
        """Yield the events of the job's dead letter."""
        letter = self._letter
        is_last = letter is not None and letter.job_id == self._id
        if letter is not None and self._state == JobState.FAILED:
            at = letter.failed_at if is_last else None
            yield Moment(kind=MomentKind.DEAD_LETTERED, at=at, dead_letter_id=letter.pk)
        for one in self._requeues:
            if one.from_job_id == self._id:
                yield _handed_on(MomentKind.REQUEUED, one, one.job_id)
        if letter is not None and is_last and letter.closed_at is not None:
            yield Moment(
                kind=MomentKind(letter.state),
                at=letter.closed_at,
                by=letter.closed_by,
                text=letter.closed_because,
                dead_letter_id=letter.pk,
            )

    @cached_property
    def _letter(self) -> DeadLetter | None:
        """Return the job's dead letter, which may have moved on to a job requeued from it."""
        letters = DeadLetter.objects.using(self._alias).defer("package", "traceback")
        mine = Q(job_id=self._id)
        if self._requeues:
            mine = Q(identity=self._requeues[0].identity)
        return letters.filter(mine).first() if self._state == JobState.FAILED else None

    # -- how it is now ----------------------------------------------------------------------------

    def _now(self) -> Iterator[Moment]:
        if self._state == JobState.RUNNING:
            yield from self._waited(self._begun)
            yield self._running()
        yield from self._noted()
        reason = self._cancellation
        if reason is not None:
            yield Moment(kind=MomentKind.CANCEL_ASKED, text=reason)
        if self._state != JobState.RUNNING:
            yield self._waiting()

    @property
    def _cancellation(self) -> str | None:
        """Return why the job was asked to end, or None if it was not asked."""
        if hasattr(self._place, "cancellation"):  # see row_of
            found: str | None = self._place.cancellation
            return found
        asked = Cancellation.objects.using(self._alias).filter(pk=self._id)
        return asked.values_list("reason", flat=True).first()

    def _running(self) -> Moment:
        number, seat = self._begun or None, self._seat
        if seat is None or not seat.process:  # the job started after the last heartbeat
            return Moment(kind=MomentKind.RUNS, is_now=True, number=number)
        return Moment(
            kind=MomentKind.RUNS,
            at=seat.since,
            is_now=True,
            number=number,
            worker_id=seat.process,
        )

    def _waiting(self) -> Moment:
        place = self._place
        since = self._failures[-1].finished_at if self._failures else None
        if isinstance(place, Blocked):
            guard = place.key.name if place.key is not None else ""
            blocked_at = moment(place.since_us / MICROSECONDS) if place.since_us else None
            return Moment(kind=MomentKind.WAITS_FOR_GUARD, at=blocked_at, is_now=True, text=guard)
        if isinstance(place, Deferred):
            is_retry = bool(self._failures)
            kind = MomentKind.WAITS_FOR_RETRY if is_retry else MomentKind.WAITS_FOR_MOMENT
            until = moment(place.due_us / MICROSECONDS)
            if is_held(until):
                return Moment(kind=kind, at=since, is_now=True, text="held by an operator")
            return Moment(kind=kind, at=since, is_now=True, until=until)
        if self._state == JobState.DEFERRED:  # at a broker outside the store
            if self._failures:
                retry_at = self._failures[-1].retry_at
                if retry_at is not None and retry_at < timezone.now():
                    retry_at = None  # it was released after that
                kind = MomentKind.WAITS_FOR_RETRY
                return Moment(kind=kind, at=since, is_now=True, until=retry_at)
            due_at = self._job.run_after if self._job is not None else None
            return Moment(kind=MomentKind.WAITS_FOR_MOMENT, is_now=True, until=due_at)
        return Moment(kind=MomentKind.WAITS_FOR_WORKER, is_now=True)

    def _noted(self) -> Iterator[Moment]:
        rows = Note.objects.using(self._alias).filter(pk=self._id, done__isnull=False)
        note = rows.defer("checkpoint").first()
        if note is not None and note.done is not None:
            fraction = max(0.0, min(1.0, note.done / note.total)) if note.total else None
            said = f"{note.done:g}" + (f" of {note.total:g}" if note.total else "")
            text = f"{said}: {note.message}" if note.message else said
            yield Moment(kind=MomentKind.NOTED, at=note.noted_at, text=text, fraction=fraction)


def _handed_on(kind: MomentKind, requeue: Requeue, job_id: UUID) -> Moment:
    """Return the event of a requeue."""
    text = requeue.because or WHO[Requeue.By(requeue.kind)]
    return Moment(kind=kind, at=requeue.requeued_at, job_id=job_id, by=requeue.by, text=text)
