"""Choose the store of a lock."""

from __future__ import annotations

from django.core.cache import InvalidCacheBackendError, caches
from django.core.cache.backends import base, db, dummy, filebased, locmem, memcached, redis
from django.core.cache.backends.base import BaseCache

from stoker.conf import settings_for
from stoker.exceptions import ConfigurationError

from .cache import AnyCacheLocks, MemcachedLocks, RedisLocks
from .contract import INSTEAD, LockStore


def store_for(cache: str | None, backend: str) -> LockStore:
    """Return the store of locks in this cache, or in the backend's database if no cache is named.

    Raises:
        ConfigurationError: the cache or backend does not exist, or it cannot keep a lock.
    """
    from .database import DatabaseCacheLocks, DatabaseLocks  # the models may not be loaded yet

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
        raise ConfigurationError(f"The lock's cache {alias!r} is not to be had: {error}") from error


def _why_not(cache: BaseCache) -> str:
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
