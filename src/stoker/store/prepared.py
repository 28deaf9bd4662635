"""PostgreSQL without a cursor: arrays, statements that a session keeps, and short statements."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import DataError, OperationalError, connections, models
from django.db.backends.base.base import BaseDatabaseWrapper


def array_literal(values: Sequence[Any]) -> str:
    """The array as text, for a parameter with a cast: ``%(ids)s::uuid[]``.

    Args:
        values: numbers, or str, bytes, UUID; all of one kind, or None.
    """
    sample = next((value for value in values if value is not None), None)
    write = next((writer for kind, writer in _WRITERS if isinstance(sample, kind)), str)
    if isinstance(sample, str):  # the same few again and again: names of queues, of workers
        written = {value: write(value) for value in set(values) if value is not None}
        items = [written.get(value, "NULL") for value in values]
    else:
        items = ["NULL" if value is None else write(value) for value in values]
    return list_literal(items)


def list_literal(items: Iterable[str]) -> str:
    """The array of what is written already. What has neither commas, braces nor quotes in it stands
    as it is. An object of JSON looks the same."""
    return "{" + ",".join(items) + "}"


def _write_text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write_bytes(value: bytes) -> str:
    return f'"\\\\x{value.hex()}"'


def _write_uuid(value: UUID) -> str:
    return value.hex


_WRITERS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (str, _write_text),
    (bytes, _write_bytes),
    (UUID, _write_uuid),
)
"""Type -> how one item is written; numbers stand as they are."""


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
    """Run the statement in the open transaction, or begin one if the session does not autocommit.

    The driver waits for the answers. libpq's own functions that wait know no deadline.
    """
    session = driver.pgconn
    if not driver.autocommit and session.transaction_status == IDLE:
        session.send_query(b"BEGIN")
        _answer(driver)
    known = _known.setdefault(driver, set())
    if name not in known:
        session.send_prepare(name, command)
        _answer(driver)
        known.add(name)
    session.send_query_prepared(name, values, result_format=BINARY)
    return _answer(driver)


def _answer(driver: Any) -> Any:
    from psycopg.generators import execute

    return checked(driver.pgconn, driver.wait(execute(driver.pgconn))[-1])


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


PLAIN = re.compile(r"[\w.:/ -]*", re.ASCII)
"""A text that means the same between quotes, whatever the session's settings are."""
BEFORE_NOTICE = 4
"""Results of BEGIN, two inserts, COMMIT."""


def send_past_cursor(connection: Any, sql: str, parameters: dict[str, Any], notice: str) -> bool:
    """Send a short statement past Django's cursor, unless somebody minds that: a cursor takes
    several times as long as the server.

    Args:
        connection: the one of Django.
        sql: with ``%(name)s`` for each parameter.
        parameters: by their names.
        notice: a statement for after the commit. It may fail.

    Returns:
        Whether the notice was sent along. It is not where somebody else commits.
    """
    connection.close_if_health_check_failed()
    cursor_class = getattr(connection.Database, "ClientCursor", None)
    if cursor_class is None or not needs_no_cursor(connection):
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)
        return False
    connection.validate_thread_sharing()
    connection.validate_no_broken_transaction()
    with connection.wrap_database_errors:
        driver = connection.connection
        is_begun = driver.autocommit or driver.pgconn.transaction_status != IDLE
        if is_begun and PLAIN.fullmatch(parameters["task"] + parameters["queue"]):
            written = {name: _literal(value) for name, value in parameters.items()}
            return _send_text(connection, sql % written, notice)
        cursor_class(driver).execute(sql, parameters)
        return False


def _send_text(connection: Any, sql: str, notice: str) -> bool:
    """Past the driver's cursor, too. The notice is not part of the transaction: PostgreSQL lets no
    two commit at the same time that notify."""
    driver, execute = connection.connection, connection.Database.generators.execute
    session = driver.pgconn
    tells = bool(notice) and session.transaction_status == IDLE
    text = f"BEGIN;{sql};COMMIT;{notice}" if tells else sql
    try:
        with driver.lock:
            session.send_query(text.encode())
            results = driver.wait(execute(session))
        for result in results[:BEFORE_NOTICE]:
            checked(session, result)
    except BaseException:
        if tells:
            with suppress(Exception):  # what is wrong has been said
                driver.rollback()
        raise
    return tells


def _literal(value: Any) -> str:
    """Write a value as it stands in a statement."""
    if isinstance(value, UUID):
        return f"'{value.hex}'"
    if isinstance(value, bytes):
        return f"E'\\\\x{value.hex()}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


SECONDS_KEY = "STOKER_SECONDS"
"""Where ``settings_dict`` says how long the client waits for an answer of PostgreSQL."""


def limit_waits(connection: Any, **_: Any) -> None:
    """Give each wait for an answer of PostgreSQL a deadline on this side, too. A pooler or load
    balancer may go on acknowledging packets after the server has gone: TCP notices nothing then,
    and the server's deadlines do not reach us."""
    seconds = connection.settings_dict.get(SECONDS_KEY)
    driver = connection.connection
    if seconds is None or not hasattr(driver, "wait"):
        return
    wait = driver.wait

    def wait_within(generator: Any, *args: Any, **options: Any) -> Any:
        return wait(until(generator, time.monotonic() + seconds), *args, **options)

    def until(generator: Any, end: float) -> Generator[Any, Any, Any]:
        """Pass on what the generator waits for. psycopg reports ten times a second, also when
        nothing has come."""
        try:
            wanted = next(generator)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > end:
                    driver.close()  # a rollback would wait for as long again
                    message = f"PostgreSQL has not answered for {seconds:g} seconds."
                    raise connection.Database.OperationalError(message)
                wanted = generator.send(ready)
        except StopIteration as over:
            return over.value

    driver.wait = wait_within


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
