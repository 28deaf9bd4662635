"""Locks in a cache of which no more is known than that its ``add`` is atomic."""

from __future__ import annotations

import math
import time
from typing import Any
from uuid import UUID

from django.core.cache import caches

from stoker.exceptions import ConfigurationError
from stoker.guards.lock_store import INSTEAD, LockClaim, LockStore

PREFIX = "stoker:lock:"
FENCE_PREFIX = "stoker:fence:"
FENCE_SECONDS = 30 * 24 * 3600
"""How long an unused counter is kept. One that is forgotten begins again at the present time in
microseconds, which is above all that it ever gave out."""


class AnyCacheLocks(LockStore):
    """By ``add``, ``get``, ``touch`` and ``delete`` alone, so a lock that may have ended is left to
    end rather than deleted, and none can be taken from a living holder.

    Args:
        alias: the cache's name in ``CACHES``.
    """

    drops_only_its_own = False

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def cache(self) -> Any:
        """This thread's object of the cache."""
        return caches[self.alias]

    def take(self, claim: LockClaim) -> int | None:
        if claim.steal_after_seconds is not None:
            raise ConfigurationError(
                f"`steal_after` does not work in the cache {self.alias!r} "
                f"({type(self.cache).__name__}): it cannot swap one holder for another in a single "
                f"step. {INSTEAD}."
            )
        if not self.cache.add(PREFIX + claim.key, claim.owner.hex, whole(claim.lease_seconds)):
            return None
        return self.next_fence(claim.key)

    def renew(self, key: str, owner: UUID, lease_seconds: float) -> bool:
        # Looked at twice: if it was ours afterwards, it was never another's in between.
        return (
            self._is_of(owner, key)
            and bool(self.cache.touch(PREFIX + key, whole(lease_seconds)))
            and self._is_of(owner, key)
        )

    def drop(self, key: str, owner: UUID) -> bool:
        return self._is_of(owner, key) and bool(self.cache.delete(PREFIX + key))

    def rest(self) -> None:
        self.cache.close()

    def next_fence(self, key: str) -> int:
        """Only the holder asks. One that slept in here, and writes an old number back, is overtaken
        by the time."""
        last = self.cache.get(FENCE_PREFIX + key) or 0
        fence: int = max(last + 1, time_us())
        self.cache.set(FENCE_PREFIX + key, fence, FENCE_SECONDS)
        return fence

    def _is_of(self, owner: UUID, key: str) -> bool:
        return bool(self.cache.get(PREFIX + key) == owner.hex)


def whole(lease_seconds: float) -> int:
    """Seconds to ask a cache for so that the entry lasts a whole lease: many count in full seconds
    only, and the second that they are in counts as over."""
    return math.ceil(lease_seconds) + 1


def time_us() -> int:
    """This host's time in microseconds since 1970."""
    return time.time_ns() // 1000
