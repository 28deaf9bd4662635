"""The contract between Stoker and the place where packages wait: bytes in, leases out.

::

    enqueue(messages)                       waiting
    claim(request)                          waiting -> leased, attempt counted, fresh lease id
    extend(leases)                          leased, for longer
    settle(over, again)                     leased  -> gone, or waiting again, now or later
    claim_expired(request)                  lease over -> leased by the rescuer, fresh lease id

Extend and settle name the lease id. A lease that is not the job's current one is *stale*:
nothing is changed for it, and it is returned, so that its holder knows that it has lost the job.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, overload
from uuid import UUID

from stoker.exceptions import BrokerUnavailable
from stoker.store.wake import NoWake, Wake
from stoker.values.ids import id_of

if TYPE_CHECKING:
    from stoker.conf import Settings
    from stoker.models.job import Job, JobColumns, Message


LeaseId = int | str
CLAIM_BYTES = 16 << 20
"""Maximum total size of the packages of one claim, in bytes. A single longer package is still
returned."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features that a broker supports. Jobs that need other features wait in the store."""

    transactional: bool = False
    """Whether enqueue, ack and release are part of the store's transaction."""
    shared: bool = True
    """Whether every process sees the same jobs."""
    priority: bool = True
    look_up: bool = True
    """Whether waiting jobs can be found by their id."""
    guards: bool = False
    """Whether the broker supports locks, limits, rates and sequences."""
    atomic: bool = False
    """Whether a job's outcome may be recorded in the job's own transaction."""
    results: bool = False
    """Whether the broker can record a success and keep the result, in the step that ends the
    lease."""
    max_payload_bytes: int | None = None
    max_delay_seconds: float | None = None

    def allow(self, message: Message) -> bool:
        """Return whether a broker with these capabilities supports everything that the job needs.
        The answer for a job never changes: a delay counts from the job's enqueue, because several
        steps ask, and must not disagree about where the job waits."""
        if message.stays_in_store or (message.needs and not self.guards):
            return False
        if self.max_payload_bytes is not None and len(message.package) > self.max_payload_bytes:
            return False
        if message.run_after is None:
            return True
        most, delay_seconds = self.max_delay_seconds, message.run_after - message.enqueued_at
        return most is None or delay_seconds <= most


class Lease(NamedTuple):
    """The right to run a job, for a limited time. Ends when it expires, or with an ack or
    release."""

    job_id: UUID
    lease_id: LeaseId


@dataclass(slots=True, eq=False)
class Leases(Sequence[Lease]):
    """Many leases as two columns, because one object per lease would be slow."""

    job_ids: Sequence[str]
    """The 32 digits of each job's id."""
    lease_ids: Sequence[LeaseId]
    """The lease ids, in the same order."""

    @classmethod
    def of(cls, leases: Sequence[Lease]) -> Leases:
        """Return these leases as columns."""
        return cls([one.job_id.hex for one in leases], [one.lease_id for one in leases])

    def take(self, places: Sequence[int]) -> Leases:
        """Return the leases at these places."""
        return Leases(
            [self.job_ids[place] for place in places],
            [self.lease_ids[place] for place in places],
        )

    def __len__(self) -> int:
        return len(self.job_ids)

    @overload
    def __getitem__(self, index: int) -> Lease: ...
    @overload
    def __getitem__(self, index: slice) -> Leases: ...
    def __getitem__(self, index: int | slice) -> Lease | Leases:
        if isinstance(index, slice):
            return Leases(self.job_ids[index], self.lease_ids[index])
        return Lease(id_of(int(self.job_ids[index], 16)), self.lease_ids[index])


class ClaimRequest(NamedTuple):
    """The parameters of a claim."""

    limit: int
    """The largest number of jobs. A claim returns fewer if their packages take more than
    ``CLAIM_BYTES``."""
    holder: UUID
    """The cluster that gets the leases."""
    lease_seconds: float
    queues: Sequence[str] = ()
    """The queues to serve; empty means all."""
    passed_over: Collection[str] = ()
    """Queues to skip, because they are paused."""
    rated_limit: int = 1
    """Maximum number of jobs with a rate limit, because such jobs must start at once."""
    permit_seconds: float = 0.0
    """Minimum validity of the permit to start a job with a rate limit."""
    turns: int = 1
    """Maximum number of jobs under one lock to lease at once. The holder starts them one after
    another."""
    ahead: Container[UUID] = ()
    """The jobs of this holder behind which others with the same lock may be leased."""


class Delivery(NamedTuple):
    """One claimed job."""

    job_id: UUID
    lease_id: LeaseId
    package: bytes
    queue: str
    priority: int
    attempt: int
    """Number of this attempt, from 1."""
    crashes: int = 0
    """Number of earlier attempts that ended with the death of their worker."""
    fence: int = 0
    """Fencing number of a job with guards: higher than every earlier number of its keys."""
    permit_seconds: float = 0.0
    """Seconds after the start of the claim during which a job with a rate may start; 0 = as long as
    the lease lasts."""
    refused: str = ""
    """Why a guard forbids to run the job. It then ends as cancelled, without running."""
    run_after: float | None = None
    """``run_after`` of the job, in seconds since 1970, for metrics only. None = no ``run_after``,
    or the broker does not know it."""
    turn: UUID | None = None
    """The key of the lock under which the holder starts its jobs one after another. None = this job
    depends on no other job of the holder."""

    @property
    def lease(self) -> Lease:
        return Lease(self.job_id, self.lease_id)


class BrokerJob(NamedTuple):
    """One job as its broker stores it."""

    package: bytes
    due: float | None = None
    """Start time of a deferred job, in seconds since 1970. None = it is not deferred."""


@dataclass(frozen=True, slots=True)
class Return:
    """A leased job to be released, so that it waits again."""

    lease: Lease
    delay_seconds: float = 0.0
    attempts: int = 0
    """Number of attempts to store with the job. The next claim adds one."""
    crashes: int = 0


def due_in(seconds: float | None, now: float) -> float:
    """Return the monotonic time in ``seconds`` from ``now``, infinity for None."""
    return inf if seconds is None else now + seconds


def seconds_until(due_at: float) -> float | None:
    """Return the seconds until a monotonic time, 0 if it has passed, None for infinity."""
    return None if due_at == inf else max(0.0, due_at - time.monotonic())


class Extension(NamedTuple):
    """The leases that could not be extended."""

    stale: set[Lease]
    """Leases that are no longer valid: another cluster has the job, or it has ended."""
    locked: set[Lease]
    """Leases locked by another transaction, or on one of several servers that is down: they still
    end at the old time."""


class Unrecorded(NamedTuple):
    """The leases that ``Broker.finish`` has not ended."""

    stale: set[Lease]
    returned: set[Lease]
    """Leases of jobs that had been released before. The store may know these jobs, so their
    outcomes have to be recorded there."""
    unanswered: Collection[Lease] = ()
    """Leases on one of several servers that did not answer."""
    error: BrokerUnavailable | None = None
    """Why they were not ended."""


class PartlyUnavailable(BrokerUnavailable):
    """One of a broker's servers did not answer. Nothing is known of its ``leases``; those of the
    other servers have ended."""

    def __init__(self, error: BrokerUnavailable, leases: Collection[Lease]) -> None:
        super().__init__(str(error))
        self.leases = leases


class Broker(ABC):
    """The interface of a broker, which stores packages until workers run their jobs. Every method
    may raise BrokerUnavailable; the caller may then try again."""

    capabilities: Capabilities = Capabilities()

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def takes(self, message: Message) -> bool:
        """Return whether the broker supports everything that this job needs."""
        return self.capabilities.allow(message)

    @abstractmethod
    def enqueue(self, messages: Sequence[Message]) -> None:
        """Add jobs; all or none. A job whose id exists already is not added again."""

    def relay(self, messages: Sequence[Message], *, until: float = 0.0) -> None:
        """Add jobs from an outbox. A job that was relayed before is not added again, even if it has
        ended since. So the broker remembers the ids of relayed jobs.

        Args:
            messages: the jobs.
            until: the result of ``relay_until`` from before the outbox was read. The broker refuses
                the jobs after that time; 0 = no limit.
        """
        self.enqueue(messages)

    def relay_until(self) -> float:
        """Return the time, on the broker's clock, until which rows that are read from an outbox now
        may be relayed; 0 = no limit. After that time another process may have relayed them."""
        return 0.0

    def relayed_for_good(self, job_ids: Sequence[UUID]) -> None:
        """Record that these jobs were deleted from the outbox, so that their ids can be forgotten
        soon. Best effort."""

    @abstractmethod
    def claim(self, request: ClaimRequest) -> list[Delivery]:
        """Lease due jobs, by priority, then first in, first out."""

    @property
    def is_partial(self) -> bool:
        """Return whether one of several servers did not answer the last ``claim`` or ``held_by`` of
        this thread, so that its jobs are missing. A claim may have leased some of them."""
        return False

    @property
    def leaves_doubt(self) -> bool:
        """Return whether the last claim may have leased more jobs than it returned, because an
        answer was lost."""
        return self.is_partial

    @abstractmethod
    def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> set[Lease]:
        """Let each lease end ``lease_seconds`` from now. Return the stale leases."""

    def extend_unlocked(self, leases: Sequence[Lease], *, lease_seconds: float) -> Extension:
        """Extend the leases that can be extended now. Return the stale leases, and those that could
        not be extended: their rows are locked, or their server is down."""
        return Extension(self.extend(leases, lease_seconds=lease_seconds), set())

    def note_handed_out(self, leases: Sequence[Lease]) -> None:
        """Record that these jobs are being sent to workers. From then on ``kept`` does not
        return them."""

    def kept(self, leases: Sequence[Lease]) -> set[UUID]:
        """Return which of these leased jobs are in their last attempt and no worker has received
        them. A broker without this information returns an empty set."""
        return set()

    @abstractmethod
    def settle(
        self,
        over: Sequence[Lease] = (),
        again: Sequence[Return] = (),
        *,
        failed: Collection[UUID] = (),
    ) -> set[Lease]:
        """End leases, in one step if the broker supports that.

        Args:
            over: leases; their jobs are deleted.
            again: jobs to let wait again.
            failed: deleted jobs with a new dead letter.

        Returns:
            The stale leases, for which nothing was changed.

        Raises:
            PartlyUnavailable: one of several servers did not answer.
        """

    def begin_settle(
        self,
        over: Sequence[Lease] = (),
        again: Sequence[Return] = (),
        *,
        failed: Collection[UUID] = (),
    ) -> Callable[[], object]:
        """Begin to end leases as ``settle`` does, if possible without waiting for the server.

        Returns:
            A function that waits for the end. If it raises BrokerUnavailable, it can be called
            again, and then repeats the step.
        """
        self.settle(over, again, failed=failed)
        return lambda: None

    def finish(self, jobs: JobColumns, leases: Leases) -> Unrecorded:
        """Ack successful jobs and, if the settings say so, keep their results, in one step that can
        be repeated. Return the leases that were not ended. Needs the capability ``results``."""
        raise NotImplementedError  # the recorder asks for the capability first

    def results(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        """Return job id -> job, for the results that this broker keeps. The jobs are not saved."""
        return {}

    @abstractmethod
    def claim_expired(self, request: ClaimRequest) -> list[Delivery]:
        """Take over jobs whose lease has ended, with a fresh lease id, in all queues. ``attempt``
        is the attempt that was lost; it is not counted again."""

    def clocks(self) -> Mapping[str, float]:
        """Ask the servers that answer for the time by which their leases end: name of the server ->
        seconds since 1970. Empty if the database's clock or this process's decides."""
        return {}

    @abstractmethod
    def expire_holder(self, holder: UUID) -> int:
        """End all leases of a holder that is known to be dead. Return their number."""

    @abstractmethod
    def held_by(self, holder: UUID, *, packages: bool = True) -> list[Delivery]:
        """Return the deliveries that a holder has leased.

        Args:
            packages: whether to read the packages too; if not, they may be ``b""``.
        """

    @abstractmethod
    def withdraw(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Remove waiting jobs. Return the ids of the removed jobs. A leased job stays."""

    @abstractmethod
    def states(self, job_ids: Sequence[UUID]) -> dict[UUID, str]:
        """Return job id -> "ready", "deferred", "blocked" or "running" for the jobs this broker
        has."""

    def jobs(self, job_ids: Sequence[UUID]) -> dict[UUID, BrokerJob]:
        """Return job id -> job, for the jobs that this broker has and whose packages only it
        stores."""
        return {}

    @abstractmethod
    def sizes(self) -> dict[str, dict[str, int]]:
        """Return queue -> {"ready": n, "deferred": n, "blocked": n, "running": n}."""

    @abstractmethod
    def waiting_in(self, queue: str) -> Iterator[Sequence[UUID]]:
        """Yield the waiting jobs of a queue in batches. Jobs may be withdrawn meanwhile. Jobs that
        come meanwhile may be left out."""

    def purge(self, queue: str) -> int:
        """Remove all waiting jobs of a queue. Return their number."""
        return sum(len(self.withdraw(job_ids)) for job_ids in self.waiting_in(queue))

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Ask the server, and return ``{"broker": ..., "server": ...}`` for display.

        Raises:
            BrokerUnavailable: it does not answer.
        """

    def ping(self) -> None:
        """Raise BrokerUnavailable if the server does not answer, or refuses all writes."""
        self.info()

    def answers_for(self, leases: Collection[Lease]) -> bool:
        """Return whether all servers with these leases answer, if a ``ping`` has just worked."""
        return True

    def weaknesses(self) -> list[str]:
        """Return a sentence for each setting of the server that may lose jobs. The sentence says
        what to do.
        Raises: BrokerUnavailable."""
        return []

    def wake_up(self, queues: Iterable[str]) -> None:
        """Wake sleeping pushers, because these queues have new jobs. Best effort: may do
        nothing, must not raise. A broker outside the store wakes them itself in ``enqueue``."""

    def open_wake(self) -> Wake:
        """Return the wake-up source on which a pusher of this broker sleeps."""
        return NoWake()

    def next_due_seconds(self, *, rated: bool = True) -> float | None:
        """Return the seconds until the next deferred job is due, or None if none is known.

        Called after a claim that found fewer jobs than its limit. If that claim has read the due
        times, they are not read again.

        Args:
            rated: whether to include jobs that wait for a rate.
        """
        return None

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""

    def close_idle(self) -> None:
        """Close the connections that no call uses now, if an interrupted call may have left an
        answer unread in one of them."""
