"""How a cluster on the ORM broker learns at once that jobs came. Polling is what keeps it correct;
everything here only makes it quicker, so every failure here is swallowed and tried again later.

PostgreSQL: a notification after the commit, at most one per process and ``DEBOUNCE_SECONDS``; a
pusher that was woken polls quickly for a while, which covers the notifications left out.
SQLite: see sqlite_wake.py. Others: polling.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

from stoker.models.adding import add_fresh
from stoker.models.job import NewJob

from .sqlite_wake import DataVersion
from .wake import NoWake, Wake

CHANNEL = "stoker_wake"
NOTICE = f"SELECT pg_notify('{CHANNEL}', '')"
"""Not ``NOTIFY``, of which a server without it would not even read what stands before."""
DEBOUNCE_SECONDS = 0.02
RECONNECT_SECONDS = 5.0
PROBE_SECONDS = 30.0

_last_notified: dict[str, float] = {}


def add_and_tell(alias: str, job: NewJob) -> None:
    """Add a fresh job; outside of a transaction the sleeping pushers are told by the same message,
    and ``wake_up`` finds that it has just been done."""
    if add_fresh(alias, job, NOTICE if _may_notify(alias) else ""):
        _last_notified[alias] = time.monotonic()


def wake_up(alias: str) -> None:
    """Tell sleeping pushers that jobs came, unless this process has just done so."""
    connection = connections[alias]
    if connection.vendor != "postgresql" or connection.in_atomic_block or not _may_notify(alias):
        return
    _last_notified[alias] = time.monotonic()
    with suppress(DatabaseError, InterfaceError), connection.cursor() as cursor:
        cursor.execute(f"NOTIFY {CHANNEL}")


def _may_notify(alias: str) -> bool:
    return time.monotonic() - _last_notified.get(alias, float("-inf")) >= DEBOUNCE_SECONDS


def open_wake(alias: str) -> Wake:
    """What a pusher of this database sleeps on."""
    connection = connections[alias]
    if connection.vendor == "sqlite":
        return DataVersion(alias)
    if connection.vendor == "postgresql" and _has_psycopg3():
        return Listener(alias)
    return NoWake()


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
            heard = _has_heard(self._wrapper.connection.pgconn)
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


def _has_heard(session: Any) -> bool:
    """Whether a notification has come. Asked first of all when one wakes the pusher, so without
    the driver's generators."""
    session.consume_input()
    heard = False
    while session.notifies() is not None:
        heard = True
    return heard


def _has_psycopg3() -> bool:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    return bool(is_psycopg3)
