"""The database's clock, in microseconds since 1970. No other decides leases and due times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from django.db import connections, models
from django.db.models import Func
from django.db.models.sql import Query

MICROSECONDS = 1_000_000


NOW_ON_POSTGRESQL = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
# Not UNIX_TIMESTAMP(NOW(6)): it jumps by an hour when summer time ends in the server's zone.
NOW_ON_MYSQL = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
NOW_ON_SQLITE = "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"


class DatabaseNow(Func):
    """An expression: the server's time when the statement runs, in microseconds since 1970."""

    output_field = models.BigIntegerField()

    def as_postgresql(self, *_: Any, **__: Any) -> tuple[str, tuple[str | int, ...]]:
        return NOW_ON_POSTGRESQL, ()

    def as_mysql(self, *_: Any, **__: Any) -> tuple[str, tuple[str | int, ...]]:
        return NOW_ON_MYSQL, ()

    def as_sqlite(self, *_: Any, **__: Any) -> tuple[str, tuple[str | int, ...]]:
        return NOW_ON_SQLITE, ()


def database_now_us(alias: str) -> int:
    """Return the server's time now, in microseconds since 1970."""
    text, _ = Query(None).get_compiler(alias).compile(DatabaseNow())
    with connections[alias].cursor() as cursor:
        cursor.execute(f"SELECT {text}")
        return int(cursor.fetchone()[0])


def microseconds(seconds: float) -> int:
    return round(seconds * MICROSECONDS)


def instant_us(seconds: float | None) -> int | None:
    """Seconds since 1970 in microseconds, rounded as ``datetime.fromtimestamp`` does: what is read
    back must equal what was written."""
    if seconds is None:
        return None
    fraction, whole = math.modf(seconds)
    return int(whole) * MICROSECONDS + round(fraction * MICROSECONDS)


def instants_us(seconds: Sequence[float]) -> list[int]:
    """The same of many. Inlined: for each job there are two."""
    return [
        (whole := int(one)) * MICROSECONDS + round((one - whole) * MICROSECONDS) for one in seconds
    ]
