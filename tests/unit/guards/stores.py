"""A lock store in memory and a clock that is set by hand."""

from __future__ import annotations

from uuid import UUID

from stoker.locks.holding import LockTerms
from stoker.locks.stores.contract import LockClaim, LockStore


class MemoryLocks(LockStore):
    """Leases end only when a test says so. Each call raises one of ``faults``, if any."""

    def __init__(self) -> None:
        self.owners: dict[str, UUID] = {}
        self.calls: list[str] = []
        self.faults: list[BaseException] = []
        self.is_shared = True
        self.fence = 0

    def take(self, claim: LockClaim) -> int | None:
        self._note("take")
        if claim.key in self.owners:
            return None
        self.owners[claim.key] = claim.owner
        self.fence += 1
        return self.fence

    def renew(self, key: str, owner: UUID, lease_seconds: float) -> bool:
        self._note("renew")
        return self.owners.get(key) == owner

    def drop(self, key: str, owner: UUID) -> bool:
        self._note("drop")
        if self.owners.get(key) != owner:
            return False
        del self.owners[key]
        return True

    @property
    def is_seen_by_others(self) -> bool:
        return self.is_shared

    def rest(self) -> None:
        self._note("rest")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if self.faults:
            raise self.faults.pop(0)


class Clock:
    """A clock that advances only by turn()."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds

    def turn(self, seconds: float) -> None:
        self.seconds += seconds


def terms(
    store: LockStore, lease_seconds: float = 30.0, wait_seconds: float | None = 0
) -> LockTerms:
    """Return the terms of a lock in this store."""
    return LockTerms(
        name="import",
        key="import",
        lease_seconds=lease_seconds,
        wait_seconds=wait_seconds,
        steal_after_seconds=None,
        find_store=lambda: store,
    )
