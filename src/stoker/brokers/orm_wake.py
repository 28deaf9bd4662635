"""How a cluster on the ORM broker learns at once that jobs came. Polling is what keeps it correct;
everything here only makes it quicker, so every failure here is swallowed and tried again later.

PostgreSQL: ``NOTIFY`` after the commit, at most one per process and ``DEBOUNCE_SECONDS``; a pusher
that was woken polls quickly for a while, which covers the notifications left out.
SQLite: ``PRAGMA data_version`` changes when another connection has written. Others: polling.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

from .base import NoWake, Wake

CHANNEL = "stoker_wake"
DEBOUNCE_SECONDS = 0.02
RECONNECT_SECONDS = 5.0
PROBE_SECONDS = 30.0
SQLITE_LOOK_SECONDS = 0.01

_last_notified: dict[str, float] = {}


def wake_up(alias: str) -> None:
    """Tell sleeping pushers that jobs came, unless this process has just done so."""
    connection = connections[alias]
    if connection.vendor != "postgresql" or connection.in_atomic_block:
        return
    now = time.monotonic()
    if now - _last_notified.get(alias, float("-inf")) < DEBOUNCE_SECONDS:
        return
    _last_notified[alias] = now
    with suppress(DatabaseError, InterfaceError), connection.cursor() as cursor:
        cursor.execute(f"NOTIFY {CHANNEL}")


def open_wake(alias: str) -> Wake:
    """What a pusher of this database sleeps on."""
    connection = connections[alias]
    if connection.vendor == "sqlite":
        return DataVersion(alias)
    if connection.vendor == "postgresql" and _has_psycopg3():
        return Listener(alias)
    return NoWake()


class DataVersion(Wake):
    """SQLite counts the commits of other connections; asking costs microseconds."""

    max_sleep_seconds = SQLITE_LOOK_SECONDS

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._seen: int | None = None

    def is_due(self) -> bool:
        wrapper: Any = connections[self._alias]
        try:
            wrapper.ensure_connection()
            # Asked a hundred times a second, so without the layers around a cursor of Django's.
            (version,) = wrapper.connection.execute("PRAGMA data_version").fetchone()
        except (DatabaseError, InterfaceError, wrapper.Database.Error):
            return True
        changed = version != self._seen
        self._seen = version
        return bool(changed)


class Listener(Wake):
    """A connection of its own that listens for PostgreSQL's notifications."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._wrapper: Any = None
        self._is_closed = False
        self._was_deaf = False
        self._try_again_at = 0.0
        self._probe_at = 0.0
        self._listen()

    def fileno(self) -> int | None:
        if self._wrapper is None:
            self._listen()
        return None if self._wrapper is None else self._wrapper.connection.fileno()

    def is_due(self) -> bool:
        if self._wrapper is None:
            self._listen()
        if self._wrapper is None:
            return False
        missed, self._was_deaf = self._was_deaf, False
        try:
            heard = any(True for _ in self._wrapper.connection.notifies(timeout=0))
            self._probe()
        except Exception:  # noqa: BLE001 - whatever broke the connection, polling goes on without it
            self._hang_up()
            return True
        return heard or missed

    def close(self) -> None:
        self._is_closed = True
        self._hang_up()

    def _hang_up(self) -> None:
        wrapper, self._wrapper = self._wrapper, None
        self._was_deaf = True
        self._try_again_at = time.monotonic() + RECONNECT_SECONDS
        if wrapper is not None:
            with suppress(Exception):
                wrapper.close()

    def _listen(self) -> None:
        if self._is_closed or time.monotonic() < self._try_again_at:
            return
        wrapper = connections[self._alias].copy()
        try:
            wrapper.connect()
            with wrapper.cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
        except Exception:  # noqa: BLE001 - a server or pooler without LISTEN leaves us polling
            self._try_again_at = time.monotonic() + RECONNECT_SECONDS
            with suppress(Exception):
                wrapper.close()
            return
        self._wrapper = wrapper
        self._probe_at = time.monotonic() + PROBE_SECONDS

    def _probe(self) -> None:
        """A half-open connection hears nothing and says nothing: ask it something now and then."""
        now = time.monotonic()
        if now >= self._probe_at:
            self._probe_at = now + PROBE_SECONDS
            with self._wrapper.cursor() as cursor:
                cursor.execute("SELECT 1")


def _has_psycopg3() -> bool:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    return bool(is_psycopg3)
