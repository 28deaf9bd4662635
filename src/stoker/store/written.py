"""Convert values for database drivers, read the database's clock, and read the SQL files. Leases
and due times use only the database's clock."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.db import connections, models
from django.db.models import Func
from django.db.models.sql import Query
from django.utils import timezone

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


def statement(name: str, **words: str) -> str:
    """Return the text of ``sql/<name>.sql`` with its placeholders in braces replaced by these
    words."""
    text = _text(name)
    return text.format(**words) if words else text


@cache
def _text(name: str) -> str:
    """Return the text of a SQL file without comments."""
    written = (files(__package__) / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    lines = [line for line in written.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines)


def columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Turn rows into ``width`` columns, as ``unnest`` takes them."""
    return (
        [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
    )


def hexes(keys: Iterable[UUID]) -> str:
    """Return ids as a JSON list in SQLite's text form."""
    return json.dumps([key.hex for key in keys])


def as_uuid(value: UUID | str) -> UUID:
    """Convert an id from the driver. Drivers without UUID support return text."""
    return value if isinstance(value, UUID) else UUID(value)


class Written:
    """Convert values for the driver of a database.

    Args:
        connection: Django's connection to the database.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._has_uuids = bool(connection.features.has_native_uuid_field)
        self._texts: dict[int, str] = {}
        """Whole seconds -> their text. Rows that are written together mostly share the second."""
        self._last: tuple[float | None, Any] = None, None
        """The moment that was converted last, and the result: a job's rows share one."""

    def id(self, value: UUID) -> UUID | str:
        """Convert an id."""
        return value if self._has_uuids else value.hex

    def moment(self, seconds: float | None) -> Any:
        """Convert a moment, given in seconds since 1970."""
        if seconds != self._last[0]:
            self._last = seconds, None if seconds is None else self.moments([seconds])[0]
        return self._last[1]

    def moments(self, seconds: Sequence[float]) -> list[str]:
        """Convert many moments, given in seconds since 1970, to the driver's text form."""
        texts = self._texts
        parted = [divmod(us, MICROSECONDS) for us in instants_us(seconds)]
        for whole in {whole for whole, _ in parted} - texts.keys():
            zone = self._connection.timezone if settings.USE_TZ else timezone.get_default_timezone()
            naive = datetime.fromtimestamp(whole, zone).replace(tzinfo=None)
            texts[whole] = str(self._connection.ops.adapt_datetimefield_value(naive))
        return [f"{texts[whole]}.{us:06d}" if us else texts[whole] for whole, us in parted]

    def moments_or_none(self, seconds: Sequence[float | None]) -> list[Any]:
        """Convert many moments, some of which may be None."""
        if None in seconds:
            return [self.moment(one) for one in seconds]
        return self.moments(cast("Sequence[float]", seconds))

    def ids(self, digits: Sequence[str]) -> Sequence[Any]:
        """Write many ids, which are given by their 32 digits."""
        return [UUID(one) for one in digits] if self._has_uuids else digits

    def data(self, value: bytes | None) -> Any:
        """Convert bytes."""
        return None if value is None else self._connection.Database.Binary(value)


def moment(seconds: float) -> datetime:
    """Convert seconds since 1970 to a value for a DateTimeField, aware or naive as USE_TZ says."""
    aware = datetime.fromtimestamp(seconds, UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)
