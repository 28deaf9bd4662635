"""Which store keeps a lock, and which caches are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.cache.backends.base import BaseCache

from stoker.exceptions import ConfigurationError
from stoker.locks.lock import lock, store_for
from stoker.locks.stores.cache import AnyCacheLocks, MemcachedLocks, RedisLocks, whole
from stoker.locks.stores.database import DatabaseCacheLocks, DatabaseLocks

pytestmark = pytest.mark.unit

DJANGO = "django.core.cache.backends."


class Bare(BaseCache):
    """A cache without any optional method."""

    def __init__(self, _: Any, params: dict[str, Any]) -> None:
        super().__init__(params)


class Sized(Bare):
    """A cache with the methods that a lock needs."""

    def add(self, *_: Any, **__: Any) -> bool:
        return True

    def touch(self, *_: Any, **__: Any) -> bool:
        return True


def use(settings: Any, backend: str, location: Any = "") -> None:
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": location}}


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("locmem.LocMemCache", "no other process sees it"),
        ("dummy.DummyCache", "it keeps nothing"),
        ("filebased.FileBasedCache", "its `add` reads before it writes"),
    ],
)
def test_unsuitable_cache_is_refused(settings: Any, tmp_path: Path, backend: str, why: str) -> None:
    use(settings, DJANGO + backend, str(tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        lock("import", cache="default").acquire()
    name = backend.partition(".")[2]
    assert f"The cache 'default' ({name}) cannot keep a lock: " in str(caught.value)
    assert why in str(caught.value)
    assert "Leave `cache` out, and the lock is kept in the database" in str(caught.value)


def test_cache_without_add_is_refused(settings: Any) -> None:
    use(settings, f"{__name__}.Bare")
    with pytest.raises(ConfigurationError, match="it has no `add`"):
        lock("import", cache="default").acquire()


def test_missing_cache_is_named() -> None:
    with pytest.raises(ConfigurationError, match="The lock's cache 'fast' is not in CACHES"):
        lock("import", cache="fast").acquire()


def test_missing_backend_is_named() -> None:
    with pytest.raises(ConfigurationError, match="TASKS has no backend 'other'"):
        lock("import", backend="other").acquire()


@pytest.mark.parametrize(
    ("backend", "location", "kind"),
    [
        (f"{DJANGO}redis.RedisCache", "redis://127.0.0.1:1", RedisLocks),
        (f"{DJANGO}memcached.PyMemcacheCache", "127.0.0.1:1", MemcachedLocks),
        (f"{DJANGO}db.DatabaseCache", "some_table", DatabaseCacheLocks),
        (f"{__name__}.Sized", "", AnyCacheLocks),
    ],
)
def test_every_supported_cache_has_its_store(
    settings: Any, backend: str, location: str, kind: type
) -> None:
    use(settings, backend, location)
    assert type(store_for("default", "default")) is kind


def test_lock_without_a_cache_is_kept_in_the_database() -> None:
    assert type(store_for(None, "default")) is DatabaseLocks


@pytest.mark.parametrize(("lease_seconds", "asked_for"), [(1, 2), (1.01, 3), (30, 31), (29.5, 31)])
def test_cache_entry_lasts_a_second_longer_than_the_lease(
    lease_seconds: float, asked_for: int
) -> None:
    """In memcached an entry of one second may end after a hundredth of a second."""
    assert whole(lease_seconds) == asked_for
