"""Rows as plain values, for the paths that every job takes on databases that cannot move rows in
one statement: to make a model instance of each takes longer than the database does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connections, models
from django.utils import timezone


class Written:
    """How a driver is given values that it does not take as they are.

    Args:
        connection: to the database that they are for.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._has_uuids = bool(connection.features.has_native_uuid_field)

    def id(self, value: UUID) -> UUID | str:
        return value if self._has_uuids else value.hex

    def moment(self, seconds: float | None) -> Any:
        """Seconds since 1970."""
        if seconds is None:
            return None
        zone = self._connection.timezone if settings.USE_TZ else timezone.get_default_timezone()
        naive = datetime.fromtimestamp(seconds, zone).replace(tzinfo=None)
        return self._connection.ops.adapt_datetimefield_value(naive)

    def data(self, value: bytes | None) -> Any:
        return None if value is None else self._connection.Database.Binary(value)


def as_uuid(value: UUID | str) -> UUID:
    """What a driver gave for an id: those without UUIDs of their own give text."""
    return value if isinstance(value, UUID) else UUID(value)


def insert_rows(
    rows: models.QuerySet[Any], names: Sequence[str], values: Sequence[Sequence[Any]]
) -> None:
    """Insert rows into the table of this query set.

    Args:
        names: of the fields.
        values: of each row, as ``Written`` has them.
    """
    connection = connections[rows.db]
    quote = connection.ops.quote_name
    columns = ", ".join(quote(rows.model._meta.get_field(name).column) for name in names)
    marks = ", ".join(["%s"] * len(names))
    table = quote(rows.model._meta.db_table)
    if len(values) == 1:
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", values[0])  # noqa: S608 - our own names
    elif values:
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", values)  # noqa: S608 - our own names
