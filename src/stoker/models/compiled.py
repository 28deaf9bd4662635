"""Queries that are asked again and again, with the same values each time."""

from __future__ import annotations

from typing import Any

from django.db import connections, models


class Compiled:
    """A query whose SQL is made once: an idle cluster asks it twice a second, and to make it takes
    longer than to send it. Values come as the driver gives them.

    Args:
        rows: what is asked, with ``values_list``.
    """

    def __init__(self, rows: models.QuerySet[Any, Any]) -> None:
        self._rows = rows
        self._made: tuple[str, tuple[Any, ...]] | None = None

    def fetch(self) -> list[tuple[Any, ...]]:
        """Ask. Raises: DatabaseError."""
        if self._made is None:
            self._made = self._rows.query.get_compiler(self._rows.db).as_sql()
        with connections[self._rows.db].cursor() as cursor:
            cursor.execute(*self._made)
            found: list[tuple[Any, ...]] = list(cursor.fetchall())
            return found
