"""The places that can keep locks, each with the settings that a process needs for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from stoker.locks.lock import NamedLock, lock

TABLE = "stoker_tests_cache"


@dataclass(frozen=True)
class Place:
    """A place for locks. ``cache`` is its alias in ``caches``; None means the database."""

    name: str
    caches: dict[str, Any]
    cache: str | None = "locks"

    def lock(self, name: str, **options: Any) -> NamedLock:
        """Return a lock that is kept in this place."""
        return lock(name, cache=self.cache, **options)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Override the settings so that the place can be used."""
        from django.test.utils import override_settings

        with override_settings(CACHES=self.caches):
            yield


def place_named(name: str) -> Place:
    """Return a place. Raise KeyError if its server is unknown; such tests are deselected."""
    if name == "database":
        return Place(name, _caches(), None)
    if name == "database cache":
        return Place(name, _caches("django.core.cache.backends.db.DatabaseCache", TABLE))
    if name == "redis":
        url = os.environ["STOKER_TEST_REDIS_URL"]
        return Place(name, _caches("django.core.cache.backends.redis.RedisCache", url))
    if name == "another cache":
        url = os.environ["STOKER_TEST_REDIS_URL"]
        return Place(name, _caches("tests.guards.plain_cache.PlainCache", url))
    server = urlsplit(os.environ["STOKER_TEST_MEMCACHED_URL"]).netloc
    client = {"pymemcache": "PyMemcacheCache", "pylibmc": "PyLibMCCache"}[name]
    pytest.importorskip(name, reason=f"{name} is not installed: there is no wheel for this Python")
    return Place(name, _caches(f"django.core.cache.backends.memcached.{client}", server))


def _caches(backend: str = "", location: str = "") -> dict[str, Any]:
    nowhere = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    if not backend:
        return {"default": nowhere}
    prefix = f"stoker-tests-{os.environ['STOKER_TEST_RUN']}"
    place = {"BACKEND": backend, "LOCATION": location, "KEY_PREFIX": prefix}
    return {"default": nowhere, "locks": place}


# Places outside the database behave alike on every database, so SQLite alone is enough. The
# statements of the database cache have their own test on the other databases.
PLACES = [
    pytest.param("database"),
    pytest.param("database cache", marks=pytest.mark.sqlite),
    pytest.param("redis", marks=[pytest.mark.sqlite, pytest.mark.redis]),
    pytest.param("another cache", marks=[pytest.mark.sqlite, pytest.mark.redis]),
    pytest.param("pymemcache", marks=[pytest.mark.sqlite, pytest.mark.memcached]),
    pytest.param("pylibmc", marks=[pytest.mark.sqlite, pytest.mark.memcached]),
]
WITHOUT_STEALING = "another cache"
STEALING_PLACES = [place for place in PLACES if place.values != (WITHOUT_STEALING,)]
