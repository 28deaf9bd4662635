"""Batch: outcomes of all kinds as columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any
from uuid import UUID

from stoker.brokers.contract import Delivery, Lease, LeaseId, Leases
from stoker.models.job import Calls, Endings, Job
from stoker.values.ids import id_of, is_marked, none_is_marked

from .outcomes import Attempted, Cancelled, Crashed, Failed, Outcome, Retry, Snoozed, Succeeded


# Not frozen, since there may be one for each job: that would make it several times as slow to make.
@dataclass(slots=True)
class Verdict:
    """One attempt of a batch with the decision about it."""

    attempted: Attempted
    outcome: Outcome
    """The outcome, with Retry, Failed or Snoozed in place of Crashed and TimedOut."""
    crashes: int
    lease: Lease

    @property
    def is_over(self) -> bool:
        """Whether the job has ended by it."""
        return not isinstance(self.outcome, Retry | Snoozed)


NO_COLUMNS = ("seen", "decided", "_marked")


@dataclass(slots=True)
class Batch:
    """Outcomes as columns. All columns are equally long, and row ``place`` is one attempt."""

    job_ids: Sequence[str]
    """The 32 digits of each."""
    lease_ids: Sequence[LeaseId]
    packages: Sequence[bytes]
    """Empty where the store has the package."""
    queues: Sequence[str]
    priorities: Sequence[int]
    attempts: Sequence[int]
    crashes: Sequence[int]
    """How many of the attempts before ended with the worker's death."""
    refused: Sequence[str]
    run_after: Sequence[float | None]
    """Seconds since 1970, as all moments here."""
    worker_ids: Sequence[str]
    started_at: Sequence[float | None]
    finished_at: Sequence[float]
    tasks: Sequence[str]
    """Task paths from the packages; "" = unopened package."""
    enqueued_at: Sequence[float | None]
    values: Sequence[bytes | None]
    """Serialised return values; None = the attempt did not succeed."""
    valid_until_ns: Sequence[int]
    """Until when each lease is known to be valid, on the lease clock; 0 = not known."""
    seen: dict[int, Outcome]
    """Place -> reported outcome of each attempt that did not succeed."""
    decided: dict[int, Outcome] = field(default_factory=dict)
    """Place -> decided outcome, without crashes and time-outs."""
    _marked: list[int] | None = None

    @classmethod
    def of(cls, attempted: Sequence[Attempted]) -> Batch:
        """Make a batch of attempts."""
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
            parts[name] = [column[place] for place in places]
        seen = {new[place]: one for place, one in self.seen.items() if place in new}
        decided = {new[place]: one for place, one in self.decided.items() if place in new}
        return Batch(**parts, seen=seen, decided=decided)

    def where(self, has: Callable[[int], object]) -> Batch:
        """The batch of the rows whose place this says yes to."""
        return self.take([place for place in range(len(self)) if has(place)])

    def without(self, leases: Collection[Lease]) -> Batch:
        """The batch of the rows that have none of these leases."""
        if not leases:
            return self
        gone = {(lease.job_id.hex, lease.lease_id) for lease in leases}
        return self.where(lambda place: (self.job_ids[place], self.lease_ids[place]) not in gone)

    def among(self, job_ids: Collection[str]) -> Batch:
        """The batch of the rows of these jobs, given by their 32 digits."""
        return self.where(lambda place: self.job_ids[place] in job_ids)

    def over(self) -> Batch:
        """The batch of the jobs that have ended."""
        again = self.again
        return self.where(lambda place: place not in again) if again else self

    def succeeded(self) -> Batch:
        """The batch of the jobs that have succeeded."""
        return self.where(lambda place: place not in self.decided) if self.decided else self

    # -- questions --------------------------------------------------------------------------------

    @property
    def again(self) -> set[int]:
        """The places of jobs that have not ended."""
        return {at for at, one in self.decided.items() if isinstance(one, Retry | Snoozed)}

    @property
    def marked(self) -> list[int]:
        """The places of jobs from whose end something follows."""
        if self._marked is None:
            self._marked = []
            if not none_is_marked(self.job_ids):
                self._marked = [at for at, one in enumerate(self.ids()) if is_marked(one)]
        return self._marked

    @property
    def is_plain(self) -> bool:
        """Whether all have succeeded, and nothing follows from it."""
        return not self.decided and not self.marked

    @property
    def leases(self) -> Leases:
        """All of them."""
        return Leases(self.job_ids, self.lease_ids)

    def ids(self, places: Iterable[int] | None = None) -> list[UUID]:
        """The ids of the jobs at these places, or of all."""
        chosen = self.job_ids if places is None else [self.job_ids[place] for place in places]
        return [id_of(int(one, 16)) for one in chosen]

    # -- rows -------------------------------------------------------------------------------------

    def attempted(self, place: int) -> Attempted:
        """The attempt of one row."""
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
        """Return the verdicts of these rows, or of all rows."""
        return [self.verdict(place) for place in (range(len(self)) if places is None else places)]

    # -- for the tables ---------------------------------------------------------------------------

    def calls(self) -> Calls:
        """What was called, for the rows of jobs that have none."""
        enqueued_at = [one or 0.0 for one in self.enqueued_at]
        return Calls(self.tasks, self.queues, self.priorities, self.packages, enqueued_at)

    def endings(self) -> Endings:
        """Return the ends of the jobs. A job with attempts left has the status None."""
        count = len(self)
        statuses: list[str | None] = [Job.Status.SUCCESSFUL.value] * count
        reasons = [""] * count
        for place, outcome in self.decided.items():
            statuses[place], reasons[place] = _status_and_reason(outcome)
        again = self.again
        if not again:
            same = (self.attempts, self.worker_ids, self.started_at, self.finished_at)
            return Endings(self.job_ids, statuses, *same, self.values, reasons)
        places = range(count)
        return Endings(
            self.job_ids,
            statuses,
            [0 if place in again else self.attempts[place] for place in places],
            ["" if place in again else self.worker_ids[place] for place in places],
            [None if place in again else self.started_at[place] for place in places],
            [None if place in again else self.finished_at[place] for place in places],
            self.values,
            reasons,
        )


COLUMNS = tuple(one.name for one in fields(Batch) if one.name not in NO_COLUMNS)


def _status_and_reason(outcome: Outcome) -> tuple[str | None, str]:
    if isinstance(outcome, Failed):
        return Job.Status.FAILED.value, f"{outcome.reason}: {outcome.fault.in_one_line}"[:255]
    if isinstance(outcome, Cancelled):
        return Job.Status.CANCELLED.value, outcome.reason[:255]
    return None, ""
