"""How to wait for a job: when to look again, and when waiting is of no use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.db import connections
from django.db.transaction import TransactionManagementError

from .exceptions import BrokerUnavailable, ResultTimeout, as_seconds

FIRST_PAUSE_SECONDS = 0.005
GROWTH = 1.5
OUTAGE_SECONDS = 300.0
"""Longer than a restart or a fail-over takes. Whoever waits without a limit shall not hang in
silence on a database that does not come back."""


class Commitment:
    """Whether the transaction that a job was enqueued in has been committed."""

    __slots__ = ("is_made",)

    def __init__(self, is_made: bool = False) -> None:
        self.is_made = is_made


def pauses(timeout: float | timedelta | None, longest_seconds: float) -> Iterator[float]:
    """Pauses that grow, until the time is over; then one look more."""
    deadline = float("inf") if timeout is None else time.monotonic() + as_seconds(timeout)
    pause = min(FIRST_PAUSE_SECONDS, longest_seconds)
    while (left := deadline - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * GROWTH, longest_seconds)
    yield 0.0


def too_late(job: str, state: str, timeout: float | timedelta | None) -> ResultTimeout:
    """The error of a wait whose time is over, and how the job stands."""
    return ResultTimeout(
        f"{job} had not ended after {as_seconds(timeout or 0):g} s: it is {state}."
    )


class Outage:
    """The store cannot be reached. A wait bears with that, for most outages are short.

    Args:
        timeout: that of the wait; with one, its end is the only limit.
    """

    __slots__ = ("_alias", "_is_limited", "_until", "error")

    def __init__(self, alias: str, timeout: float | timedelta | None) -> None:
        self._alias = alias
        self._is_limited = timeout is not None
        self._until = 0.0
        self.error: BrokerUnavailable | None = None
        """What the last look came to; None where it came to an answer."""

    def goes_on(self, error: BrokerUnavailable) -> None:
        """Raises the error where it is no use to look again."""
        connection = connections[self._alias]
        if connection.in_atomic_block:  # it was lost with the connection, and what it wrote too
            raise error
        now = time.monotonic()
        if self.error is None:
            self._until = now + OUTAGE_SECONDS
        elif now >= self._until and not self._is_limited:
            raise error
        self.error = error
        # One that still works stays: the caller may hold something in its session.
        if connection.connection is not None and not connection.is_usable():
            connection.close()

    def is_over(self) -> None:
        self.error = None


def refuse_endless_wait(alias: str, job_id: str, commitment: Commitment | None) -> None:
    """Raises TransactionManagementError where the open transaction can never see the job end."""
    connection = connections[alias]
    if not connection.in_atomic_block:
        return
    if commitment is not None and not commitment.is_made:
        raise TransactionManagementError(
            f"Job {job_id} was enqueued in a transaction that is still open, so it cannot start "
            "before that is committed: wait for it outside of transaction.atomic(); "
            "in a test, let stoker.testing.drain() run it."
        )
    if not _sees_later_commits(connection):
        raise TransactionManagementError(
            "The open transaction never sees what is committed after it began, so it would wait "
            f"for job {job_id} for ever: wait for it outside of transaction.atomic(); "
            "in a test, let stoker.testing.drain() run it."
        )


def _sees_later_commits(connection: Any) -> bool:
    """By its isolation level. SQLite has none to choose: its transactions never do."""
    isolation = getattr(connection, "isolation_level", None)
    name = str(getattr(isolation, "name", isolation)).upper().replace(" ", "_")
    return name in {"READ_COMMITTED", "READ_UNCOMMITTED"}
