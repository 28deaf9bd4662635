"""Statements that a session keeps prepared (PostgreSQL): parsed and planned once, and sent without
the layers around a cursor. After a pause, when no cache has them any more, those and the planner
take longer than the statement itself.

Only the sessions of a cluster's own processes keep any, and only those that need not share a
server's session with others. A pooler that we have not been told of is noticed by the error that it
leads to: then nothing is kept any more. A name is made of the statement's text, so that nobody can
meet another's under it.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import blake2b
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import DataError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from .arrays import array_literal

PLANNING = (
    "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_hashjoin=off "
    "-c enable_mergejoin=off -c jit=off"
)
"""For sessions that keep statements. A plan made while a table was empty is still used when it is
large: so it has to go by an index, and not by what pays for a table of that size."""
NAME = re.compile(r"%\((\w+)\)s")
BINARY, COMMAND, TUPLES, IDLE = 1, 1, 2, 0
"""As libpq numbers them: a format; two results; a session outside of a transaction."""

_aliases: set[str] = set()
_known: WeakKeyDictionary[Any, set[bytes]] = WeakKeyDictionary()
"""Connection -> names of what its session has."""


def keep_statements(alias: str) -> None:
    """Let this process's sessions with that database keep statements from now on."""
    _aliases.add(alias)


def needs_no_cursor(connection: Any, *known: Any) -> bool:
    """Whether nobody would notice that a statement is sent without Django's cursor. Some look at
    all of them; some put a cursor of their own in its place, to choose the tenant whose tables are
    meant, or to forbid statements. Opens the connection, unless that is forbidden here.

    Args:
        known: wrappers of what is executed that do not mind.
    """
    if connection.execute_wrappers != [*known] or connection.queries_logged:
        return False
    for name in ("cursor", "_cursor"):
        function = getattr(getattr(connection, name), "__func__", None)
        if function is not getattr(BaseDatabaseWrapper, name):
            return False
    connection.ensure_connection()
    return True


def are_kept(connection: Any) -> bool:
    """Whether statements of this connection are kept now."""
    if connection.alias not in _aliases or not needs_no_cursor(connection):
        return False
    driver = connection.connection
    begins_plainly = driver.isolation_level is driver.read_only is driver.deferrable is None
    return driver.autocommit or begins_plainly


def fetch_kept(connection: Any, text: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows. It must not be one that ``are_kept`` refuses.

    Args:
        connection: the one of Django.
        text: with ``%(name)s`` for each parameter.
        parameters: numbers, texts, bytes, UUIDs or None; lists become arrays.

    Raises:
        DatabaseError: as a cursor does.
    """
    from psycopg.adapt import Transformer

    name, command, order = _numbered(text)
    values = [_written(parameters[one]) for one in order]
    with connection.wrap_database_errors:
        driver = connection.connection
        try:
            result = _run(driver, name, command, values)
        except _not_kept() as error:
            _aliases.discard(connection.alias)
            raise OperationalError(str(error)) from error
        rows = Transformer(driver)
        rows.set_pgresult(result)
        found: list[tuple[Any, ...]] = rows.load_rows(0, result.ntuples, tuple)
        return found


def _run(driver: Any, name: bytes, command: bytes, values: list[bytes | None]) -> Any:
    """In the transaction that is open, or is to be."""
    session = driver.pgconn
    if not driver.autocommit and session.transaction_status == IDLE:
        checked(session, session.exec_(b"BEGIN"))
    known = _known.setdefault(driver, set())
    if name not in known:
        checked(session, session.prepare(name, command))
        known.add(name)
    return checked(session, session.exec_prepared(name, values, result_format=BINARY))


def checked(session: Any, result: Any) -> Any:
    """The result of a statement. Raises what a cursor would, if it failed."""
    if result.status in (COMMAND, TUPLES):
        return result
    from psycopg import OperationalError as Lost
    from psycopg.errors import error_from_result
    from psycopg.pq import ConnStatus

    if session.status != ConnStatus.OK:
        raise Lost(session.error_message.decode("utf-8", "replace"))
    raise error_from_result(result)


@cache
def _not_kept() -> tuple[type[Exception], ...]:
    from psycopg import errors

    return (
        errors.InvalidSqlStatementName,
        errors.DuplicatePreparedStatement,
        errors.FeatureNotSupported,
    )


@cache
def _numbered(text: str) -> tuple[bytes, bytes, tuple[str, ...]]:
    """Its name, the statement with ``$1`` for a parameter, and which one that is."""
    order = tuple(dict.fromkeys(NAME.findall(text)))
    command = NAME.sub(lambda found: f"${order.index(found[1]) + 1}", text).replace("%%", "%")
    digest = blake2b(command.encode(), digest_size=12).hexdigest()
    return f"stoker_{digest}".encode(), command.encode(), order


def _written(value: Any) -> bytes | None:
    """As PostgreSQL reads it."""
    if value is None:
        return None
    if isinstance(value, UUID):
        return value.hex.encode()
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    written = (array_literal(value) if isinstance(value, list) else str(value)).encode()
    if b"\0" in written:
        raise DataError("PostgreSQL keeps no text with a NUL in it.")
    return written
