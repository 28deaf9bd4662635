"""Objects that a pusher sleeps on until jobs are added. Polling finds every job even without
them."""

from __future__ import annotations

import ctypes
import os
import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

LOOK_SECONDS = 0.01
FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.0005, 0.5
"""First and longest pause between checks that follow a reported write. A commit becomes visible
only after the disk has it."""
LONGER = 1.3
"""Factor between one pause and the next. With it, a commit that takes twice as long is noticed with
twice the delay."""
SLOW_SECONDS, LONGER_IF_SLOW = 0.02, 2.0
"""Pauses longer than the first value grow by the second one as their factor, because commits rarely
take that long. This saves checks: most of them follow writes that an idle cluster makes itself."""
LISTEN_AGAIN_SECONDS = 0.008
"""If the next check is due within this time, ignore reports of writes, because one commit causes
many reports."""
DEAF_SECONDS = 5.0
"""If a commit is seen this long after the last reported write, the reports are not working."""
EVENT_BYTES = 1 << 14
IN_MODIFY = 0x2


class Wake(ABC):
    """A source of wake-ups for a sleeping pusher. The pusher still polls, so missed wake-ups only
    cost time."""

    max_sleep_seconds: float | None = None
    """Longest sleep for a source that has to be polled. The value may change after each call of
    ``is_due``."""

    tells_all = False
    """Whether every added job causes a wake-up. If so, the pusher looks for jobs only once per
    wake-up."""

    def fileno(self) -> int | None:
        """Return a file descriptor that becomes readable, or None."""
        return None

    @abstractmethod
    def is_due(self) -> bool:
        """Return whether jobs may have been added since the last call. Never block or raise."""

    def close(self) -> None:
        """Close connections and file descriptors."""


class NoWake(Wake):
    """No source of wake-ups: the pusher only polls."""

    def is_due(self) -> bool:
        return False


class PipeWake(Wake):
    """Wake-ups from a thread of this process, which calls ``wake`` when jobs have come."""

    def __init__(self) -> None:
        self._is_closed = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int | None:
        return None if self._is_closed else self._read

    def is_due(self) -> bool:
        with suppress(BlockingIOError):
            return not self._is_closed and bool(os.read(self._read, 4096))
        return False

    def wake(self) -> None:
        """Wake the pusher. Must not be called after ``close``."""
        with suppress(BlockingIOError):
            os.write(self._write, b"!")

    def close(self) -> None:
        self._is_closed = True
        os.close(self._read)
        os.close(self._write)


class EitherWake(Wake):
    """Combines two sources: the wake-up source of the store and that of a broker outside it.

    Args:
        on_store: called when jobs were added to the store.
    """

    def __init__(self, store: Wake, outside: Wake, on_store: Callable[[], object]) -> None:
        self._on_store = on_store
        self._store = store
        self._outside = outside
        self._both: Any = selectors.DefaultSelector()
        self._watched: set[int] = set()
        self._note_longest_sleep()

    def fileno(self) -> int | None:
        """Return one descriptor that covers both sources. Their own descriptors change with each
        connection."""
        wanted = {number for one in (self._store, self._outside) if (number := one.fileno())}
        for number in self._watched - wanted:
            with suppress(KeyError, OSError):  # it was closed, which removed it already
                self._both.unregister(number)
        for number in wanted:
            with suppress(KeyError):
                self._both.register(number, selectors.EVENT_READ)
        self._watched = wanted
        return self._both.fileno() if wanted else None

    def is_due(self) -> bool:
        has_store_woken = self._store.is_due()
        if has_store_woken:
            self._on_store()
        has_woken = self._outside.is_due() or has_store_woken
        self._note_longest_sleep()
        return has_woken

    def close(self) -> None:
        self._store.close()
        self._outside.close()
        self._both.close()

    def _note_longest_sleep(self) -> None:
        longest = [one.max_sleep_seconds for one in (self._store, self._outside)]
        self.max_sleep_seconds = min((one for one in longest if one is not None), default=None)


class DataVersion(Wake):
    """Wake-ups on SQLite: the database's commit counter, and the kernel's reports of writes to its
    files."""

    tells_all = True

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._seen: int | None = None
        self._raw: Any = None
        self._writes = _open_writes()
        self._heard_at = 0.0
        self.is_told = False
        """Whether the kernel reports writes to the files."""
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
            # Without Django's cursor, because this runs many times a second.
            (version,) = wrapper.connection.execute("PRAGMA data_version").fetchone()
            if wrapper.connection is not self._raw:
                self._follow(wrapper.connection)
        except (DatabaseError, InterfaceError, wrapper.Database.Error):
            return True
        has_changed, self._seen = bool(version != self._seen), version
        if has_changed and self._is_deaf():
            self._listen()  # the write may have been reported since the first check
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
        """After a reported write, check soon, and then less and less often. Do not stop when one
        commit is seen, because other writes may follow."""
        if self._writes and self.is_told:
            if self._writes.take_reports():
                self._heard_at, self.max_sleep_seconds = time.monotonic(), FIRST_LOOK_SECONDS
            elif self.max_sleep_seconds is not None:
                is_slow = self.max_sleep_seconds > SLOW_SECONDS
                longer = (LONGER_IF_SLOW if is_slow else LONGER) * self.max_sleep_seconds
                self.max_sleep_seconds = longer if longer <= LAST_LOOK_SECONDS else None

    def _follow(self, raw: Any) -> None:
        """Watch the files of a new connection, because opening it may have created files."""
        if self._writes:
            rows = raw.execute("PRAGMA database_list").fetchall()
            name = next(row[2] for row in rows if row[1] == "main")
            self.is_told = self._writes.watch([name, f"{name}-wal"])
            self.max_sleep_seconds = FIRST_LOOK_SECONDS if self.is_told else LOOK_SECONDS
        self._raw, self._heard_at = raw, time.monotonic()


class Writes:
    """The kernel's reports of writes to files (inotify(7)).

    Raises:
        OSError: inotify is not available.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")

    def watch(self, names: Iterable[str]) -> bool:
        """Watch the files that exist. Return whether there is any."""
        add = self._libc.inotify_add_watch
        paths = [name.encode() for name in names]
        found = [path for path in paths if add(self.descriptor, path, IN_MODIFY) >= 0]
        return bool(found)

    def take_reports(self) -> bool:
        """Return whether a watched file was written since the last call."""
        with suppress(BlockingIOError):
            return bool(os.read(self.descriptor, EVENT_BYTES))
        return False

    def close(self) -> None:
        os.close(self.descriptor)


def _open_writes() -> Writes | None:
    with suppress(OSError, AttributeError):  # another operating system, or a sandbox
        return Writes()
    return None


CHANNEL = "stoker_wake"
NOTICE = f"SELECT pg_notify('{CHANNEL}', '')"
"""A function call and not ``NOTIFY``: a server that does not know the statement would reject the
whole message, including the statements before it."""
DEBOUNCE_SECONDS = 0.02
RECONNECT_SECONDS = 5.0
CONNECT_SECONDS = 3
"""Deadline for opening the connection that listens. It is short, because the pusher waits for it
and can work without this connection."""
PROBE_SECONDS = 30.0
ANSWER_SECONDS = 10.0
"""Deadline for the answer to a probe."""

_last_notified: dict[str, float] = {}


def may_notify(alias: str) -> bool:
    """Return whether this process may notify the sleeping pushers, because the last time is long
    enough ago."""
    return time.monotonic() - _last_notified.get(alias, float("-inf")) >= DEBOUNCE_SECONDS


def note_notice(alias: str) -> None:
    """Record that the sleeping pushers have just been notified."""
    _last_notified[alias] = time.monotonic()


class Listener(Wake):
    """A separate connection that listens for PostgreSQL's notifications."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._wrapper: Any = None
        self._is_closed = False
        self._was_deaf = False
        self._try_again_at = 0.0
        self._probe_at = 0.0
        self._give_up_at: float | None = None
        """Deadline for the answer to a probe; None = no probe was sent."""
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
            session = self._wrapper.connection.pgconn
            heard = _has_heard(session)
            self._probe(session)
        except Exception:  # noqa: BLE001 - polling works without this connection
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
        options = wrapper.settings_dict["OPTIONS"]
        options["connect_timeout"] = min(CONNECT_SECONDS, options.get("connect_timeout", 60))
        try:
            wrapper.connect()
            with wrapper.cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
        except Exception:  # noqa: BLE001 - polling works with a server or pooler that has no LISTEN
            self._try_again_at = time.monotonic() + RECONNECT_SECONDS
            with suppress(Exception):
                wrapper.close()
            return
        self._wrapper = wrapper
        self._probe_at = time.monotonic() + PROBE_SECONDS
        self._give_up_at = None

    def _probe(self, session: Any) -> None:
        """Send a query now and then, because a half-open connection reports no error. Do
        not wait for the answer: that could block the pusher for a whole deadline.

        Raises:
            TimeoutError: the last probe was not answered in time.
        """
        now = time.monotonic()
        if self._give_up_at is not None:
            if _has_answered(session):
                self._give_up_at = None
            elif now >= self._give_up_at:
                raise TimeoutError("the connection that listens does not answer")
        elif now >= self._probe_at:
            self._probe_at, self._give_up_at = now + PROBE_SECONDS, now + ANSWER_SECONDS
            session.send_query(b"SELECT 1")
            session.flush()


def _has_heard(session: Any) -> bool:
    """Return whether a notification has arrived. This runs first when the pusher wakes, so it does
    not use the driver's generators."""
    session.consume_input()
    heard = False
    while session.notifies() is not None:
        heard = True
    return heard


def _has_answered(session: Any) -> bool:
    """Return whether the whole answer to a query has arrived. If so, discard it."""
    while not session.is_busy():
        if session.get_result() is None:
            return True
    return False
