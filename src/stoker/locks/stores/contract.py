"""The contract of stores that keep named locks.

::

    take(claim)     free, or over, or held longer than it may be -> held by a new owner, next fence
    renew(...)      held by this owner                           -> held by it for a lease from now
    drop(...)       held by this owner                           -> free

A lease in the store never ends before it has ended by the holder's clock, because the holder counts
from *before* its request.
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
    """A request for a lock."""

    key: str
    owner: UUID
    """A new id for every attempt to take the lock."""
    lease_seconds: float
    steal_after_seconds: float | None = None


class LockStore(ABC):
    """A store of locks. Objects are cheap and thread-safe."""

    drops_only_its_own: bool = True
    """Whether ``drop`` compares the owner and deletes in one step. If not, a lock that may have
    expired is not dropped, because another owner may have it by now."""

    @abstractmethod
    def take(self, claim: LockClaim) -> int | None:
        """Return the fencing number of the new holder, or None if another holder has the lock.

        Raises:
            TransactionManagementError: an open transaction would hide the lock from others.
            ConfigurationError: this store does not support the request.
        """

    @abstractmethod
    def renew(self, key: str, owner: UUID, lease_seconds: float) -> bool:
        """Renew the lease. Return False if the lock no longer belongs to this owner."""

    @abstractmethod
    def drop(self, key: str, owner: UUID) -> bool:
        """Free the lock. Return False if it no longer belongs to this owner."""

    @property
    def is_seen_by_others(self) -> bool:
        """Return whether other connections see the lock. False inside the transaction of a
        TestCase, where a lease is neither renewed nor ends."""
        return True

    def give_up_after(self, seconds: int) -> None:
        """Set a time-out for this thread's calls, if the driver supports it."""

    def rest(self) -> None:
        """Close this thread's connection if it is unusable or too old, as Django does after a
        request."""
