"""Sessions with a database: deadlines, transactions, and what a pusher sleeps on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connections

from stoker.conf import Settings
from stoker.store.wake import NoWake, Wake

LONGEST_LOCK_SECONDS = 1.0
"""How long one of our statements waits for a row at most: transactions of Stoker's last a few
milliseconds, so whoever holds a row for longer is gone, or is user code."""
CHECK_AFTER_SECONDS = 30.0
"""A connection that was not used for so long is asked whether it still works, where Django asks."""
LARGE_BYTES = 1 << 19
"""No server is set up to refuse a smaller value; so smaller ones need no look at its limit."""
SHORTEST_IDLE_SECONDS = 2
"""A transaction of ours may pause for so long between two statements, on a busy machine."""


class Sessions:
    """The database with one alias, for all threads of a process."""

    is_supported = False
    """Whether jobs can be kept in such a database."""
    has_isolation_levels = True
    """Whether a transaction can choose what it sees of others."""
    has_one_writer = False
    """Whether a transaction that writes keeps all others from writing until it ends."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def connection(self) -> Any:
        """This thread's connection, as Django has it."""
        return connections[self.alias]

    def tune(self, connection: Any) -> None:
        """Set what several processes need on a connection that was just opened."""

    def needs_tuning(self, options: Mapping[str, Any]) -> bool:
        """Return whether connections with these ``OPTIONS`` hinder one another unless ``tune`` is
        called for them."""
        return False

    @property
    def is_private(self) -> bool:
        """Whether only this thread's connection sees the database."""
        return False

    def call_limits(self, seconds: int) -> dict[str, Any]:
        """Return the ``OPTIONS`` that let calls of a connection fail after some seconds."""
        return {}

    def limit_calls(self, connection: Any, seconds: float, session: Sequence[str] = ()) -> None:
        """Give every call by the connections that are opened with these settings a deadline.

        Args:
            connection: whose settings are changed.
            seconds: the deadline.
            session: further options of the session, on PostgreSQL.
        """
        options = connection.settings_dict.setdefault("OPTIONS", {})
        for name, value in self.call_limits(max(1, round(seconds))).items():
            options.setdefault(name, value)

    def limit_sessions(
        self, settings: Settings, *, keeps_statements: bool, is_cluster: bool
    ) -> Sequence[str]:
        """Let the sessions that this process opens from now on end their waits for locked rows, and
        transactions that have gone silent. For the arguments see ``patience.set_deadlines``.

        Returns:
            Options of the session, for ``limit_calls``.
        """
        return ()

    def watch_transactions(self, connection: Any) -> None:
        """Prepare a connection that was just opened, so that ``may_be_in_transaction`` can answer
        for it."""

    def may_be_in_transaction(self, connection: Any) -> bool:
        """Return False if the session is certainly outside of a transaction. Needs no round trip,
        and another thread than the connection's may ask."""
        return False

    def is_in_transaction(self, connection: Any) -> bool:
        """Return whether the session is inside a transaction."""
        return self.may_be_in_transaction(connection)

    def refuse_too_large(self, value: bytes) -> None:
        """Refuse a value that the database would not take.

        Raises:
            PackageTooLarge: with the sizes in its sentence.
        """

    def open_wake(self) -> Wake:
        """Return what a pusher sleeps on until somebody has added jobs."""
        return NoWake()

    def notify(self) -> None:
        """Wake sleeping pushers, unless this process has just done so."""

    def vacuum(self, names: Sequence[str], dead: Mapping[str, int]) -> Mapping[str, int]:
        """Remove dead rows from tables, if this database does not do it in time by itself.

        Args:
            names: of the tables.
            dead: what this returned the last time: a table where nothing has changed is left out.

        Returns:
            Table -> how many of its rows have died so far.
        """
        return dead


def lock_seconds(settings: Settings) -> float:
    """Return how long a statement of the cluster's own processes waits for a locked row."""
    return min(LONGEST_LOCK_SECONDS, settings.database_seconds / 4)


def idle_seconds(settings: Settings) -> int:
    """Return after how long the server ends a transaction of a process that says nothing. When a
    machine loses its power or its network, nobody tells the server, which would keep the rows
    locked for hours. Short enough that leases outlast it."""
    longest = min(settings.database_seconds, settings.lease_seconds / 3)
    return max(SHORTEST_IDLE_SECONDS, round(longest))
