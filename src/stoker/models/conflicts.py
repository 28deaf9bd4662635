"""Transactions that the database has ended for the sake of others."""

from __future__ import annotations

from collections.abc import Collection

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
