"""Isolation of transactions, conflicts between them, and calls after their commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import connections, transaction

from .engines import engine_of


def sees_later_commits(connection: Any) -> bool:
    """By its isolation level. SQLite has none to choose: its transactions never do."""
    isolation = getattr(connection, "isolation_level", None)
    name = str(getattr(isolation, "name", isolation)).upper().replace(" ", "_")
    return name in {"READ_COMMITTED", "READ_UNCOMMITTED"}


@contextmanager
def deciding(alias: str) -> Iterator[None]:
    """A transaction in which, once a lock was waited for, one sees what its last holder has done.
    Within another transaction it is a part of that one, whatever that sees."""
    connection = connections[alias]
    has_levels = engine_of(alias).has_isolation_levels
    is_blind = has_levels and not sees_later_commits(connection)
    is_ours = not connection.in_atomic_block
    with transaction.atomic(using=alias, savepoint=False):
        if is_ours and is_blind:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        yield


POSTGRES = {"40001", "40P01"}
"""serialization_failure, deadlock_detected"""
MYSQL = {1213, 1020}
"""ER_LOCK_DEADLOCK, ER_CHECKREAD"""

POSTGRES_LOCKED = {"55P03", "40P01"}
"""lock_not_available (also after ``lock_timeout``), deadlock_detected"""
MYSQL_LOCKED = {1205, 1213}
"""ER_LOCK_WAIT_TIMEOUT, ER_LOCK_DEADLOCK"""

POSTGRES_ENDED = {"25P03", "25P04"}
"""idle_in_transaction_session_timeout, transaction_timeout"""


def is_conflict(error: BaseException | None) -> bool:
    """Whether this error, or one that it came from, says that nothing was wrong with the
    transaction but its moment: tried again, it may succeed."""
    return _has_code(error, POSTGRES, MYSQL)


def is_locked_out(error: BaseException | None) -> bool:
    """Whether this error, or one that it came from, says that another transaction holds a row that
    was needed. The database itself is there, and answers."""
    return _has_code(error, POSTGRES_LOCKED, MYSQL_LOCKED)


def is_session_ended(error: BaseException | None) -> bool:
    """Whether this error, or one that it came from, says that the server has ended the session
    because its transaction took too long. Drivers don't call that a lost connection."""
    return _has_code(error, POSTGRES_ENDED, ())


def _has_code(
    error: BaseException | None, states: Collection[str], numbers: Collection[int]
) -> bool:
    while error is not None:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        number = error.args[0] if error.args else None
        if state in states or (type(number) is int and number in numbers):
            return True
        error = error.__cause__
    return False


def after_commit(alias: str, call: Callable[[], object]) -> None:
    """Call this after the transaction that is open there, or now if none is. What it raises is
    logged and harms nobody: the commit has been made.

    Django names the function in its log by ``__qualname__``, and fails where it has none, as
    ``functools.partial`` does: the lambda has one.
    """
    transaction.on_commit(lambda: call(), using=alias, robust=True)  # noqa: PLW0108 - see above


def roll_back(connection: Any) -> None:
    """Roll back and close a connection, whatever Django believes about it. It is opened anew when
    somebody uses it."""
    connection.in_atomic_block = connection.closed_in_transaction = False
    connection.savepoint_ids, connection.atomic_blocks, connection.run_on_commit = [], [], []
    raw = connection.connection
    try:
        connection.rollback()
        connection.close()
    except Exception:  # noqa: BLE001 - whatever the driver says, it is gone
        connection.connection = None
        with suppress(Exception):
            raw.close()


@contextmanager
def autocommit(alias: str) -> Iterator[None]:
    """Also where the project commits by hand (``AUTOCOMMIT``): then nobody would commit this."""
    connection = connections[alias]
    if connection.in_atomic_block or connection.get_autocommit():
        yield
        return
    connection.close()  # with what a task before has not committed
    connection.set_autocommit(True)
    try:
        yield
    finally:
        connection.close()  # the next one is as the project wants it
