"""The contract between a named lock and the place where it is kept.

::

    take(claim)     free, or over, or held longer than it may be -> held by a new owner, next fence
    renew(...)      held by this owner                           -> held by it for a lease from now
    drop(...)       held by this owner                           -> free

A lease never ends in the store before it has ended by the clock of its holder, which counts from
*before* it asked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from uuid import UUID

INSTEAD = (
    "Leave `cache` out, and the lock is kept in the database; or name a cache on Redis or memcached"
)


@dataclass(frozen=True, slots=True)
class LockClaim:
    """What a newcomer asks for."""

    key: str
    owner: UUID
    """Fresh for every attempt to take the lock."""
    lease_seconds: float
    steal_after_seconds: float | None = None


class LockStore(ABC):
    """One place for locks. Objects are cheap, and may be used by any thread."""

    drops_only_its_own: bool = True
    """Whether ``drop`` compares the owner and deletes in one step. Where it cannot, a lock that may
    have ended is not dropped: it could be somebody else's by now."""

    @abstractmethod
    def take(self, claim: LockClaim) -> int | None:
        """The fencing number of the new holder; None when another has the lock.

        Raises:
            TransactionManagementError: when others could not see the lock before a commit.
            ConfigurationError: when this store cannot do what is asked.
        """

    @abstractmethod
    def renew(self, key: str, owner: UUID, lease_seconds: float) -> bool:
        """False when the lock is not this owner's (any more)."""

    @abstractmethod
    def drop(self, key: str, owner: UUID) -> bool:
        """Free the lock. False when it was not this owner's (any more)."""

    @property
    def is_seen_by_others(self) -> bool:
        """False inside the transaction of a TestCase: a lease there is neither renewed nor ends."""
        return True

    def give_up_after(self, seconds: int) -> None:
        """Let this thread's calls fail after so long, where that can be had."""

    def rest(self) -> None:
        """This thread is done for now: treat its connection as Django does after a request."""
