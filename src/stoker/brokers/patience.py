"""Calls to a broker or database that may be away for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from django.db import DatabaseError, InterfaceError, connections

from stoker.conf import Settings
from stoker.exceptions import BrokerError, NotMigrated
from stoker.signals import tell
from stoker.store.engines import engine_of
from stoker.store.engines.sessions import CHECK_AFTER_SECONDS
from stoker.store.transactions import is_locked_out

from .dispatch import Dispatch

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0


class CallResult(Generic[T]):
    """The value that a call returned, which may itself be None."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


class Patience:
    """Makes calls, and after a failure waits longer and longer before the next one."""

    def __init__(self, settings: Settings, broker: Dispatch) -> None:
        self._settings = settings
        self._broker = broker
        self._pause_seconds = 0.0
        self._down_since: float | None = None
        self._used_at = time.monotonic()
        self.try_at = 0.0
        self.last_error: Exception | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the last call failed and it is too early for the next."""
        return time.monotonic() < self.try_at

    def call(self, function: Callable[[], T]) -> CallResult[T] | None:
        """Make the call, unless the last one failed a moment ago.

        Returns:
            The answer. None if the store can't be reached now (the connection is closed then), or
            if another transaction holds rows that the call needs (``has_met_a_lock``).
        """
        if self.is_waiting:
            return None
        self._check_old_connection()
        try:
            answer = CallResult(function())
        except (BrokerError, NotMigrated, DatabaseError, InterfaceError) as error:
            if is_locked_out(error):
                self._note_lock(error)
            else:
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

    @property
    def has_met_a_lock(self) -> bool:
        """Whether the last failure was that another transaction held rows. The store answers."""
        return is_locked_out(self.last_error)

    def _check_old_connection(self) -> None:
        now = time.monotonic()
        if now - self._used_at > CHECK_AFTER_SECONDS:
            connections[self._settings.database].close_if_unusable_or_obsolete()
        self._used_at = now

    def _note_lock(self, error: Exception) -> None:
        self.last_error = error
        self.try_at = time.monotonic() + FIRST_PAUSE_SECONDS
        tell("rows_locked", error=_one_line(error), seconds=FIRST_PAUSE_SECONDS)

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
    settings: Settings, *, keeps_statements: bool = False, is_cluster: bool = True
) -> None:
    """Set a deadline for every call of this process to the store's database. Never call this in a
    worker: its connections belong to user code.

    Args:
        settings: the backend's.
        keeps_statements: whether to keep prepared statements, for a process that repeats its calls.
        is_cluster: whether this is a process of a cluster. Its lock waits are short, and the server
            ends a transaction whose process has gone silent. A command waits longer, as nobody
            retries it.
    """
    connection = connections[settings.database]
    options: dict[str, Any] = connection.settings_dict.setdefault("OPTIONS", {})
    options.pop("isolation_level", None)  # guards decide on what others have committed by then
    engine = engine_of(settings.database)
    session = engine.limit_sessions(
        settings, keeps_statements=keeps_statements, is_cluster=is_cluster
    )
    engine.limit_calls(connection, settings.database_seconds, session)
    connection.settings_dict["CONN_MAX_AGE"] = None
    connection.settings_dict["CONN_HEALTH_CHECKS"] = True  # after a long pause, see Patience
    connection.settings_dict["AUTOCOMMIT"] = True  # nobody commits by hand here
    connection.close()
