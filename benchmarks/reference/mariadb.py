"""By hand on MariaDB: SKIP LOCKED, INSERT of many rows, and a poll every few milliseconds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import MySQLdb

from benchmarks.reference import BATCH, TASK, Row

PAUSE_SECONDS = 0.005

CREATE = (
    "DROP TABLE IF EXISTS by_hand",
    """
    CREATE TABLE by_hand (
        id bigint AUTO_INCREMENT PRIMARY KEY,
        task varchar(255) NOT NULL,
        package text NOT NULL,
        state varchar(10) NOT NULL DEFAULT 'ready',
        result text,
        created_at datetime(6) NOT NULL DEFAULT now(6),
        started_at datetime(6),
        finished_at datetime(6),
        INDEX by_hand_ready (state, id)
    )
    """,
)
INSERT = "INSERT INTO by_hand (task, package) VALUES (%s, %s)"
FIND = f"""
    SELECT id, package FROM by_hand WHERE state = 'ready' ORDER BY id LIMIT {BATCH}
    FOR UPDATE SKIP LOCKED
"""
MARK = "UPDATE by_hand SET state = 'running', started_at = now(6) WHERE id IN ({})"
FINISH = "UPDATE by_hand SET state = 'done', finished_at = now(6), result = %s WHERE id = %s"


def connect(entry: dict[str, Any]) -> MariadbReference:
    """Connect to the database of an entry of DATABASES."""
    return MariadbReference(
        MySQLdb.connect(
            host=entry["HOST"],
            port=int(entry["PORT"] or 3306),
            user=entry["USER"],
            database=entry["NAME"],
            charset="utf8mb4",
            autocommit=True,
        )
    )


class MariadbReference:
    """See Reference."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def create(self) -> None:
        for statement in CREATE:
            self._cursor.execute(statement)

    def insert(self, package: str) -> None:
        self._cursor.execute(INSERT, (TASK, package))

    def insert_many(self, packages: Iterable[str]) -> None:
        with self.transaction():
            self._cursor.executemany(INSERT, [(TASK, package) for package in packages])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._cursor.execute("BEGIN")
        yield
        self._cursor.execute("COMMIT")

    def announce(self) -> None:
        """Do nothing, because MariaDB has no notifications."""

    def claim(self) -> list[Row]:
        with self.transaction():
            self._cursor.execute(FIND)
            rows: list[Row] = list(self._cursor.fetchall())
            if rows:
                self._cursor.execute(MARK.format(",".join(str(row[0]) for row in rows)))
        return rows

    def finish(self, results: Sequence[Row]) -> None:
        with self.transaction():
            self._cursor.executemany(FINISH, [(row[1], row[0]) for row in results])

    def listen(self) -> None:
        """Do nothing, because MariaDB has no notifications."""

    def wait(self) -> None:
        time.sleep(PAUSE_SECONDS)

    def results(self) -> list[str]:
        self._cursor.execute("SELECT result FROM by_hand ORDER BY id")
        return [row[0] for row in self._cursor.fetchall()]

    def close(self) -> None:
        self._connection.close()
