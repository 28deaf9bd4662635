"""By hand on PostgreSQL: SKIP LOCKED, COPY, LISTEN and NOTIFY."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg

from benchmarks.reference import BATCH, TASK, Row

CREATE = """
    DROP TABLE IF EXISTS by_hand;
    CREATE TABLE by_hand (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        task text NOT NULL,
        package text NOT NULL,
        state text NOT NULL DEFAULT 'ready',
        result text,
        created_at timestamptz NOT NULL DEFAULT now(),
        started_at timestamptz,
        finished_at timestamptz
    );
    CREATE INDEX by_hand_ready ON by_hand (id) WHERE state = 'ready';
"""
INSERT = "INSERT INTO by_hand (task, package) VALUES (%s, %s)"
CLAIM = f"""
    UPDATE by_hand SET state = 'running', started_at = now()
    WHERE id = ANY (ARRAY(
        SELECT id FROM by_hand WHERE state = 'ready'
        ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED
    ))
    RETURNING id, package
"""
FINISH = """
    UPDATE by_hand SET state = 'done', finished_at = now(), result = done.result
    FROM unnest(%s::bigint[], %s::text[]) AS done (id, result)
    WHERE by_hand.id = done.id
"""


def connect(entry: dict[str, Any]) -> PostgresReference:
    """Connect to the database of an entry of DATABASES."""
    return PostgresReference(
        psycopg.connect(
            host=entry["HOST"],
            port=entry["PORT"],
            user=entry["USER"],
            dbname=entry["NAME"],
            autocommit=True,
        )
    )


class PostgresReference:
    """See Reference."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def create(self) -> None:
        self._connection.execute(CREATE)

    def insert(self, package: str) -> None:
        self._connection.execute(INSERT, (TASK, package))

    def insert_many(self, packages: Iterable[str]) -> None:
        with (
            self._connection.cursor() as cursor,
            cursor.copy("COPY by_hand (task, package) FROM STDIN") as copy,
        ):
            for package in packages:
                copy.write_row((TASK, package))

    def transaction(self) -> AbstractContextManager[Any]:
        return self._connection.transaction()

    def announce(self) -> None:
        self._connection.execute("NOTIFY by_hand")

    def claim(self) -> list[Row]:
        return self._connection.execute(CLAIM).fetchall()

    def finish(self, results: Sequence[Row]) -> None:
        self._connection.execute(FINISH, ([row[0] for row in results], [row[1] for row in results]))

    def listen(self) -> None:
        self._connection.execute("LISTEN by_hand")

    def wait(self) -> None:
        for _ in self._connection.notifies(timeout=1.0, stop_after=1):
            pass

    def results(self) -> list[str]:
        rows = self._connection.execute("SELECT result FROM by_hand ORDER BY id")
        return [row[0] for row in rows]

    def close(self) -> None:
        self._connection.close()
