"""``stoker.lock()``: a distributed lock with one holder at a time, across processes and hosts."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID, uuid4

from asgiref.sync import sync_to_async
from django.core.cache import InvalidCacheBackendError, caches
from django.core.cache.backends import base, db, dummy, filebased, locmem, memcached, redis
from django.core.cache.backends.base import BaseCache
from django.db.transaction import TransactionManagementError

from stoker.conf import settings_for
from stoker.exceptions import (
    ConfigurationError,
    LockBusy,
    LockLost,
    LockMisused,
    NotMigrated,
    TaskTimeout,
)
from stoker.locks.stores.cache import AnyCacheLocks, MemcachedLocks, RedisLocks
from stoker.locks.stores.contract import INSTEAD, LockClaim, LockStore
from stoker.setting_values import seconds
from stoker.signals import tell

from . import holding as clock
from . import holding as renewal
from .holding import Holding, LockTerms

SHORTEST_LEASE_SECONDS = 1.0
LONGEST_GIVEN_SECONDS = 100_000_000
"""Maximum of every duration that a user chooses: three years. The databases and the renewal thread
could not count much longer ones, and memcached ends in 2038."""


def lock(
    name: str,
    *,
    wait: Seconds | None = 0.0,
    lease: Seconds = 30.0,
    steal_after: Seconds | None = None,
    cache: str | None = None,
    backend: str = "default",
) -> NamedLock:
    """Return a distributed lock, which only one holder at a time can have across all processes and
    hosts::

        with stoker.lock(f"feed:{feed_id}") as held:
            ...

        async with stoker.lock("report", wait=5):
            ...

    While the holder's process lives, the lease of the lock is renewed in the background, so a slow
    holder keeps the lock. If the process dies, the lock becomes free when the lease ends.

    Args:
        name: any string that is not empty; names that begin with "stoker:" are reserved.
        wait: how long to wait for the lock: seconds or a timedelta. 0 = do not wait; None = wait
            until it is free.
        lease: duration of the lease in seconds, from 1 to 100,000,000. If the holder's process
            dies, the lock stays taken for up to this time.
        steal_after: take the lock from another holder that has held it for this many seconds. That
            holder notices it at the next renewal of its lease, after a third of the lease at most.
        cache: keep the lock in this cache of ``CACHES`` instead of the database.
        backend: the alias in ``TASKS`` whose database keeps the lock, if no cache is named.

    Returns:
        An object for ``with``, ``async with``, ``acquire()`` and ``release()``. It is reusable but
        not re-entrant: two objects with one name exclude each other, even in the same thread.

    Raises:
        TypeError, ValueError: an argument cannot be used.
    """
    refuse_bad_name(name)
    return NamedLock(
        LockTerms(
            name=name,
            key=key_of(name),
            lease_seconds=checked_seconds("lease", lease, SHORTEST_LEASE_SECONDS),
            wait_seconds=checked_if_given("wait", wait),
            steal_after_seconds=checked_if_given("steal_after", steal_after),
            find_store=partial(store_for, cache, backend),
        )
    )


LONGEST_KEY = 120
"""Memcached accepts keys of 250 characters, including the project's prefix and version."""
RESERVED = "stoker:"

# Lower case only: MariaDB holds "Feed" and "feed" for the same. No blanks: memcached cannot have
# them. No "~": it marks what was hashed, so that no name can be the key of another.
_SAFE = re.compile(r"[!-@\[-`a-}]+")
_UNSAFE = re.compile(r"[^!-@\[-`a-}]+")
_SEEN_OF_NAME = 60


def key_of(name: str) -> str:
    """Return a unique key for a name, of at most ``LONGEST_KEY`` characters.

    It is the name itself if every store accepts it, otherwise the beginning of the name and a hash.
    """
    if len(name) <= LONGEST_KEY and _SAFE.fullmatch(name):
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
    return f"{_UNSAFE.sub('_', name.lower())[:_SEEN_OF_NAME]}~{digest}"


def refuse_bad_name(name: object) -> None:
    """Raise TypeError or ValueError if the value cannot be the name of a lock."""
    if not isinstance(name, str):
        raise TypeError(
            f"The name of a lock is a string, but this is {name!r}. Write what distinguishes one "
            "lock from another into it, as in f'feed:{feed_id}'."
        )
    if not name:
        raise ValueError("A lock needs a name, and this one is empty.")
    if name.startswith(RESERVED):
        raise ValueError(
            f"The lock {name!r} is reserved for Stoker: begin the name with another word."
        )


NOT_EVEN_ASKED = (TransactionManagementError, ConfigurationError, NotMigrated)


class _Given(Enum):
    WHEN_MADE = 0


WHEN_MADE: Final = _Given.WHEN_MADE

_under_way: set[asyncio.Future[Any]] = set()
"""Futures that outlive a cancelled coroutine. An event loop keeps only weak references to its
tasks."""


class NamedLock:
    """The object that ``stoker.lock()`` returns."""

    def __init__(self, terms: LockTerms) -> None:
        self._terms = terms
        self._holding: Holding | None = None
        self._is_being_taken = threading.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}{', held' if self.is_held else ''}>"

    @property
    def name(self) -> str:
        return self._terms.name

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock, as far as this process knows without asking the
        store.

        It becomes False before the lease ends, even if this process was paused. If the lock was
        stolen (``steal_after``) or evicted from a cache, it becomes False at the next renewal, at
        the latest after a third of the lease.
        """
        return self._holding is not None and self._holding.is_alive

    @property
    def fence(self) -> int:
        """Fencing number of this acquisition. Every later holder has a higher one.

        Store it with your writes and refuse lower ones: then a holder that has lost the lock
        without noticing cannot overwrite newer data. It keeps its value after the lock is lost or
        released.

        Raises:
            LockMisused: the lock has not been taken yet.
        """
        if self._holding is None:
            raise LockMisused(f"The lock {self.name!r} has no fence before it is taken.")
        return self._holding.fence

    def check(self) -> None:
        """Raise LockLost unless the lock is still held. Does not query the store (see ``is_held``).

        Raises:
            LockLost: the lock is not held; the message says why.
        """
        if self._holding is None:
            raise LockLost(f"The lock {self.name!r} is not held: it was not taken.")
        if why := self._holding.why_over:
            raise LockLost(f"The lock {self.name!r} is not held any more: {why}.")

    # -- taking -----------------------------------------------------------------------------------

    def acquire(self, wait: Seconds | _Given | None = WHEN_MADE) -> bool:
        """Take the lock.

        Args:
            wait: seconds to wait for it, None = for ever; by default the lock's own ``wait``.

        Returns:
            Whether the lock was taken.

        Raises:
            LockMisused: this object already has the lock or is waiting for it.
            TransactionManagementError: a transaction is open, which would hide the lock from
                others.
            ConfigurationError: the cache cannot keep locks.
            NotMigrated, BrokerUnavailable: the database cannot keep it.
        """
        next_pauses = pauses(self._seconds_to_wait(wait))
        self._begin()
        try:
            while not self._try():
                pause = next(next_pauses, None)
                if pause is None:
                    return False
                time.sleep(pause)
            return True
        finally:
            self._is_being_taken.release()

    async def aacquire(self, wait: Seconds | _Given | None = WHEN_MADE) -> bool:
        """Async version of ``acquire()``. If it is cancelled, the lock is released."""
        next_pauses = pauses(self._seconds_to_wait(wait))
        self._begin()
        try:
            while not await self._atry():
                pause = next(next_pauses, None)
                if pause is None:
                    return False
                await asyncio.sleep(pause)
            return True
        finally:
            self._is_being_taken.release()

    def __enter__(self) -> Self:
        """Take the lock. Raises LockBusy if another holder has it."""
        if not self.acquire():
            raise self._busy()
        return self

    async def __aenter__(self) -> Self:
        if not await self.aacquire():
            raise self._busy()
        return self

    # -- giving back ------------------------------------------------------------------------------

    def release(self) -> bool:
        """Release the lock, unless another holder has it by now.

        Returns:
            Whether the lock was held until now and is free. False if it was lost before, or if the
            store could not be reached: then it becomes free when its lease ends.
        """
        holding = self._holding
        if holding is None or not holding.is_ours:
            return False
        is_certain, was_held = holding.is_certain, holding.end()
        renewal.renewal.forget(holding)
        try:
            store = self._terms.find_store()
            if is_certain or store.drops_only_its_own:
                return store.drop(self._terms.key, holding.owner) and was_held
            why: object = "this cache cannot tell whether it is still ours"
        except TaskTimeout as error:  # it is raised only once, for the whole task
            self._note_not_released(was_held, error)
            raise
        except Exception as error:  # noqa: BLE001 - what was done under the lock is done all the same
            why = error
        self._note_not_released(was_held, why)
        return False

    def _note_not_released(self, was_held: bool, because: object) -> None:
        if was_held:
            tell("lock_not_released", name=self.name, because=because)

    async def arelease(self) -> bool:
        """Async version of ``release()``."""
        # Complete the release even if this coroutine is cancelled meanwhile.
        return bool(await asyncio.shield(_start(sync_to_async(self.release)())))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.arelease()

    # -- how it is done ---------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._is_being_taken.acquire(blocking=False):
            raise self._misused("is being taken by this object already")
        if self.is_held:
            self._is_being_taken.release()
            raise self._misused("is held by this object already")
        if self._holding is not None:
            self._holding.end()

    def _try(self) -> bool:
        owner = uuid4()
        try:
            return self._keep(self._ask(owner))
        except NOT_EVEN_ASKED:
            raise
        except BaseException:
            # We may have it without knowing: the answer was lost, or a time-out came just then.
            self._drop(owner)
            raise

    async def _atry(self) -> bool:
        owner = uuid4()
        asking = _start(sync_to_async(self._ask)(owner))
        try:
            return self._keep(await asyncio.shield(asking))
        except NOT_EVEN_ASKED:
            raise
        except BaseException:
            await asyncio.shield(_start(self._drop_after(asking, owner)))
            raise

    def _ask(self, owner: UUID) -> Holding | None:
        """Ask the store for the lock. Return None if another holder has it."""
        terms, store = self._terms, self._terms.find_store()
        claim = LockClaim(terms.key, owner, terms.lease_seconds, terms.steal_after_seconds)
        asked_at = clock.now()
        fence = store.take(claim)
        if fence is None:
            return None
        holding = Holding(terms, owner, fence, asked_at, is_renewed=store.is_seen_by_others)
        if not holding.is_alive:  # the answer came after the end of the lease
            asked_at = clock.now()
            if not store.renew(terms.key, owner, terms.lease_seconds):
                return None
            holding = Holding(terms, owner, fence, asked_at, is_renewed=True)
        return holding

    def _keep(self, holding: Holding | None) -> bool:
        if holding is None or not holding.is_alive:
            return False
        if holding.is_renewed:
            renewal.renewal.watch(holding)
        self._holding = holding
        return True

    def _drop(self, owner: UUID) -> None:
        try:
            self._terms.find_store().drop(self._terms.key, owner)
        except TaskTimeout:
            raise
        except Exception:  # noqa: BLE001, S110 - the lease ends anyway
            pass

    async def _drop_after(self, asking: asyncio.Future[Any], owner: UUID) -> None:
        with suppress(BaseException):
            await asking
        await sync_to_async(self._drop)(owner)

    def _seconds_to_wait(self, wait: Seconds | _Given | None) -> float | None:
        return self._terms.wait_seconds if wait is WHEN_MADE else checked_if_given("wait", wait)

    def _busy(self) -> LockBusy:
        waited = self._terms.wait_seconds
        during = f", and it was not free within {waited:g} s" if waited else ""
        return LockBusy(f"Another holder has the lock {self.name!r}{during}.")

    def _misused(self, what: str) -> LockMisused:
        return LockMisused(
            f"The lock {self.name!r} {what}. Release it first, or make another object with "
            "stoker.lock() for each use: it then waits like any other holder."
        )


def _start(work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
    future = asyncio.ensure_future(work)
    _under_way.add(future)
    future.add_done_callback(_under_way.discard)
    return future


FIRST_SECONDS = 0.01
LONGEST_SECONDS = 0.25
GROWTH = 1.5

Seconds = float | timedelta
"""A duration from a user: a number of seconds, or a timedelta."""


def pauses(wait_seconds: float | None) -> Iterator[float]:
    """Yield growing pauses until ``wait_seconds`` have passed; None = for ever."""
    return _pauses(float("inf") if wait_seconds is None else clock.now() + wait_seconds)


def _pauses(until: float) -> Iterator[float]:
    longest = FIRST_SECONDS
    while (left := until - clock.now()) > 0:
        # Waiting processes should not all poll at the same moment.
        yield min(left, random.uniform(longest / 2, longest))  # noqa: S311 - nothing secret
        longest = min(longest * GROWTH, LONGEST_SECONDS)


def checked_seconds(name: str, value: Seconds | None, minimum: float = 0.0) -> float:
    """Return a duration from a user in seconds.

    Raises:
        ValueError: the value is not a duration, or is too short or too long.
    """
    try:
        return float(seconds(minimum, LONGEST_GIVEN_SECONDS)(value))
    except ValueError as error:
        raise ValueError(f"The {name} of a lock is {value!r}, but it {error}.") from None


def checked_if_given(name: str, value: Seconds | None) -> float | None:
    """Return a duration in seconds, or None if the value is None."""
    return None if value is None else checked_seconds(name, value)


def store_for(cache: str | None, backend: str) -> LockStore:
    """Return the store of locks in this cache, or in the backend's database if no cache is named.

    Raises:
        ConfigurationError: the cache or backend does not exist, or it cannot keep a lock.
    """
    from stoker.locks.stores.database import (  # the models may not be loaded yet
        DatabaseCacheLocks,
        DatabaseLocks,
    )

    if cache is None:
        return DatabaseLocks(settings_for(backend).database)
    found = _cache(cache)
    if reason := _why_not(found):
        name = type(found).__name__
        raise ConfigurationError(
            f"The cache {cache!r} ({name}) cannot keep a lock: {reason}. {INSTEAD}."
        )
    if isinstance(found, redis.RedisCache):
        return RedisLocks(cache)
    if isinstance(found, memcached.BaseMemcachedCache) and hasattr(
        found._cache,  # type: ignore[attr-defined] # the client, which the stubs do not mention
        "gets",
    ):
        return MemcachedLocks(cache)
    if isinstance(found, db.DatabaseCache):
        return DatabaseCacheLocks(cache)
    return AnyCacheLocks(cache)


def _cache(alias: str) -> BaseCache:
    try:
        return caches[alias]
    except InvalidCacheBackendError as error:
        known = sorted(caches.settings)
        told = f"cannot be used: {error}"
        if alias not in known:
            told = f"is not in CACHES, which has: {', '.join(map(repr, known))}."
        raise ConfigurationError(f"The lock's cache {alias!r} {told}") from error


def _why_not(cache: BaseCache) -> str:
    if isinstance(cache, locmem.LocMemCache):
        return "it is in the memory of one process, and no other process sees it"
    if isinstance(cache, dummy.DummyCache):
        return "it keeps nothing"
    if isinstance(cache, filebased.FileBasedCache):
        return "its `add` reads before it writes, so two holders can take the lock at once"
    for verb in ("add", "touch"):
        if getattr(type(cache), verb) is getattr(base.BaseCache, verb):
            return f"it has no `{verb}`"
    return ""
