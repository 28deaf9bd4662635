"""Keep named locks in a cache: Redis, memcached, or any other with an atomic ``add``."""

from __future__ import annotations

import math
import time
from functools import cache
from importlib.resources import files
from typing import Any
from uuid import UUID

from django.core.cache import caches

from stoker.exceptions import ConfigurationError

from .contract import INSTEAD, LockClaim, LockStore

PREFIX = "stoker:lock:"
FENCE_PREFIX = "stoker:fence:"
FENCE_SECONDS = 30 * 24 * 3600
"""How long an unused counter is kept. A counter that was dropped restarts at the current time in
microseconds, which is above every number that it has returned."""


class AnyCacheLocks(LockStore):
    """Keep locks with ``add``, ``get``, ``touch`` and ``delete`` alone.

    A lock that may have expired is not deleted but left to expire, and ``steal_after`` is not
    supported.

    Args:
        alias: the cache's alias in ``CACHES``.
    """

    drops_only_its_own = False

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def cache(self) -> Any:
        """The cache object of this thread."""
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
        # Check the owner twice: if it is ours afterwards, no other owner had it in between.
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
        """Return the next fencing number. Only the holder calls this.

        A holder that was paused between its read and write may write an old number. So the next
        number is at least the current time.
        """
        last = self.cache.get(FENCE_PREFIX + key) or 0
        fence: int = max(last + 1, time_us())
        self.cache.set(FENCE_PREFIX + key, fence, FENCE_SECONDS)
        return fence

    def _is_of(self, owner: UUID, key: str) -> bool:
        return bool(self.cache.get(PREFIX + key) == owner.hex)


def whole(lease_seconds: float) -> int:
    """Return the time-out that makes an entry last a whole lease. Many caches count in full
    seconds, including the current one."""
    return math.ceil(lease_seconds) + 1


def time_us() -> int:
    """Return this host's time in microseconds since 1970."""
    return time.time_ns() // 1000


NEVER = -1


class RedisLocks(LockStore):
    """Keep locks in Django's Redis cache, by Lua scripts. ``alias``: the cache's alias in
    ``CACHES``."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def take(self, claim: LockClaim) -> int | None:
        steal_after = claim.steal_after_seconds
        fence = self._run(
            "take",
            [PREFIX + claim.key, FENCE_PREFIX + claim.key],
            claim.owner.hex,
            milliseconds(claim.lease_seconds),
            NEVER if steal_after is None else round(steal_after * 1_000_000),
            FENCE_SECONDS,
        )
        return None if fence is None else int(fence)

    def renew(self, key: str, owner: UUID, lease_seconds: float) -> bool:
        return bool(self._run("renew", [PREFIX + key], owner.hex, milliseconds(lease_seconds)))

    def drop(self, key: str, owner: UUID) -> bool:
        return bool(self._run("drop", [PREFIX + key], owner.hex))

    def rest(self) -> None:
        self._cache.close()

    def _run(self, script: str, keys: list[str], *arguments: object) -> Any:
        full = [self._cache.make_and_validate_key(key) for key in keys]
        # The primary server: the data of a replica may be old.
        client = self._cache._cache.get_client(full[0], write=True)
        return client.register_script(_source(script))(keys=full, args=arguments)

    @property
    def _cache(self) -> Any:
        return caches[self._alias]


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


@cache
def _source(script: str) -> str:
    return (files(__package__) / f"redis_{script}.lua").read_text(encoding="utf-8")


GONE_SECONDS = -1
"""A time-out in the past: memcached deletes an entry after compare-and-swap in this way."""


class MemcachedLocks(AnyCacheLocks):
    """Keep locks in memcached. The entry is ``owner taken_at_us``, by the clock of the host that
    took it."""

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
        """Return the next fencing number. The server counts, so a paused holder does no harm."""
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
        """Return the entry, or "", and its CAS token."""
        client, full = self._client_and_key(key)
        value, mark = client.gets(full)
        return str(value or ""), mark

    def _swap(self, key: str, value: str, mark: Any, seconds: int) -> bool:
        """Write the entry if its CAS token is still the same."""
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
