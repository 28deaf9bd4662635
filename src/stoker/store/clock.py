"""The database's clock, in microseconds since 1970. Leases and due times use no other clock."""

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
    """An SQL expression: the server's time when the statement runs, in microseconds since 1970."""

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
    """Convert seconds since 1970 to microseconds, rounded as ``datetime.fromtimestamp`` rounds. So
    a moment that is written and read back stays equal."""
    if seconds is None:
        return None
    fraction, whole = math.modf(seconds)
    return int(whole) * MICROSECONDS + round(fraction * MICROSECONDS)


def instants_us(seconds: Sequence[float]) -> list[int]:
    """Convert many moments like ``instant_us``. Inlined for speed, because each job has two."""
    return [
        (whole := int(one)) * MICROSECONDS + round((one - whole) * MICROSECONDS) for one in seconds
    ]
