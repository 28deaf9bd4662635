"""The tasks of a workflow with their times, a page at a time, failed ones first.

A workflow may have thousands of steps, so the jobs, attempts and dead letters are read only for the
steps of one page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.db.models import (
    BinaryField,
    Case,
    Count,
    F,
    Q,
    SmallIntegerField,
    TextChoices,
    Value,
    When,
)
from django.db.models.functions import Length
from django.db.models.lookups import LessThanOrEqual
from django.utils import timezone

from stoker.conf import Settings
from stoker.dead_letters.undoing import UNDONE
from stoker.models import Attempt, Claimed, Cluster, DeadLetter, Job, Step
from stoker.models.cluster import Seat
from stoker.store.engines.sessions import explained
from stoker.values.marks import InvalidFilter, key_of, mark_of
from stoker.workflows.deliver import read

State = Step.State
ENDED_BADLY = (State.FAILED, State.CANCELLED)
FAILED_FIRST = (
    *ENDED_BADLY,
    State.ENQUEUED,
    State.STARTED,
    State.UNDOING,
    State.SUCCESSFUL,
    State.PENDING,
    State.HELD,
)
"""The states in the order in which steps are listed."""
LARGEST_BYTES = 16_384
"""Larger calls are not read."""
SHOWN = tuple(str(state) for state in FAILED_FIRST if state != State.HELD)
"""The states of listed steps. HELD steps belong to a job that may still fail."""


MOST_EARLIER = 3
"""Maximum number of earlier jobs that are read for a step."""
MOST_EARLIER_IDS = 1000
"""Maximum number of ids of earlier jobs that are read for a page."""


class StepSpanKind(TextChoices):
    """The activity of a step during a span: waiting, or an attempt and how it ended."""

    WAIT = "wait", "waited"
    RUN = "run", "ran"
    """An attempt that succeeded or still runs."""
    FAILURE = "failure", "failed"
    """An attempt that failed, was cancelled, timed out or crashed."""


@dataclass(frozen=True, slots=True)
class StepSpan:
    """A part of the time of a step's job: a wait or an attempt."""

    kind: StepSpanKind
    began_at: datetime
    ended_at: datetime
    is_open: bool = False
    """Whether the span has not ended. In that case ``ended_at`` is the current time."""

    @property
    def seconds(self) -> float:
        return (self.ended_at - self.began_at).total_seconds()


@dataclass(frozen=True, slots=True)
class EarlierJob:
    """A job of a step before it was retried."""

    job_id: UUID
    status: str
    """SUCCESSFUL, FAILED or CANCELLED."""
    enqueued_at: datetime
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A task of a workflow with the times of its newest job."""

    id: UUID
    parent_id: UUID | None
    role: str
    """"step", "undo" or "error"."""
    state: str
    """PENDING, ENQUEUED, STARTED, SUCCESSFUL, FAILED or CANCELLED."""
    label: str
    """Dotted path of the task."""
    job_id: UUID | None
    """The newest job of the step; None = the step has not begun."""
    enqueued_at: datetime | None
    started_at: datetime | None
    """Start of the first attempt."""
    finished_at: datetime | None
    attempts: int
    wait_seconds: float | None
    """Time before and between the attempts; None = unknown, or it has not begun."""
    run_seconds: float | None
    """Duration of all attempts; None = unknown, or none has begun."""
    is_running: bool
    dead_letter_id: UUID | None
    can_retry: bool
    """Whether the step has failed or was cancelled, and can be retried alone."""
    spans: tuple[StepSpan, ...] = ()
    earlier: tuple[EarlierJob, ...] = ()
    """The step's jobs before the newest one, the newest first: at most ``MOST_EARLIER``."""
    package: bytes | None = None
    """The step's sealed call; None = the call is large, or is not in the store."""


@dataclass(frozen=True, slots=True)
class TimedStepPage:
    """A page of the tasks of a workflow."""

    steps: Sequence[TimedStep]
    counts: Mapping[str, int]
    """State -> number of tasks, of the whole workflow."""
    next: str | None
    """Start of the next page; None = this is the last page."""


def timed_steps(
    settings: Settings, workflow_id: UUID, state: str = "", after: str = "", limit: int = 30
) -> TimedStepPage:
    """Return a page of the tasks of a workflow: failed, cancelled, under way, successful, pending.

    If all fit on one page, those that have neither failed nor been cancelled are in the order of
    their creation.

    Args:
        state: only steps in this state; "" = all.
        after: ``TimedStepPage.next`` of the previous page.
        limit: maximum number of steps.

    Raises:
        ValueError: ``state`` or ``after`` is invalid.
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    if state and state not in SHOWN:
        raise InvalidFilter(f"There is no state {state!r} of steps.")
    never = Q(role__in=(Step.Role.UNDO, Step.Role.ERROR), state=State.PENDING)
    with explained(settings.database):
        steps = Step.objects.using(settings.database).filter(
            workflow_id=workflow_id, kind=Step.Kind.TASK
        )
        steps = steps.exclude(state=State.HELD).exclude(never)
        counts = dict(steps.order_by().values_list("state").annotate(Count("pk")))
        rank, step_id = key_of(after, (int, UUID)) if after else (-1, None)
        states = [state] if state else _states_of_page(counts, rank, limit + 1)
        wanted = steps.filter(state__in=states)
        ranked = wanted.annotate(rank=_rank_of_state(), message=_unless_large("sealed"))
        ranked = ranked.order_by("rank", "pk")
        if after:
            ranked = ranked.filter(Q(rank__gt=rank) | Q(rank=rank, pk__gt=step_id))
        rows: list[Any] = list(ranked.defer("sealed", "value")[: limit + 1])
        if len(rows) <= limit and not after:
            rows.sort(key=lambda row: (min(row.rank, len(ENDED_BADLY)), row.pk))
        found = tuple(_Times(settings, rows[:limit]).steps())
    last = rows[limit - 1] if len(rows) > limit else None
    return TimedStepPage(found, counts, None if last is None else mark_of((last.rank, last.pk)))


def _states_of_page(counts: Mapping[str, int], rank: int, limit: int) -> list[str]:
    """Return the states of a page's steps, so that no others are sorted.

    Args:
        counts: state -> number of steps.
        rank: place of the state of the last step before the page; -1 = there is none.
    """
    states = []
    for place, state in enumerate(FAILED_FIRST):
        if place < rank or state not in counts:
            continue
        states.append(str(state))
        limit -= counts[state] if place > rank else 0
        if limit <= 0:
            break
    return states


def _rank_of_state() -> Case:
    """Return the place of a step's state in ``FAILED_FIRST``, as an SQL expression."""
    whens = [When(state=state, then=Value(place)) for place, state in enumerate(FAILED_FIRST)]
    return Case(*whens, default=Value(len(whens)), output_field=SmallIntegerField())


def _unless_large(column: str) -> Case:
    """Return the column as an SQL expression that is NULL if the value is large."""
    is_small = LessThanOrEqual(Length(column), LARGEST_BYTES)
    return Case(When(is_small, then=F(column)), default=None, output_field=BinaryField())


class _Times:
    """The times of the given steps, with seven queries at most."""

    def __init__(self, settings: Settings, rows: Sequence[Any]) -> None:
        self._rows = rows
        self._alias = settings.database
        self._now = timezone.now()
        job_ids = [row.job_id for row in rows if row.job_id and row.state != State.PENDING]
        jobs = Job.objects.using(self._alias).annotate(call=_unless_large("package"))
        jobs = jobs.defer("package", "value")
        self._jobs = jobs.in_bulk(job_ids)
        self._failures = self._failures_of(job_ids)
        under_way = [row.job_id for row in rows if row.job_id and row.state == State.ENQUEUED]
        self._seats = self._seats_of(under_way)
        failed = [row.job_id for row in rows if row.job_id and row.state == State.FAILED]
        letters = DeadLetter.objects.using(self._alias).filter(job_id__in=failed)
        self._earlier = self._earlier_of(rows)
        self._letters = dict(letters.values_list("job_id", "pk")) if failed else {}

    def steps(self) -> Iterator[TimedStep]:
        for row in self._rows:
            job = None if row.job_id is None else self._jobs.get(row.job_id)
            seat = None if row.job_id is None else self._seats.get(row.job_id)
            failures = self._failures.get(row.job_id, ()) if row.job_id else ()
            spans = tuple(_spans(job, failures, seat, self._now))
            waits = [one.seconds for one in spans if one.kind == StepSpanKind.WAIT]
            runs = [one for one in spans if one.kind != StepSpanKind.WAIT]
            has_ended = row.state in ENDED_BADLY
            yield TimedStep(
                id=row.pk,
                parent_id=row.parent_id,
                role=row.role,
                state=row.state,
                label=row.label,
                job_id=None if row.state == State.PENDING else row.job_id,
                enqueued_at=None if job is None else job.enqueued_at,
                started_at=runs[0].began_at if runs else None,
                finished_at=None if job is None else job.finished_at,
                attempts=max(len(runs), 0 if job is None else job.attempts),
                wait_seconds=sum(waits) if spans else None,
                run_seconds=sum(one.seconds for one in runs) if runs else None,
                is_running=seat is not None,
                dead_letter_id=self._letters.get(row.job_id) if row.job_id else None,
                can_retry=has_ended and row.role == Step.Role.STEP,
                spans=spans,
                earlier=tuple(self._earlier.get(row.pk, ())),
                package=_package_of(row, job),
            )

    def _failures_of(self, job_ids: Collection[UUID]) -> dict[UUID, list[Attempt]]:
        rows = Attempt.objects.using(self._alias).filter(job_id__in=job_ids).order_by("number")
        found: dict[UUID, list[Attempt]] = {}
        for row in rows.only("job_id", "number", "started_at", "finished_at"):
            found.setdefault(row.job_id, []).append(row)
        return found

    def _earlier_of(self, rows: Sequence[Any]) -> dict[UUID, list[EarlierJob]]:
        """Return step -> its last jobs before the newest one.

        A step has the id of its first job, and each further job an id that sorts right after the
        one that it continues (``following_job_id``). So its jobs are a range.
        """
        retried = [row for row in rows if row.job_id is not None and row.job_id != row.pk]
        if not retried:
            return {}
        ranges = reduce(or_, (Q(pk__gte=row.pk, pk__lt=row.job_id) for row in retried))
        jobs = Job.objects.using(self._alias)
        # The id of a job that was withdrawn is in the range only by chance.
        between = jobs.filter(ranges).exclude(reason__startswith=UNDONE).order_by("-pk")
        ids = list(between.values_list("pk", flat=True)[:MOST_EARLIER_IDS])
        steps: dict[UUID, UUID] = {}
        found: dict[UUID, list[EarlierJob]] = {}
        for row in retried:
            own = [job_id for job_id in ids if row.pk <= job_id < row.job_id]
            steps |= dict.fromkeys(own[:MOST_EARLIER], row.pk)
        for job in jobs.filter(pk__in=steps).order_by("-pk").defer("package", "value"):
            if job.status is not None and job.finished_at is not None:
                earlier = EarlierJob(job.pk, job.status, job.enqueued_at, job.finished_at)
                found.setdefault(steps[job.pk], []).append(earlier)
        return found

    def _seats_of(self, job_ids: Collection[UUID]) -> dict[UUID, Seat]:
        """Return running job -> its worker, also for jobs that only the broker has."""
        if not job_ids:
            return {}
        claims: dict[UUID, Claimed | None] = dict.fromkeys(job_ids)
        claims |= Claimed.objects.using(self._alias).in_bulk(list(job_ids))
        seats = Cluster.objects.using(self._alias).seats(claims)
        return {job_id: seat for job_id, seat in seats.items() if seat.has_started}


def _package_of(row: Any, job: Any) -> bytes | None:
    """Return the sealed call of a step: from its job, or, before it begins, from the stored
    message."""
    if job is not None:
        return None if job.call is None else bytes(job.call)
    return None if row.message is None else read(row.pk, bytes(row.message)).package


def _spans(
    job: Job | None, failures: Sequence[Attempt], seat: Seat | None, now: datetime
) -> Iterator[StepSpan]:
    """Yield the waits and attempts of a job in order. Clocks of hosts differ, so a span may begin
    no earlier than the previous one ended."""
    if job is None:
        if seat is not None:
            yield StepSpan(StepSpanKind.RUN, min(seat.since, now), now, is_open=True)
        return
    at = job.enqueued_at
    attempts = [
        (StepSpanKind.FAILURE, one.started_at, one.finished_at, False)
        for one in failures
        if one.started_at is not None
    ]
    if job.status == Job.Status.SUCCESSFUL and job.started_at and job.finished_at:
        attempts.append((StepSpanKind.RUN, job.started_at, job.finished_at, False))
    elif job.status is None and seat is not None:
        attempts.append((StepSpanKind.RUN, seat.since, now, True))
    for kind, known_start, ended_at, is_open in attempts:
        began_at = max(at, known_start)
        if began_at > at:
            yield StepSpan(StepSpanKind.WAIT, at, began_at)
        at = max(began_at, ended_at)
        yield StepSpan(kind, began_at, at, is_open)
    if job.status is None and seat is None and now > at:
        yield StepSpan(StepSpanKind.WAIT, at, now, is_open=True)
    elif not attempts and job.finished_at is not None and job.finished_at > at:
        yield StepSpan(StepSpanKind.WAIT, at, job.finished_at)
