"""Locks in the table of a database, by its clock."""

from __future__ import annotations

from uuid import UUID

from django.db import connections

from stoker.guards.lock_store import LockClaim, LockStore
from stoker.models import Lock
from stoker.models.lock import LockQuerySet
from stoker.progress import explained

from .connection import give_up_after, is_of_a_test_case, refuse_open_transaction


class DatabaseLocks(LockStore):
    """``alias``: the database of ``DATABASES`` that has Stoker's tables."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def take(self, claim: LockClaim) -> int | None:
        refuse_open_transaction(self._alias, claim.key)
        with explained(self._alias):
            return self._locks.acquire(
                claim.key, claim.owner, claim.lease_seconds, claim.steal_after_seconds
            )

    def renew(self, key: str, owner: UUID, lease_seconds: float) -> bool:
        return self._locks.renew(key, owner, lease_seconds)

    def drop(self, key: str, owner: UUID) -> bool:
        return self._locks.drop(key, owner)

    @property
    def is_seen_by_others(self) -> bool:
        return not is_of_a_test_case(self._alias)

    def give_up_after(self, seconds: int) -> None:
        give_up_after(self._alias, seconds)

    def rest(self) -> None:
        connections[self._alias].close_if_unusable_or_obsolete()

    @property
    def _locks(self) -> LockQuerySet:
        return Lock.objects.using(self._alias)
