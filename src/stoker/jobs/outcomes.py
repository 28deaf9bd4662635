"""Outcomes of attempts: determined where the attempt ran, collected in a ``Batch`` of columns,
recorded by record.py."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, fields
from itertools import compress
from typing import Any, ClassVar, cast
from uuid import UUID

from django.db import DatabaseError, InterfaceError

from stoker.brokers.contract import Delivery, Lease, LeaseId, Leases
from stoker.conf import Settings
from stoker.jobs.faults import Fault
from stoker.models import Job, Tally
from stoker.models.job import JobColumns
from stoker.models.metrics import FINEST_SECONDS, Sums, TaskInQueue
from stoker.store.statements import with_keys
from stoker.values.histogram import class_of
from stoker.values.ids import id_of, is_marked, none_is_marked


# Not frozen, since there is one for each job: that would make it several times as slow to make.
@dataclass(slots=True)
class Succeeded:
    """The task returned."""

    kind: ClassVar[str] = "succeeded"
    value: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """The job has failed for good; a dead letter is written."""

    kind: ClassVar[str] = "failed"
    fault: Fault
    reason: str = "error"
    """One of DeadLetter.Reason: error, timeout, crash, expired, unreadable, unknown_task."""


@dataclass(frozen=True, slots=True)
class Retried:
    """This attempt failed; the job will be retried."""

    kind: ClassVar[str] = "retry"
    fault: Fault
    delay_seconds: float
    reason: str = "error"


@dataclass(frozen=True, slots=True)
class Snoozed:
    """Run again later. The attempt does not count, and no failure is recorded."""

    kind: ClassVar[str] = "snoozed"
    delay_seconds: float
    reason: str = ""
    wait: str = ""
    """Name of the wait that is recorded."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job was ended on purpose."""

    kind: ClassVar[str] = "cancelled"
    reason: str
    was_killed: bool = False
    """Whether the worker was killed because the job continued after it was cancelled."""
    instead_of: Retried | Snoozed | None = field(default=None, kw_only=True)
    """The outcome that would have been recorded if the job had not been cancelled. It does not
    travel between processes."""


@dataclass(frozen=True, slots=True)
class Crashed:
    """The worker process died while it ran the job; its parent reported how."""

    kind: ClassVar[str] = "crashed"
    detail: str
    exit_code: int | None = None
    signal: int | None = None
    has_begun: bool = True
    """Whether the task had been called; False if the worker died while it opened the package."""


CLUSTER_GONE = Crashed("its cluster is gone: the lease ended without a heartbeat")


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The worker process was killed because the job ran past its hard time-out."""

    kind: ClassVar[str] = "timed_out"
    detail: str
    signal: int | None = None


Outcome = Succeeded | Failed | Retried | Snoozed | Cancelled | Crashed | TimedOut

KINDS: dict[str, type[Outcome]] = {
    kind.kind: kind for kind in (Succeeded, Failed, Retried, Snoozed, Cancelled, Crashed, TimedOut)
}


# Not frozen, since there is one for each job: that would make it several times as slow to make.
@dataclass(slots=True)
class Attempted:
    """A finished attempt: its delivery, worker, times and outcome."""

    delivery: Delivery
    outcome: Outcome
    worker_id: str
    started_at: float | None
    """Seconds since 1970 on the worker's clock, for display only; no decision depends on it. None =
    unknown."""
    finished_at: float
    is_recorded: bool = False
    """Whether the outcome was recorded, and the lease ended, in the transaction of the task."""
    task: str = ""
    """Task path in the package; "" = the package was not opened."""
    enqueued_at: float | None = None
    """Seconds since 1970 by the enqueuing process's clock. None = unknown."""


Packed = tuple[Any, ...]
"""An outcome as it travels between processes: its kind, then its values."""


def pack_outcome(outcome: Outcome) -> Packed:
    """Return the outcome as a plain tuple."""
    if isinstance(outcome, Succeeded):  # nearly always
        return ("succeeded", outcome.value)
    # the parameters of __init__, without those that are given only by name
    values = [getattr(outcome, name) for name in outcome.__match_args__]
    if isinstance(outcome, Failed | Retried):
        values[0] = astuple(outcome.fault)
    return (outcome.kind, *values)


def open_outcome(packed: Packed) -> Outcome:
    """Return the outcome that ``pack_outcome`` packed."""
    kind, *values = packed
    if kind in ("failed", "retry"):
        values[0] = Fault(*values[0])
    outcome: Outcome = KINDS[kind](*values)
    return outcome


# Not frozen, since there may be one for each job: that would make it several times as slow to make.
@dataclass(slots=True)
class Verdict:
    """One attempt of a batch with its decided outcome."""

    attempted: Attempted
    outcome: Outcome
    """The outcome, with Retried, Failed or Snoozed in place of Crashed and TimedOut."""
    crashes: int
    lease: Lease

    @property
    def is_over(self) -> bool:
        """Whether this outcome ends the job."""
        return not isinstance(self.outcome, Retried | Snoozed)


NO_COLUMNS = ("seen", "decided", "_marked")


@dataclass(slots=True, kw_only=True)
class Batch(JobColumns):
    """Outcomes as columns. All columns are equally long, and each row is one attempt. A row's
    number is called its place.

    The store writes the columns to the tables as they are. A package is empty if the store has it.
    A task is empty if no worker has opened the package.
    """

    lease_ids: Sequence[LeaseId]
    crashes: Sequence[int]
    """Number of earlier attempts, per job, that ended with the worker's death."""
    refused: Sequence[str]
    run_after: Sequence[float | None]
    valid_until_ns: Sequence[int]
    """End of the time that each lease is known to be valid, in nanoseconds on the lease clock; 0 =
    unknown."""
    seen: dict[int, Outcome]
    """Row number -> reported outcome, for each attempt that did not succeed."""
    decided: dict[int, Outcome] = field(default_factory=dict)
    """Row number -> decided outcome, for each attempt that did not succeed. Crashed and TimedOut do
    not occur here."""
    _marked: list[int] | None = None

    @classmethod
    def of(cls, attempted: Sequence[Attempted]) -> Batch:
        """Return a batch of the given attempts."""
        deliveries = [one.delivery for one in attempted]
        outcomes = [one.outcome for one in attempted]
        return cls(
            job_ids=[one.job_id.hex for one in deliveries],
            lease_ids=[one.lease_id for one in deliveries],
            packages=[one.package for one in deliveries],
            queues=[one.queue for one in deliveries],
            priorities=[one.priority for one in deliveries],
            attempts=[one.attempt for one in deliveries],
            crashes=[one.crashes for one in deliveries],
            refused=[one.refused for one in deliveries],
            run_after=[one.run_after for one in deliveries],
            worker_ids=[one.worker_id for one in attempted],
            started_at=[one.started_at for one in attempted],
            finished_at=[one.finished_at for one in attempted],
            tasks=[one.task for one in attempted],
            enqueued_at=[one.enqueued_at for one in attempted],
            values=[one.value if isinstance(one, Succeeded) else None for one in outcomes],
            valid_until_ns=[0] * len(attempted),
            seen={
                place: outcome
                for place, outcome in enumerate(outcomes)
                if not isinstance(outcome, Succeeded)
            },
        )

    def __len__(self) -> int:
        return len(self.job_ids)

    # -- parts ------------------------------------------------------------------------------------

    def take(self, places: Sequence[int]) -> Batch:
        """Return a batch of the rows at these places."""
        if len(places) == len(self):
            return self
        new = {old: place for place, old in enumerate(places)}
        parts: dict[str, Any] = {}
        for name in COLUMNS:
            column = getattr(self, name)
            parts[name] = [column[place] for place in places] if column else column
        seen = {new[place]: one for place, one in self.seen.items() if place in new}
        decided = {new[place]: one for place, one in self.decided.items() if place in new}
        return Batch(**parts, seen=seen, decided=decided)

    def where(self, has: Callable[[int], object]) -> Batch:
        """Return a batch of the rows whose position satisfies ``has``."""
        return self.take([place for place in range(len(self)) if has(place)])

    def without(self, leases: Collection[Lease]) -> Batch:
        """Return a batch of the rows whose leases are not in ``leases``."""
        if not leases:
            return self
        gone = {(lease.job_id.hex, lease.lease_id) for lease in leases}
        return self.where(lambda place: (self.job_ids[place], self.lease_ids[place]) not in gone)

    def among(self, job_ids: Collection[str]) -> Batch:
        """Return a batch of the rows whose jobs are in ``job_ids``, given as 32 hexadecimal
        digits."""
        return self.where(lambda place: self.job_ids[place] in job_ids)

    def over(self) -> Batch:
        """Return a batch of the jobs that have ended."""
        again = self.again
        return self.where(lambda place: place not in again) if again else self

    def succeeded(self) -> Batch:
        """Return a batch of the jobs that have succeeded."""
        return self.where(lambda place: place not in self.decided) if self.decided else self

    def decide(self, decided: dict[int, Outcome]) -> None:
        """Set the decided outcomes, and the status and reason of each job.

        Args:
            decided: row number -> outcome of each attempt that did not succeed.
        """
        self.decided = decided
        statuses: list[str | None] = [Job.Status.SUCCESSFUL.value] * len(self)
        reasons = [""] * len(self)
        for place, outcome in decided.items():
            statuses[place], reasons[place] = _status_and_reason(outcome)
        self.statuses, self.reasons = statuses, reasons

    # -- questions --------------------------------------------------------------------------------

    @property
    def again(self) -> set[int]:
        """Places of the jobs that have not ended and will run again."""
        return {at for at, one in self.decided.items() if isinstance(one, Retried | Snoozed)}

    @property
    def marked(self) -> list[int]:
        """Return the positions of jobs that have hooks or belong to a workflow."""
        if self._marked is None:
            self._marked = []
            if not none_is_marked(self.job_ids):
                self._marked = [at for at, one in enumerate(self.ids()) if is_marked(one)]
        return self._marked

    @property
    def is_plain(self) -> bool:
        """Whether all jobs have succeeded, and none has hooks or belongs to a workflow."""
        return not self.decided and not self.marked

    @property
    def leases(self) -> Leases:
        """The leases of all rows."""
        return Leases(self.job_ids, self.lease_ids)

    def ids(self, places: Iterable[int] | None = None) -> list[UUID]:
        """Return the ids of the jobs at these places. None: of all jobs."""
        chosen = self.job_ids if places is None else [self.job_ids[place] for place in places]
        return [id_of(int(one, 16)) for one in chosen]

    # -- rows -------------------------------------------------------------------------------------

    def attempted(self, place: int) -> Attempted:
        """Return one row as an attempt with its reported outcome."""
        delivery = Delivery(
            id_of(int(self.job_ids[place], 16)),
            self.lease_ids[place],
            self.packages[place],
            self.queues[place],
            self.priorities[place],
            self.attempts[place],
            self.crashes[place],
            refused=self.refused[place],
            run_after=self.run_after[place],
        )
        outcome = self.seen.get(place)
        return Attempted(
            delivery,
            Succeeded(self.values[place] or b"") if outcome is None else outcome,
            self.worker_ids[place],
            self.started_at[place],
            self.finished_at[place],
            task=self.tasks[place],
            enqueued_at=self.enqueued_at[place],
        )

    def verdict(self, place: int) -> Verdict:
        """Return one row as an attempt with its decided outcome."""
        attempted = self.attempted(place)
        outcome = self.decided.get(place, attempted.outcome)
        crashes = self.crashes[place] + isinstance(attempted.outcome, Crashed)
        return Verdict(attempted, outcome, crashes, attempted.delivery.lease)

    def verdicts(self, places: Iterable[int] | None = None) -> list[Verdict]:
        """Return the verdicts of the rows at these positions. None: of all rows."""
        return [self.verdict(place) for place in (range(len(self)) if places is None else places)]


COLUMNS = tuple(one.name for one in fields(Batch) if one.name not in NO_COLUMNS)


def _status_and_reason(outcome: Outcome) -> tuple[str | None, str]:
    if isinstance(outcome, Failed):
        return Job.Status.FAILED.value, f"{outcome.reason}: {outcome.fault.in_one_line}"[:255]
    if isinstance(outcome, Cancelled):
        return Job.Status.CANCELLED.value, outcome.reason[:255]
    return None, ""


WRITE_SECONDS = 5.0
COUNTED: dict[type[Outcome], str] = {
    Failed: "failed",
    Cancelled: "cancelled",
    Retried: "retried",
}
"""The column that counts each outcome that is not a success. Other outcomes are not counted."""
UNRUN = ("expired", "unreadable", "unknown_task")
"""Values of ``Failed.reason`` for jobs whose task was never called."""
Times = tuple[Any, float, float | None, float | None, int]
"""Times of an attempt: start, end, enqueue and due time of its job; then the attempt's number."""


class Tallies:
    """The recorded attempts of one process, summed up for the history of metrics. If the process is
    killed, the history lacks its last few seconds."""

    def __init__(self, settings: Settings) -> None:
        self._alias = settings.database
        self._is_wanted = settings.keep_metrics_seconds > 0
        self._sums: dict[int, dict[TaskInQueue, Sums]] = {}
        """Start of the period, in seconds since 1970 -> sums by task and queue."""
        self._write_at = 0.0

    @property
    def are_due(self) -> bool:
        """Whether the sums should be written now."""
        return bool(self._sums) and time.monotonic() >= self._write_at

    def add(self, batch: Batch) -> None:
        """Add the recorded outcomes to the sums. The sums are updated once per task and queue, not
        once per job, because every job passes through here."""
        if not self._is_wanted or not len(batch):
            return
        if not self._sums:
            self._write_at = time.monotonic() + WRITE_SECONDS
        start = int(time.time()) // FINEST_SECONDS * FINEST_SECONDS
        all_sums = self._sums.setdefault(start, {})
        moments = (batch.started_at, batch.finished_at, batch.enqueued_at, batch.run_after)
        ran: list[Times | None] = list(zip(*moments, batch.attempts, strict=True))
        for at, outcome in batch.decided.items():
            if not _has_run(outcome, batch.refused[at]):
                ran[at] = None
        lines = list(zip(batch.queues, self._tasks_of(batch), strict=True))
        for line in set(lines):
            sums = all_sums.setdefault(TaskInQueue(*line), Sums())
            is_here = [one == line for one in lines]
            some = list(compress(ran, is_here))
            if None in batch.started_at or batch.decided:
                some = [one for one in some if one is not None and one[0] is not None]
            _add_times(sums, cast("list[Times]", some))
            sums.successful += sum(is_here)
            _add_troubles(sums, [one for at, one in batch.decided.items() if is_here[at]])

    def write(self) -> None:
        """Write the sums to the history.

        Raises:
            DatabaseError: nothing was written, and the sums are kept.
        """
        tallies = Tally.objects.using(self._alias)
        self._write_at = time.monotonic() + WRITE_SECONDS
        rows = [
            row
            for start, sums in self._sums.items()
            for row in tallies.rows_of(start, FINEST_SECONDS, sums)
        ]
        tallies.bulk_create(rows)
        self._sums = {}

    def _tasks_of(self, batch: Batch) -> Sequence[str]:
        """Return the task name of each job. The name is read from the database if no worker has
        opened the job's package."""
        if all(batch.tasks):  # nearly always
            return batch.tasks
        job_ids = batch.ids()
        unknown = [one for one, task in zip(job_ids, batch.tasks, strict=True) if not task]
        known: dict[UUID, str] = {}
        with suppress(DatabaseError, InterfaceError):  # only the history lacks the names
            rows = with_keys(Job.objects.using(self._alias), unknown)
            known = dict(rows.values_list("pk", "task"))
        pairs = zip(job_ids, batch.tasks, strict=True)
        return [task or known.get(job_id, "") for job_id, task in pairs]


def _add_troubles(sums: Sums, decided: Sequence[Outcome]) -> None:
    """Correct the counts for the jobs that did not succeed, which were first counted as
    successful."""
    sums.successful -= len(decided)
    for kind, count in Counter(map(type, decided)).items():
        if kind in COUNTED:
            setattr(sums, COUNTED[kind], getattr(sums, COUNTED[kind]) + count)


def _add_times(sums: Sums, times: Sequence[Times]) -> None:
    runs = [finished_at - started_at for started_at, finished_at, _, _, _ in times]
    waits = [
        # Not below 0: the clocks of two hosts may differ.
        max(0.0, started_at - (max(enqueued_at, run_after) if run_after else enqueued_at))
        for started_at, _, enqueued_at, run_after, attempt in times
        if attempt == 1 and enqueued_at is not None
    ]
    sums.run_seconds += sum(runs)
    sums.run_classes.update(map(class_of, runs))
    sums.wait_seconds += sum(waits)
    sums.wait_classes.update(map(class_of, waits))


def _has_run(outcome: Outcome, refused: str) -> bool:
    if refused or type(outcome) not in COUNTED:
        return False
    return not (isinstance(outcome, Failed) and outcome.reason in UNRUN)
