"""SQLite as a queue of several processes: what is to be set on each connection.

What ``DATABASES`` says itself is left as it is, and a database in memory, which no other process
sees, is left alone.

``synchronous`` stays FULL, which makes every commit wait for the disk: with NORMAL the last commits
are gone after a power failure, and a job that was committed must not be.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from django.db import OperationalError

from .prepared import needs_no_cursor

T = TypeVar("T")

BUSY_MILLISECONDS = 20_000
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.0004, 0.01
"""Between two looks whether the line of writers moves."""
BUSY = 5
"""SQLITE_BUSY; its variants have it in their lowest byte."""
WRITES = ("INSERT", "UPDATE", "DELETE")


def tune(connection: Any) -> None:
    """Let writers take their place in the line when they begin, readers and writers not hinder one
    another, and whoever has to wait do so for a while.

    Args:
        connection: Django's connection to an SQLite database, just opened.
    """
    if connection.is_in_memory_db():
        return
    options = connection.settings_dict["OPTIONS"]
    said = str(options.get("init_command") or "").lower()
    # A transaction that reads first and then writes cannot wait for another writer: SQLite refuses
    # it at once, with "database is locked". One that begins as a writer can.
    if "transaction_mode" not in options:
        connection.transaction_mode = "IMMEDIATE"
        connection._start_transaction_under_autocommit = partial(_begin, connection)
        if _write_alone not in connection.execute_wrappers:
            connection.execute_wrappers.insert(0, _write_alone)
    if "timeout" not in options and "busy_timeout" not in said:
        _run(connection, f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
    if "journal_mode" not in said and _run(connection, "PRAGMA journal_mode") != "wal":
        _run(connection, "PRAGMA journal_mode = WAL")


def _begin(connection: Any) -> None:
    """Begin as a writer, in place of Django's own way.

    Raises:
        django.db.OperationalError: somebody wrote for all of the busy time-out.
    """
    raw = connection.connection
    with connection.wrap_database_errors:
        _in_steps(raw, partial(raw.execute, "BEGIN IMMEDIATE"))


def write_together(connection: Any, statements: Sequence[tuple[str, Sequence[Any]]]) -> bool:
    """Run these in a transaction of their own, past Django's cursor, if that is all the same: for
    short ones it takes several times as long as SQLite. Whether it was done.

    Args:
        connection: of any database.
        statements: with their parameters.

    Raises:
        DatabaseError: as a cursor does. Nothing was written then.
    """
    if connection.vendor != "sqlite" or connection.in_atomic_block:
        return False
    connection.validate_thread_sharing()
    connection.close_if_health_check_failed()
    raw = needs_no_cursor(connection, _write_alone) and connection.connection
    if not raw or not connection.autocommit:
        return False
    with connection.wrap_database_errors:
        if raw.in_transaction:
            return False
        try:
            _in_steps(raw, partial(raw.execute, "BEGIN IMMEDIATE"))
            for sql, parameters in statements:
                raw.execute(sql.replace("%s", "?"), parameters)
            raw.execute("COMMIT")
        except BaseException:
            raw.rollback()
            raise
    return True


def _write_alone(
    execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Run a statement, and let it wait as a transaction does if it is one of its own that writes.
    Among others that come again and again it would be outrun until the busy time-out is over.
    """
    raw = context["connection"].connection
    if many or raw.in_transaction or sql.lstrip()[:6].upper() not in WRITES:
        return execute(sql, params, many, context)
    return _in_steps(raw, partial(execute, sql, params, many, context))


def _in_steps(raw: Any, write: Callable[[], T]) -> T:
    """Try to write until it can be done. SQLite would wait asleep, up to a tenth of a second at a
    time, while most transactions of ours are over in a few milliseconds."""
    (limit,) = raw.execute("PRAGMA busy_timeout").fetchone()
    try:
        raw.execute("PRAGMA busy_timeout = 0")
        return _try_within(limit / 1000, write)
    finally:
        raw.execute(f"PRAGMA busy_timeout = {limit}")


def _try_within(seconds: float, write: Callable[[], T]) -> T:
    until = time.monotonic() + seconds
    pause = SHORTEST_PAUSE_SECONDS
    while True:
        try:
            return write()
        except (OperationalError, sqlite3.OperationalError) as error:
            code = getattr(error.__cause__ or error, "sqlite_errorcode", 0)
            is_busy = code & 0xFF == BUSY
            if not is_busy or time.monotonic() >= until:
                raise
        time.sleep(pause)
        pause = min(pause * 1.1, LONGEST_PAUSE_SECONDS)


def _run(connection: Any, pragma: str) -> Any:
    """Its value; None when it cannot be set now: another process may be using the file, or the file
    be read-only. The mode is kept in the file, so the next connection tries again."""
    with suppress(connection.Database.OperationalError):
        row = connection.connection.execute(pragma).fetchone()
        return row[0] if row else None
    return None
