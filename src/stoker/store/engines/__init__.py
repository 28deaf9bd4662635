"""Database engines: ``engine_of`` returns the engine of a database.

Code outside this package does not ask which database it is on.
"""

from __future__ import annotations

from typing import Any

from django.db import connections

from .base import Engine
from .mysql import MySQL
from .postgresql import PostgreSQL
from .sessions import LARGE_BYTES
from .sqlite import SQLite

__all__ = ["LARGE_BYTES", "Engine", "engine_for", "engine_of"]

_KINDS: dict[str, type[Engine]] = {"postgresql": PostgreSQL, "mysql": MySQL, "sqlite": SQLite}
_engines: dict[tuple[str, str], Engine] = {}


def engine_of(alias: str) -> Engine:
    """Return the engine of the database with this alias."""
    return engine_for(connections[alias])


def engine_for(connection: Any) -> Engine:
    """Return the engine of the database of a Django connection. Engines are created once per alias
    and are shared by all threads."""
    key = (connection.alias, connection.vendor)
    engine = _engines.get(key)
    if engine is None:
        engine = _engines[key] = _KINDS.get(connection.vendor, Engine)(connection.alias)
    return engine
