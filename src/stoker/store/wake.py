"""What a pusher sleeps on until somebody adds jobs. Polling keeps it correct without."""

from __future__ import annotations

import ctypes
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

LOOK_SECONDS = 0.01
FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.0005, 0.5
"""After a report: what was written waits for the disk before it counts."""
LONGER = 1.3
"""Each pause to the one before it: who waits for the disk is seen so much later at most."""
LISTEN_AGAIN_SECONDS = 0.008
"""Where there is a look so soon, reports are left alone: a commit is many writes."""
DEAF_SECONDS = 5.0
"""A commit so long after the last report of a write was not reported."""
EVENT_BYTES = 1 << 14
IN_MODIFY = 0x2


class Wake(ABC):
    """Something a pusher can sleep on until a job may have come. Polling stays the correct path."""

    max_sleep_seconds: float | None = None
    """Sleep no longer than this: the source has to be asked, it doesn't call. Another value may
    hold after each time that it was asked."""

    tells_all = False
    """Whether nothing comes without its telling: then one look each time is enough."""

    def fileno(self) -> int | None:
        """A file descriptor that becomes readable, or None."""
        return None

    @abstractmethod
    def is_due(self) -> bool:
        """Whether something may have come since the last call. Never blocks, never raises."""

    def close(self) -> None:
        """Give the resources back."""


class NoWake(Wake):
    """Nothing to sleep on but time."""

    def is_due(self) -> bool:
        return False


class DataVersion(Wake):
    """The count of commits of one database, and the kernel's reports of writes to its files."""

    tells_all = True

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._seen: int | None = None
        self._raw: Any = None
        self._writes = _open_writes()
        self._heard_at = 0.0
        self.is_told = False
        """Whether writes are reported."""
        self.max_sleep_seconds = LOOK_SECONDS

    def fileno(self) -> int | None:
        looks_soon = (self.max_sleep_seconds or 1.0) < LISTEN_AGAIN_SECONDS
        if self._writes is None or not self.is_told or looks_soon:
            return None
        return self._writes.descriptor

    def is_due(self) -> bool:
        self._listen()
        wrapper: Any = connections[self._alias]
        try:
            wrapper.ensure_connection()
            # Asked many times a second, so without the layers around a cursor of Django's.
            (version,) = wrapper.connection.execute("PRAGMA data_version").fetchone()
            if wrapper.connection is not self._raw:
                self._follow(wrapper.connection)
        except (DatabaseError, InterfaceError, wrapper.Database.Error):
            return True
        has_changed, self._seen = bool(version != self._seen), version
        if has_changed and self._is_deaf():
            self._listen()  # it may have been written and committed since the first time
            if self._is_deaf():
                self.is_told, self.max_sleep_seconds = False, LOOK_SECONDS
        return has_changed

    def close(self) -> None:
        self.is_told = False
        if self._writes:
            self._writes.close()
            self._writes = None

    def _is_deaf(self) -> bool:
        return time.monotonic() - self._heard_at > DEAF_SECONDS

    def _listen(self) -> None:
        """After a report look soon, and then less and less often. Others may have written since the
        commit that is seen first, so that one does not end it."""
        if self._writes and self.is_told:
            if self._writes.take_reports():
                self._heard_at, self.max_sleep_seconds = time.monotonic(), FIRST_LOOK_SECONDS
            elif self.max_sleep_seconds is not None:
                longer = LONGER * self.max_sleep_seconds
                self.max_sleep_seconds = longer if longer <= LAST_LOOK_SECONDS else None

    def _follow(self, raw: Any) -> None:
        """A new connection may have made new files."""
        if self._writes:
            rows = raw.execute("PRAGMA database_list").fetchall()
            name = next(row[2] for row in rows if row[1] == "main")
            self.is_told = self._writes.watch([name, f"{name}-wal"])
            self.max_sleep_seconds = FIRST_LOOK_SECONDS if self.is_told else LOOK_SECONDS
        self._raw, self._heard_at = raw, time.monotonic()


class Writes:
    """The kernel's reports of writes to some files (inotify(7)).

    Raises:
        OSError: there are none to be had.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")

    def watch(self, names: Iterable[str]) -> bool:
        """Those of these files that there are. Whether there is any."""
        add = self._libc.inotify_add_watch
        paths = [name.encode() for name in names]
        found = [path for path in paths if add(self.descriptor, path, IN_MODIFY) >= 0]
        return bool(found)

    def take_reports(self) -> bool:
        """Whether somebody wrote since the last call."""
        with suppress(BlockingIOError):
            return bool(os.read(self.descriptor, EVENT_BYTES))
        return False

    def close(self) -> None:
        os.close(self.descriptor)


def _open_writes() -> Writes | None:
    with suppress(OSError, AttributeError):  # another system, or a sandbox
        return Writes()
    return None


CHANNEL = "stoker_wake"
NOTICE = f"SELECT pg_notify('{CHANNEL}', '')"
"""Not ``NOTIFY``, of which a server without it would not even read what stands before."""
DEBOUNCE_SECONDS = 0.02
RECONNECT_SECONDS = 5.0
PROBE_SECONDS = 30.0

_last_notified: dict[str, float] = {}


def may_notify(alias: str) -> bool:
    """Return whether this process has not notified sleeping pushers just now."""
    return time.monotonic() - _last_notified.get(alias, float("-inf")) >= DEBOUNCE_SECONDS


def note_notice(alias: str) -> None:
    """Note that sleeping pushers are notified now."""
    _last_notified[alias] = time.monotonic()


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
