"""The places that can keep locks, each a cache of its own, or the database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import pytest

from stoker.locks.lock import NamedLock, lock

TABLE = "stoker_tests_cache"
WITHOUT_STEALING = "another cache"


@dataclass(frozen=True)
class Place:
    """A place for locks: the database, or the cache of that name in ``caches``."""

    name: str

    @property
    def cache(self) -> str | None:
        return None if self.name == "database" else self.name

    @property
    def can_steal(self) -> bool:
        return self.name != WITHOUT_STEALING

    def lock(self, name: str, **options: Any) -> NamedLock:
        """Return a lock that is kept in this place."""
        return lock(name, cache=self.cache, **options)


@contextmanager
def all_opened() -> Iterator[None]:
    """Override the settings so that every place can be used whose server is known."""
    from django.core.cache import caches
    from django.test.utils import override_settings

    with override_settings(CACHES=_caches()):
        yield
        for cache in caches.all(initialized_only=True):
            client = getattr(getattr(cache, "_inside", cache), "_cache", None)
            for pool in getattr(client, "_pools", {}).values():  # of Redis
                pool.disconnect()


def _caches() -> dict[str, Any]:
    redis = os.environ.get("STOKER_TEST_REDIS_URL")
    memcached = urlsplit(os.environ.get("STOKER_TEST_MEMCACHED_URL", "")).netloc
    django = "django.core.cache.backends"
    backends = {
        "default": (f"{django}.locmem.LocMemCache", "only this process sees it"),
        "database cache": (f"{django}.db.DatabaseCache", TABLE),
        "redis": (f"{django}.redis.RedisCache", redis),
        "another cache": ("tests.locks.plain_cache.PlainCache", redis),
        "pymemcache": (f"{django}.memcached.PyMemcacheCache", memcached),
        "pylibmc": (f"{django}.memcached.PyLibMCCache", memcached),
    }
    prefix = f"stoker-tests-{os.environ['STOKER_TEST_RUN']}"
    return {
        name: {
            "BACKEND": backend,
            "LOCATION": location,
            "KEY_PREFIX": f"{prefix}-{name.replace(' ', '-')}",
        }
        for name, (backend, location) in backends.items()
        if location
    }


def place_named(name: str) -> Place:
    """Return a place. Skip the test if the place needs a package that is not installed."""
    if name in CLIENTS:
        why = f"{name} is not installed: there is no wheel for this Python"
        pytest.importorskip(name, reason=why)
    return Place(name)


CLIENTS = ("pymemcache", "pylibmc")
"""Packages of which each is a place, too."""

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
STEALING_PLACES = [place for place in PLACES if place.values != (WITHOUT_STEALING,)]


def _names_of_all() -> list[str]:
    """Return all places that are there. Tests of one place are skipped by name for the others."""
    names = ["database", *(name for name in _caches() if name != "default")]
    return [name for name in names if name not in CLIENTS or find_spec(name)]


_HAS_REDIS = "STOKER_TEST_REDIS_URL" in os.environ
TOGETHER = [
    pytest.param(
        ["database"],
        marks=[pytest.mark.postgres, pytest.mark.mariadb],
        id="database",
    ),
    pytest.param(
        _names_of_all(),
        marks=[pytest.mark.sqlite, *([pytest.mark.redis] if _HAS_REDIS else [])],
        id="everywhere",
    ),
]
"""For tests that wait for leases to end: they wait once, for all places at the same time."""
