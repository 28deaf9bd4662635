"""Transactions whose statements see what others have committed by then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction


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
    is_blind = connection.vendor != "sqlite" and not sees_later_commits(connection)
    is_ours = not connection.in_atomic_block
    with transaction.atomic(using=alias, savepoint=False):
        if is_ours and is_blind:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        yield
