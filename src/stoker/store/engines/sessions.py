"""Database sessions: deadlines, transactions and wake-ups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction

from stoker.conf import Settings
from stoker.store.wake import NoWake, Wake

LONGEST_LOCK_SECONDS = 1.0
"""Longest wait of a statement for a locked row. Stoker's own transactions last a few milliseconds,
so a longer lock belongs to user code or to a dead process."""
CHECK_AFTER_SECONDS = 30.0
"""Idle time after which Django checks that a connection still works."""
LARGE_BYTES = 1 << 19
"""Every server accepts values up to this size, so smaller ones need no check."""
SHORTEST_IDLE_SECONDS = 2
"""Shortest limit for a transaction's pause between two statements, to allow for a busy machine."""


class Sessions:
    """Default implementation for sessions of the database with one alias, shared by all threads."""

    is_supported = False
    """Whether jobs can be stored in this database."""
    has_isolation_levels = True
    """Whether a transaction can choose its isolation level."""
    has_one_writer = False
    """Whether a writing transaction blocks all other writers until it ends."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def connection(self) -> Any:
        """Return Django's connection of this thread."""
        return connections[self.alias]

    def tune(self, connection: Any) -> None:
        """Configure a new connection for use by several processes."""

    def needs_tuning(self, options: Mapping[str, Any]) -> bool:
        """Return whether connections with these ``OPTIONS`` would block one another without
        ``tune``."""
        return False

    @property
    def is_private(self) -> bool:
        """Return whether only this thread's connection sees the database."""
        return False

    def call_limits(self, seconds: int) -> dict[str, Any]:
        """Return the ``OPTIONS`` that make a connection's calls fail after some seconds."""
        return {}

    def limit_calls(self, connection: Any, seconds: float, session: Sequence[str] = ()) -> None:
        """Set a deadline for every call of connections that are opened with these settings.

        Args:
            connection: the connection whose settings are changed.
            seconds: the deadline.
            session: on PostgreSQL: further options of the session.
        """
        options = connection.settings_dict.setdefault("OPTIONS", {})
        for name, value in self.call_limits(max(1, round(seconds))).items():
            options.setdefault(name, value)

    def limit_sessions(
        self, settings: Settings, *, keeps_statements: bool, is_cluster: bool
    ) -> Sequence[str]:
        """Limit waits for locked rows, and idle transactions, in sessions that this process opens
        from now on. ``patience.set_deadlines`` explains the arguments.

        Returns:
            Session options for ``limit_calls``.
        """
        return ()

    def watch_transactions(self, connection: Any) -> None:
        """Prepare a new connection for ``may_be_in_transaction``."""

    def may_be_in_transaction(self, connection: Any) -> bool:
        """Return False if the session is certainly outside a transaction. Makes no round trip, and
        may be called by any thread."""
        return False

    def is_in_transaction(self, connection: Any) -> bool:
        """Return whether the session is in a transaction."""
        return self.may_be_in_transaction(connection)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Open a transaction that, after waiting for a lock, sees what the lock's last holder
        committed. Inside another transaction it joins that one, whatever its isolation level."""
        connection = self.connection
        is_blind = self.has_isolation_levels and not sees_later_commits(connection)
        is_ours = not connection.in_atomic_block
        with transaction.atomic(using=self.alias, savepoint=False):
            if is_ours and is_blind:
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            yield

    def refuse_too_large(self, value: bytes) -> None:
        """Refuse a value that is too large for the database.

        Raises:
            PackageTooLarge: the message names the sizes.
        """

    def open_wake(self) -> Wake:
        """Return the object that a pusher sleeps on until jobs are added."""
        return NoWake()

    def notify(self) -> None:
        """Wake the sleeping pushers, unless this process has just done so."""

    def vacuum(self, names: Sequence[str], dead: Mapping[str, int]) -> Mapping[str, int]:
        """Remove dead rows from tables, if the database does not do it soon enough itself.

        Args:
            names: names of the tables.
            dead: the result of the previous call. Tables without changes since then are skipped.

        Returns:
            Table -> number of rows that have died so far.
        """
        return dead


def sees_later_commits(connection: Any) -> bool:
    """Return whether the connection's isolation level lets later statements see new commits. SQLite
    has no isolation levels, and never does."""
    isolation = getattr(connection, "isolation_level", None)
    name = str(getattr(isolation, "name", isolation)).upper().replace(" ", "_")
    return name in {"READ_COMMITTED", "READ_UNCOMMITTED"}


def lock_seconds(settings: Settings) -> float:
    """Return how long statements of the cluster's own processes wait for a locked row."""
    return min(LONGEST_LOCK_SECONDS, settings.database_seconds / 4)


def idle_seconds(settings: Settings) -> int:
    """Return after how many seconds the server ends an idle transaction.

    If a machine loses power or network, the server is not told, and would keep the rows locked for
    hours. The limit is shorter than a lease.
    """
    longest = min(settings.database_seconds, settings.lease_seconds / 3)
    return max(SHORTEST_IDLE_SECONDS, round(longest))
