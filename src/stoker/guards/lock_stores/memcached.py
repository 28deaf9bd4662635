"""Locks in memcached, through Django's cache with pymemcache or pylibmc: ``gets`` and ``cas``."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from stoker.guards.lock_store import LockClaim

from .any_cache import FENCE_PREFIX, FENCE_SECONDS, PREFIX, AnyCacheLocks, time_us, whole

GONE_SECONDS = -1
"""An entry that ends before now: how memcached deletes what it has just compared."""


class MemcachedLocks(AnyCacheLocks):
    """The entry is ``owner taken_at_us``, the time being that of the host which took the lock."""

    drops_only_its_own = True

    def take(self, claim: LockClaim) -> int | None:
        value = f"{claim.owner.hex} {time_us()}"
        if self.cache.add(PREFIX + claim.key, value, whole(claim.lease_seconds)):
            return self.next_fence(claim.key)
        if claim.steal_after_seconds is not None and self._steal(claim, value):
            return self.next_fence(claim.key)
        return None

    def renew(self, key: str, owner: UUID, lease_seconds: float) -> bool:
        value, mark = self._gets(key)
        return _owner(value) == owner.hex and self._swap(key, value, mark, whole(lease_seconds))

    def drop(self, key: str, owner: UUID) -> bool:
        value, mark = self._gets(key)
        return _owner(value) == owner.hex and self._swap(key, value, mark, GONE_SECONDS)

    def next_fence(self, key: str) -> int:
        """Counted by the server, so a holder that slept in here harms nothing."""
        cache, counter = self.cache, FENCE_PREFIX + key
        cache.add(counter, time_us(), FENCE_SECONDS)
        try:
            fence = int(cache.incr(counter))
        except ValueError:  # thrown out just now, as memcached does when it is full
            return time_us()
        cache.touch(counter, FENCE_SECONDS)
        return fence

    def _steal(self, claim: LockClaim, value: str) -> bool:
        held, mark = self._gets(claim.key)
        age_us = time_us() - _taken_at_us(held)
        is_too_old = age_us >= (claim.steal_after_seconds or 0.0) * 1_000_000
        return is_too_old and self._swap(claim.key, value, mark, whole(claim.lease_seconds))

    def _gets(self, key: str) -> tuple[str, Any]:
        """The entry and its mark; an empty one when there is none."""
        client, full = self._client_and_key(key)
        value, mark = client.gets(full)
        return str(value or ""), mark

    def _swap(self, key: str, value: str, mark: Any, seconds: int) -> bool:
        """Write only if the entry is still the one with this mark."""
        if mark is None:
            return False
        client, full = self._client_and_key(key)
        until = self.cache.get_backend_timeout(seconds)
        try:
            return bool(client.cas(full, value, mark, until))
        except self.cache.LibraryValueNotFoundException:  # pylibmc's way to say that it is gone
            return False

    def _client_and_key(self, key: str) -> tuple[Any, str | bytes]:
        cache = self.cache
        client, full = cache._cache, cache.make_and_validate_key(PREFIX + key)
        if not hasattr(client, "behaviors"):
            return client, full
        # pylibmc must be told to count changes. Its `gets` turns a string into bytes and frees them
        # before it has used them, so sometimes it looks for another key: bytes of ours it keeps.
        if not client.behaviors.get("cas"):
            client.behaviors = {"cas": True}
        return client, full.encode()


def _owner(value: str) -> str:
    return value.partition(" ")[0]


def _taken_at_us(value: str) -> int:
    moment = value.partition(" ")[2]
    return int(moment) if moment.isdigit() else time_us()
