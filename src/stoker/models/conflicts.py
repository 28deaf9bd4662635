"""Transactions that the database has ended for the sake of others."""

from __future__ import annotations

POSTGRES = {"40001", "40P01"}
"""serialization_failure, deadlock_detected"""
MYSQL = {1213, 1020}
"""ER_LOCK_DEADLOCK, ER_CHECKREAD"""


def is_conflict(error: BaseException | None) -> bool:
    """Whether this error, or one that it came from, says that nothing was wrong with the
    transaction but its moment: tried again, it may succeed."""
    while error is not None:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        number = error.args[0] if error.args else None
        if state in POSTGRES or (type(number) is int and number in MYSQL):
            return True
        error = error.__cause__
    return False
