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

from .clock import MICROSECONDS, instants_us


class Written:
    """How a driver is given values that it does not take as they are.

    Args:
        connection: to the database that they are for.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._has_uuids = bool(connection.features.has_native_uuid_field)
        self._texts: dict[int, str] = {}
        """Of whole seconds: rows that are written together mostly share theirs."""

    def id(self, value: UUID) -> UUID | str:
        return value if self._has_uuids else value.hex

    def moment(self, seconds: float | None) -> Any:
        """Seconds since 1970."""
        if seconds is None:
            return None
        return self.moments([seconds])[0]

    def moments(self, seconds: Sequence[float]) -> list[str]:
        """Many of them."""
        texts = self._texts
        parted = [divmod(us, MICROSECONDS) for us in instants_us(seconds)]
        for whole in {whole for whole, _ in parted} - texts.keys():
            zone = self._connection.timezone if settings.USE_TZ else timezone.get_default_timezone()
            naive = datetime.fromtimestamp(whole, zone).replace(tzinfo=None)
            texts[whole] = str(self._connection.ops.adapt_datetimefield_value(naive))
        return [f"{texts[whole]}.{us:06d}" if us else texts[whole] for whole, us in parted]

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
    if not values:
        return
    connection = connections[rows.db]
    statement = insert_into(connection, rows.model, names)
    with connection.cursor() as cursor:
        if len(values) == 1:
            cursor.execute(statement, values[0])
        else:
            cursor.executemany(statement, values)


def insert_into(connection: Any, model: Any, names: Sequence[str]) -> str:
    """The statement that inserts a row, made once: that takes longer than to run it."""
    key = (connection.vendor, model, tuple(names))
    if key not in _inserts:
        quote = connection.ops.quote_name
        columns = ", ".join(quote(model._meta.get_field(name).column) for name in names)
        marks = ", ".join(["%s"] * len(names))
        _inserts[key] = f"INSERT INTO {quote(model._meta.db_table)} ({columns}) VALUES ({marks})"  # noqa: S608 - our own names
    return _inserts[key]


_inserts: dict[tuple[str, Any, tuple[str, ...]], str] = {}
