"""How long a job waited, and for what: the time before each attempt, divided by cause.

The wait before an attempt has up to three parts: the recorded waits (``Wait``, such as for a
guard), the time until ``run_after`` or until the retry was due, and the time in the queue. The last
part is what remains, so the parts add up to the whole wait. It includes the time in which the job
had been sent to a worker that was still busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db.models import TextChoices
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.jobs.states import JobState, Progress
from stoker.models.attempt import Attempt
from stoker.models.blocked import Blocked
from stoker.models.job import Job
from stoker.models.wait import Wait
from stoker.store.written import MICROSECONDS
from stoker.values.durations import in_words

SMALLEST_SECONDS = 0.001
"""Shorter parts are left out."""
CLOCKS_SECONDS = 1.0
"""If ``run_after`` is later than ``retry_at`` by less than this, both mean the same moment: two
clocks were read."""


class WaitCause(TextChoices):
    """What a job waited for."""

    # The label stands between the duration and the guard's name: "3 s blocked by lock feed:7".
    START_TIME = "start_time", "until its start time"
    RETRY = "retry", "for a retry"
    PUT_BACK = "put_back", "snoozed or released"
    LOCK = "lock", "blocked by"
    LIMIT = "limit", "blocked by"
    RATE = "rate", "blocked by"
    SEQUENCE = "sequence", "blocked by"
    QUEUE = "queue", "in the queue or with a busy worker"
    BROKER = "broker", "at its broker or with a busy worker"
    """The broker is outside the database. It does not say how long a job was deferred there."""


@dataclass(frozen=True, slots=True)
class WaitPart:
    """Time that a job waited for one cause."""

    cause: WaitCause
    seconds: float
    name: str = ""
    """Name of the guard, as in "lock feed:7", or why a cluster released the job; "" = neither."""
    times: int = 1
    """Number of waits for this cause."""

    def __str__(self) -> str:
        name = f" {self.name}" if self.name else ""
        is_rest = self.cause in (WaitCause.QUEUE, WaitCause.BROKER)
        times = f" ({self.times:,} times)" if self.times > 1 and not is_rest else ""
        return f"{in_words(self.seconds)} {self.cause.label}{name}{times}"


@dataclass(frozen=True, slots=True)
class WaitBefore:
    """The time that a job waited before one attempt."""

    number: int
    """Number of the attempt, from 1."""
    began_at: datetime
    parts: Sequence[WaitPart]
    is_now: bool = False
    """Whether the job still waits; the parts then end now."""

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.parts)

    @property
    def was_in_queue_only(self) -> bool:
        """Whether nothing but the queue and the workers delayed the attempt."""
        return all(one.cause in (WaitCause.QUEUE, WaitCause.BROKER) for one in self.parts)

    def __str__(self) -> str:
        return ", ".join(map(str, self.parts))


@dataclass(frozen=True, slots=True)
class Waits:
    """The times that a job has waited before its attempts, and their total."""

    before: Sequence[WaitBefore]
    """One for each attempt whose start is known, in order."""
    is_complete: bool = True
    """Whether the start of every attempt is known. If not, the wait before that attempt is
    missing."""

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.before)

    @property
    def parts(self) -> list[WaitPart]:
        """The waits by cause, the longest first."""
        found: dict[tuple[str, str], WaitPart] = {}
        for part in (part for one in self.before for part in one.parts):
            key = (part.cause.value, part.name)
            known = found.get(key, replace(part, seconds=0.0, times=0))
            seconds, times = known.seconds + part.seconds, known.times + part.times
            found[key] = replace(known, seconds=seconds, times=times)
        return sorted(found.values(), key=lambda one: -one.seconds)

    def as_facts(self) -> dict[str, Any]:
        """Return the waits by cause as numbers and texts, for programs."""
        causes = [
            {"cause": one.cause.value, "name": one.name, "seconds": one.seconds, "times": one.times}
            for one in self.parts
        ]
        return {"seconds": self.seconds, "is_complete": self.is_complete, "causes": causes}

    def __str__(self) -> str:
        """Return ``3 min 14 s: 3 min 0 s blocked by lock feed:7, 14.0 s in the queue or with a
        busy worker``."""
        parts = self.parts
        if len(parts) == 1:
            told = str(parts[0])
        else:
            told = f"{in_words(self.seconds)}: {', '.join(map(str, parts))}" if parts else ""
        if told and not self.is_complete:
            told += "; before other attempts it is unknown"
        return told


def waits_of(settings: Settings, progress: Progress, row: Any = None) -> Waits | None:
    """Return the waits of a job. Runs one query by key, and a second one for a blocked job.

    Args:
        settings: the backend's.
        progress: of the job.
        row: the job's row in its hot table; None = unknown, or it has ended.

    Returns:
        None if they are unknown, because the job's broker cannot look up jobs.
    """
    job = progress.job
    if job is None or job.enqueued_at is None:
        return None
    recorded: dict[int, list[tuple[int, WaitPart]]] = {}
    for one in Wait.objects.using(settings.database).filter(job_id=job.pk):
        seconds = one.total_us / MICROSECONDS
        part = WaitPart(WaitCause(one.kind), seconds, one.name, one.times)
        recorded.setdefault(one.attempts, []).append((one.began_us, part))
    if isinstance(row, Blocked) and row.since_us:
        recorded.setdefault(row.attempts, []).extend(_blocked_now(row))
    division = _Division(settings, progress, recorded)
    before = tuple(division.before())
    return Waits(before, division.is_complete)


def _blocked_now(row: Blocked) -> Iterator[tuple[int, WaitPart]]:
    """Yield the wait of a job that is blocked now."""
    key: Any = row.key
    if key is not None:
        seconds = max(0.0, (key.now_us - row.since_us) / MICROSECONDS)
        yield row.since_us, WaitPart(WaitCause(key.kind), seconds, key.name)


class _Division:
    """Divides the time before each attempt of a job.

    Args:
        recorded: number of earlier attempts -> beginning and cause of each recorded wait.
    """

    def __init__(
        self,
        settings: Settings,
        progress: Progress,
        recorded: dict[int, list[tuple[int, WaitPart]]],
    ) -> None:
        assert progress.job is not None
        self._job: Job = progress.job
        self._progress = progress
        self._recorded = recorded
        is_inside = broker_for(settings).capabilities.transactional
        self._rest = WaitCause.QUEUE if is_inside else WaitCause.BROKER
        self.is_complete = True
        """Whether the start of every attempt up to now is known. Set by ``before``."""

    def before(self) -> Iterator[WaitBefore]:
        previous: Attempt | None = None
        for failure in self._progress.failures:
            yield from self._known(failure.number, previous, failure.started_at)
            previous = failure
        yield from self._last(previous)

    def _last(self, previous: Attempt | None) -> Iterator[WaitBefore]:
        """Yield the wait before the attempt that succeeded or runs, or the wait that lasts until
        now or until the job was cancelled."""
        job, state = self._job, self._progress.state
        number = 1 if previous is None else previous.number + 1
        if state == JobState.SUCCESSFUL:
            yield from self._known(job.attempts, previous, job.started_at)
        elif state == JobState.RUNNING:
            seat = self._progress.seat
            yield from self._known(number, previous, None if seat is None else seat.since)
        elif job.status is None:
            yield from self._known(number, previous, timezone.now(), is_now=True)
        elif previous is None or (
            state == JobState.CANCELLED and previous.kind != Attempt.Kind.CANCELLED
        ):
            yield from self._known(number, previous, job.finished_at)

    def _known(
        self,
        number: int,
        previous: Attempt | None,
        ended_at: datetime | None,
        *,
        is_now: bool = False,
    ) -> Iterator[WaitBefore]:
        """Yield the wait before an attempt, if its beginning and end are known."""
        is_next = number == (1 if previous is None else previous.number + 1)
        if ended_at is None or not is_next:
            self.is_complete = False
            return
        began_at = self._job.enqueued_at if previous is None else previous.finished_at
        parts = tuple(self._parts(number, previous, began_at, ended_at))
        yield WaitBefore(number, began_at, parts, is_now)

    def _parts(
        self, number: int, previous: Attempt | None, began_at: datetime, ended_at: datetime
    ) -> Iterator[WaitPart]:
        # the clocks of hosts differ, so no part may be longer than what is left
        left = max(0.0, (ended_at - began_at).total_seconds())
        recorded = sorted(self._recorded.get(number - 1, ()), key=lambda one: one[0])
        parts = [part for _, part in recorded]
        parts += self._derived(previous, began_at)
        for part in parts:
            seconds = min(part.seconds, left)
            left -= seconds
            if seconds >= SMALLEST_SECONDS:
                yield replace(part, seconds=seconds)
        if left >= SMALLEST_SECONDS:
            yield WaitPart(self._rest, left)

    def _derived(self, previous: Attempt | None, began_at: datetime) -> Iterator[WaitPart]:
        """Yield the waits that follow from due times. They may be longer than the job waited."""
        due_at, run_after = began_at, self._job.run_after
        least_seconds = 0.0
        if previous is not None and previous.retry_at is not None:
            due_at, least_seconds = previous.retry_at, CLOCKS_SECONDS
            yield WaitPart(WaitCause.RETRY, max(0.0, (due_at - began_at).total_seconds()))
        if run_after is None:
            return
        seconds = (run_after - max(due_at, began_at)).total_seconds()
        if seconds > least_seconds:
            yield WaitPart(WaitCause.START_TIME, seconds)
