"""The servers that peers need, started once for a run: `KINDS` names them.

Another kind is a class with the methods of `Server`, and a line in `KINDS`.
"""

from __future__ import annotations

import time
from typing import Any, Protocol, Self

import psycopg
import redis

from benchmarks.peers.usage import busy_seconds
from tests.servers.postgres import PrivatePostgres
from tests.servers.redis import PrivateRedis

Counters = dict[str, float]

DATABASE = "peer"


class Server(Protocol):
    """One private server."""

    def __enter__(self) -> Self:
        """Start it."""

    def __exit__(self, *of_exception: object) -> None:
        """Stop it, and leave nothing behind."""

    def version(self) -> str:
        """Return its name, its version, and how it writes to disk."""

    def fresh(self) -> str:
        """Delete all data, and return the address: a URL for PEER_<KIND>_URL."""

    def quiesce(self) -> None:
        """Write pending data of earlier work to disk before a measurement."""

    def look_over(self) -> None:
        """Update the planner's statistics after the enqueue. A busy server does this regularly, but
        a turn is too short for it."""

    def busy_seconds(self) -> float:
        """Return the processor seconds that it has used so far."""

    def counters(self) -> Counters:
        """Return its counters, which are exact at once. The report divides the difference by the
        number of jobs."""

    def left(self) -> Counters:
        """Return the traces that a turn has left, such as dead rows."""


class Postgres:
    """A PostgreSQL with its default configuration, which syncs every commit."""

    def __init__(self) -> None:
        self._server = PrivatePostgres()

    def __enter__(self) -> Self:
        self._server.__enter__()
        self._pid = int((self._server.folder / "server.pid").read_text())
        self._connection = psycopg.connect(self._server.url, autocommit=True)
        return self

    def __exit__(self, *of_exception: object) -> None:
        self._connection.close()
        self._server.close()

    def version(self) -> str:
        found = self._connection.execute("SELECT split_part(version(), ' ', 2)").fetchone()
        assert found is not None
        return f"PostgreSQL {found[0]}, default configuration, every commit synced"

    def fresh(self) -> str:
        self._connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        self._connection.execute(f"CREATE DATABASE {DATABASE}")
        return self._url()

    def quiesce(self) -> None:
        self._connection.execute("CHECKPOINT")

    def look_over(self) -> None:
        # Otherwise statements keep the plans that were made while the tables were nearly empty.
        with psycopg.connect(self._url(), autocommit=True) as connection:
            connection.execute("ANALYZE")

    def busy_seconds(self) -> float:
        return busy_seconds(self._pid)

    def counters(self) -> Counters:
        # Not pg_stat_database: a session's statistics reach it up to ten seconds later. Numbers of
        # transactions are given to those that write, so those that only look are not counted.
        found = self._connection.execute(
            """
            SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
                   pg_current_wal_insert_lsn() - '0/0'::pg_lsn
            """
        ).fetchone()
        assert found is not None
        return {"commits": float(found[0]), "WAL bytes": float(found[1])}

    def left(self) -> Counters:
        with psycopg.connect(self._url()) as connection:
            found = connection.execute(
                "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables"
            ).fetchone()
        assert found is not None
        return {"dead rows": float(found[0])}

    def _url(self) -> str:
        return f"{self._server.url.rpartition('/')[0]}/{DATABASE}"


class Redis:
    """A Redis that writes every command to its log, and syncs the log before it answers."""

    def __init__(self) -> None:
        # Rewrite the log before a turn, and not during one.
        self._server = PrivateRedis(is_durable=True, **{"auto-aof-rewrite-percentage": "0"})

    def __enter__(self) -> Self:
        self._server.__enter__()
        self._pid = int((self._server.folder / "server.pid").read_text())
        self._client: Any = redis.Redis.from_url(self._server.url)
        return self

    def __exit__(self, *of_exception: object) -> None:
        self._client.close()
        self._server.close()

    def version(self) -> str:
        number = self._client.info("server")["redis_version"]
        return f"Redis {number}, appendonly yes, appendfsync always"

    def fresh(self) -> str:
        self._client.flushall()
        self._client.bgrewriteaof()
        while self._about_log()["aof_rewrite_in_progress"]:
            time.sleep(0.01)
        return self._server.url

    def quiesce(self) -> None:
        """Do nothing, because Redis has no pending writes."""

    def look_over(self) -> None:
        """Do nothing, because Redis has no planner."""

    def busy_seconds(self) -> float:
        return busy_seconds(self._pid)

    def counters(self) -> Counters:
        return {"AOF bytes": float(self._about_log()["aof_current_size"])}

    def left(self) -> Counters:
        return {}

    def _about_log(self) -> dict[str, Any]:
        told: dict[str, Any] = self._client.info("persistence")
        return told


KINDS: dict[str, type[Server]] = {"postgres": Postgres, "redis": Redis}
