"""Locks in Django's database cache, by statements of our own.

Its ``add`` is atomic for a new entry only: when one has ended, two that come at once both overwrite
it, and both believe that they have it. So the condition stands in the statement that writes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, connections, router, transaction

from stoker.guards.lock_store import LockClaim

from .any_cache import PREFIX, AnyCacheLocks, time_us, whole
from .connection import give_up_after, is_of_a_test_case, refuse_open_transaction


class DatabaseCacheLocks(AnyCacheLocks):
    """The entry is ``owner taken_at_us``. Times are those of the hosts, as in all of this cache."""

    drops_only_its_own = True

    def take(self, claim: LockClaim) -> int | None:
        refuse_open_transaction(self._database, claim.key)
        value = f"{claim.owner.hex} {time_us()}"
        held, has_ended = self._look(claim.key)
        if not held:
            is_taken = self._insert(claim, value)
        elif has_ended or _is_too_old(held, claim.steal_after_seconds):
            is_taken = self._replace(claim, value, held)
        else:
            is_taken = False
        return self.next_fence(claim.key) if is_taken else None

    def renew(self, key: str, owner: UUID, lease_seconds: float) -> bool:
        return self._change(
            "UPDATE {table} SET expires = %s"
            " WHERE cache_key = %s AND value LIKE %s AND expires >= %s",
            [_moment(whole(lease_seconds)), self._full(key), f"{owner.hex} %", _moment()],
        )

    def drop(self, key: str, owner: UUID) -> bool:
        return self._change(
            "DELETE FROM {table} WHERE cache_key = %s AND value LIKE %s",
            [self._full(key), f"{owner.hex} %"],
        )

    @property
    def is_seen_by_others(self) -> bool:
        return not is_of_a_test_case(self._database)

    def give_up_after(self, seconds: int) -> None:
        give_up_after(self._database, seconds)

    def rest(self) -> None:
        connections[self._database].close_if_unusable_or_obsolete()

    def _look(self, key: str) -> tuple[str, bool]:
        """The entry, empty when there is none, and whether it has ended."""
        with connections[self._database].cursor() as cursor:
            cursor.execute(
                self._worded(
                    "SELECT value, CASE WHEN expires < %s THEN 1 ELSE 0 END"
                    " FROM {table} WHERE cache_key = %s"
                ),
                self._adapted([_moment(), self._full(key)]),
            )
            row = cursor.fetchone()
        return (str(row[0]), bool(row[1])) if row else ("", False)

    def _insert(self, claim: LockClaim, value: str) -> bool:
        try:
            with transaction.atomic(using=self._database):
                return self._change(
                    "INSERT INTO {table} (cache_key, value, expires) VALUES (%s, %s, %s)",
                    [self._full(claim.key), value, _moment(whole(claim.lease_seconds))],
                )
        except IntegrityError:
            return False

    def _replace(self, claim: LockClaim, value: str, held: str) -> bool:
        """Every taking has an owner of its own, so an entry that looks the same is the same; only
        its end may have been moved by a renewal, and then it is not replaced unless it is old."""
        until = _moment(whole(claim.lease_seconds))
        if _is_too_old(held, claim.steal_after_seconds):
            return self._change(
                "UPDATE {table} SET value = %s, expires = %s WHERE cache_key = %s AND value = %s",
                [value, until, self._full(claim.key), held],
            )
        return self._change(
            "UPDATE {table} SET value = %s, expires = %s"
            " WHERE cache_key = %s AND value = %s AND expires < %s",
            [value, until, self._full(claim.key), held, _moment()],
        )

    def _change(self, statement: str, parameters: list[Any]) -> bool:
        with connections[self._database].cursor() as cursor:
            cursor.execute(self._worded(statement), self._adapted(parameters))
            return bool(cursor.rowcount)

    def _adapted(self, parameters: list[Any]) -> list[Any]:
        adapt = connections[self._database].ops.adapt_datetimefield_value
        return [adapt(one) if isinstance(one, datetime) else one for one in parameters]

    def _worded(self, statement: str) -> str:
        table = connections[self._database].ops.quote_name(self.cache._table)
        return statement.format(table=table)

    @property
    def _database(self) -> str:
        return str(router.db_for_write(self.cache.cache_model_class))

    def _full(self, key: str) -> str:
        full: str = self.cache.make_and_validate_key(PREFIX + key)
        return full


def _is_too_old(held: str, steal_after_seconds: float | None) -> bool:
    moment = held.partition(" ")[2]
    if steal_after_seconds is None or not moment.isdigit():
        return False
    return time_us() - int(moment) >= steal_after_seconds * 1_000_000


def _moment(seconds_from_now: int = 0) -> datetime:
    """As the cache writes it: full seconds, in the zone that ``USE_TZ`` says."""
    zone = UTC if settings.USE_TZ else None
    return datetime.fromtimestamp(time_us() // 1_000_000 + seconds_from_now, tz=zone)
