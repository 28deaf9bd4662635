"""Convert values for database drivers, and read the SQL files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from .clock import MICROSECONDS, instants_us


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

    def id(self, value: UUID) -> UUID | str:
        """Convert an id."""
        return value if self._has_uuids else value.hex

    def moment(self, seconds: float | None) -> Any:
        """Convert a moment, given in seconds since 1970."""
        if seconds is None:
            return None
        return self.moments([seconds])[0]

    def moments(self, seconds: Sequence[float]) -> list[str]:
        """Convert many moments."""
        texts = self._texts
        parted = [divmod(us, MICROSECONDS) for us in instants_us(seconds)]
        for whole in {whole for whole, _ in parted} - texts.keys():
            zone = self._connection.timezone if settings.USE_TZ else timezone.get_default_timezone()
            naive = datetime.fromtimestamp(whole, zone).replace(tzinfo=None)
            texts[whole] = str(self._connection.ops.adapt_datetimefield_value(naive))
        return [f"{texts[whole]}.{us:06d}" if us else texts[whole] for whole, us in parted]

    def moments_or_none(self, seconds: Sequence[float | None]) -> list[Any]:
        """Write many moments, some of which may be None."""
        if None in seconds:
            return [self.moment(one) for one in seconds]
        return self.moments(cast("Sequence[float]", seconds))

    def ids(self, digits: Sequence[str]) -> Sequence[Any]:
        """Write many ids, which are given by their 32 digits."""
        return [UUID(one) for one in digits] if self._has_uuids else digits

    def data(self, value: bytes | None) -> Any:
        """Convert bytes."""
        return None if value is None else self._connection.Database.Binary(value)
