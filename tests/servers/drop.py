"""Drops the databases that an interrupted run of the tests left.

Usage: python -m tests.servers.drop RUN        (needs the drivers, so it is run in .venv)

Only databases are touched whose names tests/settings/base.py makes from the run's word.
"""

import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit


def drop_on_postgres(url: str, run: str) -> None:
    """Drop them on PostgreSQL, and close their connections."""
    import psycopg
    from psycopg import sql

    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        rows = connection.execute("SELECT datname FROM pg_database").fetchall()
        for name in names_of(run, (row[0] for row in rows)):
            drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            connection.execute(drop.format(sql.Identifier(name)))


def drop_on_mariadb(url: str, run: str) -> None:
    """Drop them on MariaDB or MySQL."""
    import MySQLdb

    parts = urlsplit(url)
    connection = MySQLdb.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        passwd=unquote(parts.password or ""),
        connect_timeout=5,
    )
    with connection.cursor() as cursor:
        cursor.execute("SHOW DATABASES")
        for name in names_of(run, [row[0] for row in cursor.fetchall()]):
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")
    connection.close()


def drop_on_redis(url: str, run: str) -> None:
    """Delete the keys of clusters of that name on Redis."""
    from redis import Redis

    with Redis.from_url(url) as client:
        for key in client.scan_iter(f"{{stoker:test-{run}*", count=1000):
            client.delete(key)


def drop_on_mongodb(url: str, run: str) -> None:
    """Drop the collections of clusters of that name on MongoDB."""
    from pymongo import MongoClient

    client: MongoClient[dict[str, object]] = MongoClient(url)
    with client:
        database = client.get_default_database("stoker_test")
        for name in database.list_collection_names():
            if name == f"stoker_test-{run}" or name.startswith(f"stoker_test-{run}_"):
                database.drop_collection(name)


def names_of(run: str, names: Iterable[str]) -> list[str]:
    """Return the names that belong to the run. The whole word must match, not only a prefix."""
    ours = re.compile(rf"stoker_(?:test_)?(?!test_)[a-z]+_{re.escape(run)}(?:_.*)?")
    return [name for name in names if ours.fullmatch(name)]


if __name__ == "__main__":
    if postgres := os.environ.get("STOKER_TEST_POSTGRES_URL"):
        drop_on_postgres(postgres, sys.argv[1])
    if redis := os.environ.get("STOKER_TEST_REDIS_URL"):
        drop_on_redis(redis, sys.argv[1])
    if mongodb := os.environ.get("STOKER_TEST_MONGODB_URL"):
        drop_on_mongodb(mongodb, sys.argv[1])
    # Without the driver no test has created a database either.
    mariadb = os.environ.get("STOKER_TEST_MARIADB_URL")
    if mariadb and importlib.util.find_spec("MySQLdb"):
        drop_on_mariadb(mariadb, sys.argv[1])
