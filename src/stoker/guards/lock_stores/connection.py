"""The database connection that a lock is written through."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.transaction import TransactionManagementError


def refuse_open_transaction(alias: str, key: str) -> None:
    """Raises TransactionManagementError inside a transaction of the caller's."""
    connection = connections[alias]
    if is_of_a_test_case(alias):
        return
    if connection.in_atomic_block or not connection.get_autocommit():
        raise TransactionManagementError(
            f"The lock {key!r} cannot be taken inside an open transaction on the database "
            f"{alias!r}: others would not see it before the commit. Take the lock first and open "
            "the transaction inside it, or keep the lock in a cache."
        )


def is_of_a_test_case(alias: str) -> bool:
    """Whether all that is open is the transaction in which Django's TestCase runs a test."""
    connection = connections[alias]
    # The mark is Django's own, for `durable=True`, which has to look the other way as well.
    return connection.in_atomic_block and all(
        getattr(block, "_from_testcase", False) for block in connection.atomic_blocks
    )


def give_up_after(alias: str, seconds: int) -> None:
    """Let calls on this thread's connection fail after some seconds, where the driver can do so by
    itself: one host that does not answer must not hold up what is done for the others."""
    connection = connections[alias]
    options: dict[str, Any] = connection.settings_dict.get("OPTIONS", {})
    limits = _limits(connection.vendor, seconds)
    if not limits.keys() - options.keys() or options.get("pool"):  # a pool is all threads' own
        return
    # A copy: the settings as they are belong to every thread.
    connection.settings_dict = {**connection.settings_dict, "OPTIONS": {**limits, **options}}


def _limits(vendor: str, seconds: int) -> dict[str, Any]:
    if vendor == "postgresql":
        return {
            "connect_timeout": seconds,
            "keepalives_idle": seconds,
            "tcp_user_timeout": seconds * 1000,
        }
    if vendor == "mysql":
        return dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), seconds)
    return {}
