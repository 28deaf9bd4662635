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
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload
from uuid import UUID

from stoker.store.wake import NoWake, Wake
from stoker.values.ids import id_of

if TYPE_CHECKING:
    from stoker.conf import Settings
    from stoker.models.job import Message


LeaseId = int | str
CLAIM_BYTES = 16 << 20
"""Most bytes of packages that one claim returns, unless a single package is longer."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features that a broker supports. Jobs that need other features wait in the store."""

    transactional: bool = False
    """Enqueue, ack and release join the store's transaction."""
    shared: bool = True
    """Every process sees the same jobs."""
    delay: bool = True
    priority: bool = True
    look_up: bool = True
    """Waiting jobs can be found by their id."""
    guards: bool = False
    """Locks, limits, rates and sequences are kept by it."""
    atomic: bool = False
    """Whether a job's outcome may be recorded in the transaction in which the job runs."""
    max_payload_bytes: int | None = None
    max_delay_seconds: float | None = None

    def allow(self, message: Message) -> bool:
        """Whether such a broker does everything for this job that is asked for."""
        if message.stays_in_store or (message.needs and not self.guards):
            return False
        if self.max_payload_bytes is not None and len(message.package) > self.max_payload_bytes:
            return False
        if message.run_after is None:
            return True
        most, delay_seconds = self.max_delay_seconds, message.run_after - time.time()
        return self.delay and (most is None or delay_seconds <= most)


class Lease(NamedTuple):
    """The right to a job until it ends, is extended, acked or released."""

    job_id: UUID
    lease_id: LeaseId


@dataclass(slots=True, eq=False)
class Leases(Sequence[Lease]):
    """Many leases as two columns: an object for each would cost more than what is done with it."""

    job_ids: Sequence[str]
    """The 32 digits of each job's id."""
    lease_ids: Sequence[LeaseId]
    """Theirs, in the same order."""

    @classmethod
    def of(cls, leases: Sequence[Lease]) -> Leases:
        """The columns of these leases."""
        return cls([one.job_id.hex for one in leases], [one.lease_id for one in leases])

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
    """How many of the jobs may have a rate limit, as those must start at once."""
    permit_seconds: float = 0.0
    """How long a job with a rate limit may take to start, at least."""


class Delivery(NamedTuple):
    """One claimed job."""

    job_id: UUID
    lease_id: LeaseId
    package: bytes
    queue: str
    priority: int
    attempt: int
    """Which attempt this is, from 1, this claim included."""
    crashes: int = 0
    """How many of the attempts before ended with the worker's death."""
    fence: int = 0
    """The fencing number of a job with guards: higher than any number given out for its keys
    before."""
    permit_seconds: float = 0.0
    """How long from the claim's beginning on it may be started, if it has a rate; 0 = as long as
    the lease lasts."""
    refused: str = ""
    """Why a guard will not have it run at all: it ends as cancelled, unrun."""
    run_after: float | None = None
    """The moment that it was enqueued for, in seconds since 1970. None = at once, or the broker
    does not say: for metrics only."""

    @property
    def lease(self) -> Lease:
        return Lease(self.job_id, self.lease_id)


@dataclass(frozen=True, slots=True)
class Return:
    """A leased job on its way back."""

    lease: Lease
    delay_seconds: float = 0.0
    attempts: int = 0
    """Attempts used so far, as the next claim shall find them: it adds one."""
    crashes: int = 0


class Extension(NamedTuple):
    """What became of leases that were to be extended; all others were."""

    stale: set[Lease]
    """Somebody else has the job, or it has ended."""
    locked: set[Lease]
    """Another transaction holds the lease, so that it ends when it would have ended."""


class Broker(ABC):
    """One place where packages wait. Methods may raise BrokerUnavailable: try again then."""

    capabilities: Capabilities = Capabilities()

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def takes(self, message: Message) -> bool:
        """Return whether the broker does everything that this job asks for."""
        return self.capabilities.allow(message)

    @abstractmethod
    def enqueue(self, messages: Sequence[Message]) -> None:
        """Add jobs; all or none. A job id that is there already is not added again."""

    def relay(self, messages: Sequence[Message], *, until: float = 0.0) -> None:
        """Add jobs that come from an outbox. One that was relayed before is not added again, even
        if it has ended since: a broker that forgets those remembers these.

        Args:
            messages: the jobs.
            until: what ``relay_until`` said before the outbox was read. The broker refuses them
                later than that; 0 = it never does.
        """
        self.enqueue(messages)

    def relay_until(self) -> float:
        """Return the time on the broker's clock up to which rows read from an outbox now may be
        relayed; 0 means no limit. Later, another process may have relayed them long ago."""
        return 0.0

    def relayed_for_good(self, job_ids: Sequence[UUID]) -> None:
        """The outbox has these no more, so they need not be remembered for long. Best effort."""

    @abstractmethod
    def claim(self, request: ClaimRequest) -> list[Delivery]:
        """Lease due jobs, by priority, then first in, first out."""

    @abstractmethod
    def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> set[Lease]:
        """Let each lease end ``lease_seconds`` from now. Returns the stale ones."""

    def note_handed_out(self, leases: Sequence[Lease]) -> None:
        """Record that workers get these jobs now: until then ``kept`` may return them."""

    def kept(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Filter leased jobs: return the ones that had not started if this is their last attempt.
        A broker that cannot know returns none."""
        return set()

    @abstractmethod
    def settle(
        self,
        over: Sequence[Lease] = (),
        again: Sequence[Return] = (),
        *,
        failed: Collection[UUID] = (),
    ) -> set[Lease]:
        """End leases, in one step if the broker can.

        Args:
            over: leases; their jobs are deleted.
            again: jobs to let wait again.
            failed: deleted jobs with a new dead letter.

        Returns:
            The stale leases, for which nothing was changed.
        """

    @abstractmethod
    def claim_expired(self, request: ClaimRequest) -> list[Delivery]:
        """Take over jobs whose lease has ended, with a fresh lease id, whatever their queue.
        ``attempt`` is the attempt that was lost; it is not counted again."""

    @abstractmethod
    def expire_holder(self, holder: UUID) -> int:
        """End all leases of a holder that is known to be dead. Returns how many."""

    @abstractmethod
    def held_by(self, holder: UUID, *, packages: bool = True) -> list[Delivery]:
        """Return the deliveries that a holder has leased.

        Args:
            packages: whether to read the packages too; if not, they may be ``b""``.
        """

    @abstractmethod
    def withdraw(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Remove jobs that wait. Returns those removed; a leased job is left alone."""

    @abstractmethod
    def states(self, job_ids: Sequence[UUID]) -> dict[UUID, str]:
        """Return job id -> "ready", "deferred", "blocked" or "running" for the jobs this broker
        has."""

    @abstractmethod
    def sizes(self) -> dict[str, dict[str, int]]:
        """Queue -> {"ready": n, "deferred": n, "blocked": n, "running": n}."""

    @abstractmethod
    def purge(self, queue: str) -> int:
        """Remove every waiting job of a queue. Returns how many."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Ask the server, and return ``{"broker": ..., "server": ...}`` for display.

        Raises:
            BrokerUnavailable: it does not answer.
        """

    def ping(self) -> None:
        """Raise BrokerUnavailable if the server does not answer."""
        self.info()

    def weaknesses(self) -> list[str]:
        """What about the server's configuration may lose jobs: sentences that say what to do.
        Raises: BrokerUnavailable."""
        return []

    def wake_up(self, queues: Iterable[str]) -> None:
        """Tell sleeping pushers that jobs came to these queues. Best effort: may do nothing, must
        not raise. A broker beside the store does so itself when it gets jobs."""

    def open_wake(self) -> Wake:
        """Return the wake-up source on which a pusher of this broker sleeps."""
        return NoWake()

    def next_due_seconds(self, *, rated: bool = True) -> float | None:
        """Seconds until the next deferred job is due; None when none is known.

        Args:
            rated: whether jobs that wait for their rate count, too.
        """
        return None

    def close(self) -> None:
        """Give connections back; the next call opens new ones."""
