"""Calls to a broker or database that may be away for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from django.db import DatabaseError, InterfaceError, connections
from django.db.backends.signals import connection_created

from stoker.brokers.base import Broker
from stoker.conf import Settings
from stoker.events import tell
from stoker.exceptions import BrokerError, NotMigrated
from stoker.models import kept

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

PLANNING = "-c enable_bitmapscan=off"
"""The planner takes a queue that it has not seen at its last look for a short one, and would rather
fetch and sort all of it than walk its index: for each claim, however long the queue has become."""


class Answer(Generic[T]):
    """What a call came to."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


class Patience:
    """Makes calls, and after a failure waits longer and longer before the next one."""

    def __init__(self, settings: Settings, broker: Broker) -> None:
        self._settings = settings
        self._broker = broker
        self._pause_seconds = 0.0
        self._down_since: float | None = None
        self.try_at = 0.0
        self.last_error: Exception | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the last call failed and it is too early for the next."""
        return time.monotonic() < self.try_at

    def call(self, function: Callable[[], T]) -> Answer[T] | None:
        """The answer; None when the store can't be reached now (the connection is closed then), or
        could not be a moment ago."""
        if self.is_waiting:
            return None
        try:
            answer = Answer(function())
        except (BrokerError, NotMigrated, DatabaseError, InterfaceError) as error:
            self._note_failure(error)
            return None
        self._note_success()
        return answer

    def insist(self, function: Callable[[], T], beat: Callable[[], None]) -> T:
        """The answer, however long it takes; ``beat`` is called between tries."""
        while True:
            answer = self.call(function)
            if answer is not None:
                return answer.value
            self.sleep(beat)

    def sleep(self, beat: Callable[[], None]) -> None:
        """Wait until it is time for the next call."""
        while self.is_waiting:
            beat()
            time.sleep(min(0.1, max(0.0, self.try_at - time.monotonic())))
        beat()

    def _note_failure(self, error: Exception) -> None:
        now = time.monotonic()
        self.last_error = error
        self._down_since = self._down_since or now
        self._pause_seconds = min(
            LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, self._pause_seconds * 2)
        )
        self.try_at = now + self._pause_seconds
        tell("broker_unreachable", error=_one_line(error), seconds=self._pause_seconds)
        for close in (self._broker.close, connections[self._settings.database].close):
            try:
                close()
            except (BrokerError, DatabaseError, InterfaceError):
                continue

    def _note_success(self) -> None:
        if self._down_since is not None:
            tell("broker_back", seconds=time.monotonic() - self._down_since)
            self._down_since = None
            self._pause_seconds = 0.0


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    return line if line.endswith(".") else line + "."


def set_deadlines(
    settings: Settings, *, keeps_statements: bool = False, lock_seconds: int | None = None
) -> None:
    """Give every call that this process makes to the store's database a deadline. For the
    cluster's own processes only: a worker's connections belong to user code.

    Args:
        settings: the backend's.
        keeps_statements: whether this process makes the same calls again and again.
        lock_seconds: the longest wait for a locked row; None = as long as for any call. SQLite
            locks no rows.
    """
    alias, limit_seconds = settings.database, settings.database_seconds
    connection = connections[alias]
    options: dict[str, Any] = connection.settings_dict.setdefault("OPTIONS", {})
    options.pop("isolation_level", None)  # guards decide on what others have committed by then
    whole_seconds = max(1, round(limit_seconds))
    if connection.vendor == "postgresql":
        options.pop("pool", None)  # Django lends no connection from a pool for good
        options.setdefault("connect_timeout", whole_seconds)
        options.setdefault("keepalives_idle", whole_seconds)
        options.setdefault("tcp_user_timeout", whole_seconds * 1000)
        if not connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
            # Not behind a transaction pooler, where the settings would leak to other clients.
            ours = f"-c statement_timeout={whole_seconds * 1000} {PLANNING}"
            if lock_seconds is not None:
                ours += f" -c lock_timeout={lock_seconds * 1000}"
            if keeps_statements:
                ours += f" {kept.PLANNING}"
                kept.keep_statements(alias)
            options["options"] = f"{ours} {options.get('options', '')}".rstrip()
    elif connection.vendor == "mysql":
        for name in ("connect_timeout", "read_timeout", "write_timeout"):
            options.setdefault(name, whole_seconds)
        if lock_seconds is not None:
            _limit_lock_waits(alias, lock_seconds)
    elif connection.vendor == "sqlite":
        options.setdefault("timeout", limit_seconds)
    connection.settings_dict["CONN_MAX_AGE"] = None
    connection.settings_dict["AUTOCOMMIT"] = True  # nobody commits by hand here
    connection.close()


def _limit_lock_waits(alias: str, seconds: int) -> None:
    """Have each new connection of this process to a MariaDB or MySQL database say so."""

    def say(connection: Any, **_: Any) -> None:
        if connection.alias == alias:
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION innodb_lock_wait_timeout = %s", [seconds])

    connection_created.connect(say, weak=False, dispatch_uid=f"stoker.lock_seconds.{alias}")
