"""Separate connections, each in a thread, whose transactions a test opens and ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import connection, connections, transaction

T = TypeVar("T")

PATIENCE_SECONDS = 180.0

WAITING = {
    "PostgreSQL": "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "MySQL": "SELECT count(DISTINCT locks.requesting_thread_id)"
    " FROM performance_schema.data_lock_waits locks JOIN performance_schema.threads"
    " ON threads.thread_id = locks.requesting_thread_id"
    " WHERE threads.processlist_db = database()",
    "MariaDB": "SELECT count(*) FROM information_schema.processlist WHERE db = database()"
    " AND id <> connection_id() AND command = 'Query' AND time_ms > 100",
}
"""MariaDB refreshes its table of lock waits only if it is read seldom. So a statement that takes
longer than 100 ms counts as waiting. If it does not wait, the test goes on too early and proves
less, but does not fail."""
REPEATABLE_READ = {
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "mysql": "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
}


class Session:
    """A connection in a thread of its own, like another process to the database."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._block: Any = None

    def start(self, function: Callable[[], T]) -> Future[T]:
        """Start a function in the session and return at once."""
        return self._thread.submit(function)

    def start_transaction(self, function: Callable[[], T]) -> Future[T]:
        """Start a function in a new transaction, which stays open."""
        self._block = transaction.atomic()
        return self.start(lambda: (self._block.__enter__(), function())[1])

    def do(self, function: Callable[[], T]) -> T:
        """Run a function in the session and return its result."""
        return self.start(function).result(PATIENCE_SECONDS)

    def begin(self) -> None:
        self._block = transaction.atomic()
        self.do(self._block.__enter__)

    def commit(self) -> None:
        block, self._block = self._block, None
        self.do(lambda: block.__exit__(None, None, None))

    def roll_back(self) -> None:
        block, self._block = self._block, None
        self.do(lambda: block.__exit__(KeyError, KeyError(), None))

    def read_repeatably(self) -> None:
        """Use REPEATABLE READ from the next transaction on."""
        self.do(lambda: connection.cursor().execute(REPEATABLE_READ[connection.vendor]))

    def close(self) -> None:
        if self._block is not None:
            self.roll_back()
        self.do(connections.close_all)
        self._thread.shutdown()


@contextmanager
def session() -> Iterator[Session]:
    opened = Session()
    try:
        yield opened
    finally:
        opened.close()


def wait_until_waiting(count: int = 1) -> None:
    """Wait until this many sessions wait for a lock. SQLite does not show lock waits."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while connection.display_name in WAITING:
        with connection.cursor() as cursor:
            cursor.execute(WAITING[connection.display_name])
            if cursor.fetchone()[0] >= count:
                return
        assert time.monotonic() < deadline, "no session waits"
        time.sleep(0.02)
