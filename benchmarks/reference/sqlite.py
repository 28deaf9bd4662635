"""By hand on SQLite: WAL, BEGIN IMMEDIATE, and a poll of the count of commits every few ms."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.reference import BATCH, TASK, Row

PAUSE_SECONDS = 0.005

CREATE = """
    DROP TABLE IF EXISTS by_hand;
    CREATE TABLE by_hand (
        id integer PRIMARY KEY,
        task text NOT NULL,
        package text NOT NULL,
        state text NOT NULL DEFAULT 'ready',
        result text,
        created_at real NOT NULL DEFAULT (julianday('now')),
        started_at real,
        finished_at real
    );
    CREATE INDEX by_hand_ready ON by_hand (id) WHERE state = 'ready';
"""
INSERT = "INSERT INTO by_hand (task, package) VALUES (?, ?)"
CLAIM = f"""
    UPDATE by_hand SET state = 'running', started_at = julianday('now')
    WHERE id IN (SELECT id FROM by_hand WHERE state = 'ready' ORDER BY id LIMIT {BATCH})
    RETURNING id, package
"""
FINISH = (
    "UPDATE by_hand SET state = 'done', finished_at = julianday('now'), result = ? WHERE id = ?"
)


def connect(entry: dict[str, Any]) -> SqliteReference:
    """Connect to the database of an entry of DATABASES."""
    connection = sqlite3.connect(entry["NAME"], timeout=20, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    return SqliteReference(connection)


class SqliteReference:
    """See Reference."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._seen = 0

    def create(self) -> None:
        self._connection.executescript(CREATE)

    def insert(self, package: str) -> None:
        self._connection.execute(INSERT, (TASK, package))

    def insert_many(self, packages: Iterable[str]) -> None:
        with self.transaction():
            self._connection.executemany(INSERT, ((TASK, package) for package in packages))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        yield
        self._connection.execute("COMMIT")

    def announce(self) -> None:
        """Do nothing, because every process can see a commit."""

    def claim(self) -> list[Row]:
        with self.transaction():
            return self._connection.execute(CLAIM).fetchall()

    def finish(self, results: Sequence[Row]) -> None:
        with self.transaction():
            self._connection.executemany(FINISH, ((row[1], row[0]) for row in results))

    def listen(self) -> None:
        self._seen = self._data_version()

    def wait(self) -> None:
        while (version := self._data_version()) == self._seen:
            time.sleep(PAUSE_SECONDS)
        self._seen = version

    def results(self) -> list[str]:
        rows = self._connection.execute("SELECT result FROM by_hand ORDER BY id")
        return [row[0] for row in rows]

    def close(self) -> None:
        self._connection.close()

    def _data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
