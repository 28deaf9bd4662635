"""Locks in Redis or Valkey, through Django's cache: one script a step, by the server's clock.

The keys, each with the prefix and version of the cache before it:

    stoker:lock:NAME     hash: owner, taken_us         ends with the lease
    stoker:fence:NAME    number of the last holder     ends when unused for a month
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any
from uuid import UUID

from django.core.cache import caches

from stoker.guards.lock_store import LockClaim, LockStore

from .any_cache import FENCE_PREFIX, FENCE_SECONDS, PREFIX

NEVER = -1


class RedisLocks(LockStore):
    """``alias``: the cache's name in ``CACHES``."""

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
        # The one that is written to: what a replica has may be old.
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
