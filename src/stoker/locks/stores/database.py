"""Keep named locks in the database, or in Django's database cache."""

from __future__ import annotations

from abc import abstractmethod
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import (
    IntegrityError,
    InterfaceError,
    OperationalError,
    connections,
    router,
    transaction,
)
from django.db.transaction import TransactionManagementError

from stoker.models import LockKey
from stoker.models.lock import LockQuerySet
from stoker.store.engines import engine_of
from stoker.store.engines.sessions import explained

from .cache import PREFIX, AnyCacheLocks, time_us, whole
from .contract import LockClaim, LockStore


def refuse_open_transaction(alias: str, key: str) -> None:
    """Raise TransactionManagementError if the caller has opened a transaction."""
    connection = connections[alias]
    if is_of_a_test_case(alias):
        return
    if connection.in_atomic_block or not connection.get_autocommit():
        raise TransactionManagementError(
            f"The lock {key!r} cannot be taken inside an open transaction on the database "
            f"{alias!r}: others would not see it before the commit. Take the lock first and open "
            "the transaction inside it, or keep the lock in a cache."
        )


def is_of_a_test_case(alias: str) -> bool:
    """Return whether the only open transactions are those of Django's TestCase."""
    connection = connections[alias]
    # Django sets this mark so that `durable=True` ignores the transactions of a TestCase.
    return connection.in_atomic_block and all(
        getattr(block, "_from_testcase", False) for block in connection.atomic_blocks
    )


class _LocksInDatabase(LockStore):
    """What stores do alike that use a connection of Django's."""

    _database: str

    @property
    def is_seen_by_others(self) -> bool:
        return not is_of_a_test_case(self._database)

    def give_up_after(self, seconds: int) -> None:
        """Set a time-out for calls on this thread's connection, if the driver supports it, and use
        no pool.

        Otherwise a host that does not answer would delay the renewals of other locks, and a lock
        would be lost while its holder and others use all connections of the pool.
        """
        connection = connections[self._database]
        options: dict[str, Any] = connection.settings_dict.get("OPTIONS", {})
        limits = engine_of(self._database).call_limits(seconds)
        if not limits.keys() - options.keys() and "pool" not in options:
            return
        # Replace the settings by a copy, because all threads share them.
        options = {**limits, **options}
        options.pop("pool", None)
        connection.settings_dict = {**connection.settings_dict, "OPTIONS": options}

    def rest(self) -> None:
        connections[self._database].close_if_unusable_or_obsolete()

    def drop(self, key: str, owner: UUID) -> bool:
        connection = connections[self._database]
        try:
            return self._drop(key, owner)
        except (OperationalError, InterfaceError):
            # The server may have closed the connection while the holder worked, or it refuses to
            # change a row that was renewed at the same time. The lock would stay taken.
            if connection.in_atomic_block or not connection.get_autocommit():
                raise
            self.rest()
            return self._drop(key, owner)

    @abstractmethod
    def _drop(self, key: str, owner: UUID) -> bool:
        """Free the lock as ``drop`` does, on the present connection."""


class DatabaseLocks(_LocksInDatabase):
    """Keep locks in Stoker's table. ``alias``: the database in ``DATABASES``."""

    def __init__(self, alias: str) -> None:
        self._database = alias

    def take(self, claim: LockClaim) -> int | None:
        refuse_open_transaction(self._database, claim.key)
        with explained(self._database), engine_of(self._database).deciding_at_once():
            return self._locks.acquire(
                claim.key, claim.owner, claim.lease_seconds, claim.steal_after_seconds
            )

    def renew(self, key: str, owner: UUID, lease_seconds: float) -> bool:
        with engine_of(self._database).deciding_at_once():
            return self._locks.renew(key, owner, lease_seconds)

    def _drop(self, key: str, owner: UUID) -> bool:
        return self._locks.drop(key, owner)

    @property
    def _locks(self) -> LockQuerySet:
        return LockKey.objects.using(self._database)


class DatabaseCacheLocks(_LocksInDatabase, AnyCacheLocks):
    """Keep locks in Django's database cache. The entry is ``owner taken_at_us``, by the hosts'
    clocks."""

    drops_only_its_own = True

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self._database = str(router.db_for_write(self.cache.cache_model_class))

    def take(self, claim: LockClaim) -> int | None:
        refuse_open_transaction(self._database, claim.key)
        with engine_of(self._database).deciding_at_once():
            is_taken = self._take(claim)
        return self.next_fence(claim.key) if is_taken else None

    def renew(self, key: str, owner: UUID, lease_seconds: float) -> bool:
        with engine_of(self._database).deciding_at_once():
            return self._change(
                "UPDATE {table} SET expires = %s"
                " WHERE cache_key = %s AND value LIKE %s AND expires >= %s",
                [_moment(whole(lease_seconds)), self._full(key), f"{owner.hex} %", _moment()],
            )

    def _take(self, claim: LockClaim) -> bool:
        value = f"{claim.owner.hex} {time_us()}"
        held, has_ended = self._look(claim.key)
        if not held:
            return self._insert(claim, value)
        if has_ended or _is_too_old(held, claim.steal_after_seconds):
            return self._replace(claim, value, held)
        return False

    def _drop(self, key: str, owner: UUID) -> bool:
        return self._change(
            "DELETE FROM {table} WHERE cache_key = %s AND value LIKE %s",
            [self._full(key), f"{owner.hex} %"],
        )

    def _look(self, key: str) -> tuple[str, bool]:
        """Return the entry, or "" if there is none, and whether it has expired."""
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
        """Replace an entry if it still has the value ``held``. Unless it is older than
        ``steal_after``, it must also have expired.

        Every acquisition has its own owner, so an equal value means the same acquisition; a renewal
        moves only its expiry.
        """
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

    def _full(self, key: str) -> str:
        full: str = self.cache.make_and_validate_key(PREFIX + key)
        return full


def _is_too_old(held: str, steal_after_seconds: float | None) -> bool:
    moment = held.partition(" ")[2]
    if steal_after_seconds is None or not moment.isdigit():
        return False
    return time_us() - int(moment) >= steal_after_seconds * 1_000_000


def _moment(seconds_from_now: int = 0) -> datetime:
    """Return a moment as the cache stores it: full seconds, aware or naive as ``USE_TZ`` says."""
    zone = UTC if settings.USE_TZ else None
    return datetime.fromtimestamp(time_us() // 1_000_000 + seconds_from_now, tz=zone)
