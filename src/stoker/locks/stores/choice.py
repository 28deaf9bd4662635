"""Which store keeps a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.conf import settings_for
from stoker.exceptions import ConfigurationError

from .contract import INSTEAD, LockStore

if TYPE_CHECKING:
    from django.core.cache.backends.base import BaseCache


def store_for(cache: str | None, backend: str) -> LockStore:
    """The store of locks in this cache, or without one in the database of this backend.

    Raises:
        ConfigurationError: when there is no such cache or backend, or it cannot keep a lock.
    """
    if cache is not None:
        return _store_in_cache(cache)
    from .database import DatabaseLocks

    return DatabaseLocks(settings_for(backend).database)


def _store_in_cache(alias: str) -> LockStore:
    from django.core.cache.backends import db, memcached, redis

    from .cache import AnyCacheLocks, MemcachedLocks, RedisLocks
    from .database import DatabaseCacheLocks

    cache = _cache(alias)
    if reason := _why_not(cache):
        name = type(cache).__name__
        raise ConfigurationError(
            f"The cache {alias!r} ({name}) cannot keep a lock: {reason}. {INSTEAD}."
        )
    if isinstance(cache, redis.RedisCache):
        return RedisLocks(alias)
    if isinstance(cache, memcached.BaseMemcachedCache) and hasattr(
        cache._cache,  # type: ignore[attr-defined] # the client, which the stubs do not mention
        "gets",
    ):
        return MemcachedLocks(alias)
    if isinstance(cache, db.DatabaseCache):
        return DatabaseCacheLocks(alias)
    return AnyCacheLocks(alias)


def _cache(alias: str) -> BaseCache:
    from django.core.cache import InvalidCacheBackendError, caches

    try:
        return caches[alias]
    except InvalidCacheBackendError as error:
        raise ConfigurationError(f"The lock's cache {alias!r} is not to be had: {error}") from error


def _why_not(cache: BaseCache) -> str:
    from django.core.cache.backends import base, dummy, filebased, locmem

    if isinstance(cache, locmem.LocMemCache):
        return "it is in the memory of one process, and no other process sees it"
    if isinstance(cache, dummy.DummyCache):
        return "it keeps nothing"
    if isinstance(cache, filebased.FileBasedCache):
        return "its `add` looks first and writes afterwards, so two can get in at once"
    for verb in ("add", "touch"):
        if getattr(type(cache), verb) is getattr(base.BaseCache, verb):
            return f"it has no `{verb}`"
    return ""
