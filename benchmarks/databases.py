"""The database of the benchmark: a private server that syncs to disk, or a file."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.servers.mariadb import PrivateMariadb
from tests.servers.postgres import PrivatePostgres

NAMES = ("postgres", "sqlite", "mariadb")


@dataclass(frozen=True)
class Database:
    """A database to measure."""

    name: str
    entry: dict[str, Any]
    """The entry in DATABASES."""
    server_pid: int | None = None
    """Process whose processor time is the server's; None = the database runs inside its clients."""


@contextmanager
def database(name: str) -> Iterator[Database]:
    """Start a fresh database. STOKER_BENCH_POSTGRES_URL and STOKER_BENCH_MARIADB_URL name a server
    to use instead of a private one. The database in the URL is then overwritten."""
    with {"postgres": _postgres, "mariadb": _mariadb, "sqlite": _sqlite}[name]() as found:
        yield found


@contextmanager
def _postgres() -> Iterator[Database]:
    if url := os.environ.get("STOKER_BENCH_POSTGRES_URL"):
        yield Database("postgres", _entry("postgresql", url))
        return
    with PrivatePostgres() as server:
        pid = int((server.folder / "server.pid").read_text())
        yield Database("postgres", _entry("postgresql", server.url), pid)


@contextmanager
def _mariadb() -> Iterator[Database]:
    if url := os.environ.get("STOKER_BENCH_MARIADB_URL"):
        yield Database("mariadb", _entry("mysql", url))
        return
    with PrivateMariadb() as server:
        import MySQLdb

        connection = MySQLdb.connect(host="127.0.0.1", port=server.port, user="root")
        connection.query("CREATE DATABASE bench CHARACTER SET utf8mb4")
        connection.close()
        pid = int((server.folder / "server.pid").read_text())
        url = f"mysql://root@127.0.0.1:{server.port}/bench"
        yield Database("mariadb", _entry("mysql", url), pid)


@contextmanager
def _sqlite() -> Iterator[Database]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        path = str(Path(folder) / "bench.sqlite3")
        yield Database("sqlite", {"ENGINE": "django.db.backends.sqlite3", "NAME": path})


def _entry(engine: str, url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "ENGINE": f"django.db.backends.{engine}",
        "HOST": parts.hostname,
        "PORT": str(parts.port or ""),
        "USER": parts.username,
        "NAME": parts.path.strip("/"),
    }
