"""SQLite as a queue of several processes: what is to be set on each connection.

What ``DATABASES`` says itself is left as it is, and a database in memory, which no other process
sees, is left alone.

``synchronous`` stays FULL, which makes every commit wait for the disk: with NORMAL the last commits
are gone after a power failure, and a job that was committed must not be.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

BUSY_MILLISECONDS = 20_000


def tune(connection: Any) -> None:
    """Let transactions take their place in the line of writers when they begin, readers and writers
    not hinder one another, and whoever has to wait do so for a while.

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
    if "timeout" not in options and "busy_timeout" not in said:
        _run(connection, f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
    if "journal_mode" not in said and _run(connection, "PRAGMA journal_mode") != "wal":
        _run(connection, "PRAGMA journal_mode = WAL")


def _run(connection: Any, pragma: str) -> Any:
    """Its value; None when it cannot be set now: another process may be using the file, or the file
    be read-only. The mode is kept in the file, so the next connection tries again."""
    with suppress(connection.Database.OperationalError):
        row = connection.connection.execute(pragma).fetchone()
        return row[0] if row else None
    return None
