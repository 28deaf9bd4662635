"""PostgreSQL without Django's cursor: prepared statements, short statements, session defaults."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from itertools import chain
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import DataError, OperationalError, connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from stoker.store.written import array_literal

PLANNING = (
    "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_hashjoin=off "
    "-c enable_mergejoin=off -c jit=off"
)
"""Session options for prepared statements. A plan that was made while a table was empty is still
used when the table is large, so it must always use an index."""
NAME = re.compile(r"%\((\w+)\)s")
BINARY, COMMAND, TUPLES, IDLE = 1, 1, 2, 0
"""libpq's constants: binary format, two result statuses, and the idle transaction status."""

KEPT_KEY = "STOKER_KEEPS_STATEMENTS"
"""Key in ``settings_dict``: True for connections that keep the statements of a cluster prepared,
False after an error of a prepared statement. Without it, the insert of a single job is prepared."""
_known: WeakKeyDictionary[Any, set[bytes]] = WeakKeyDictionary()
"""Connection -> names of the statements prepared in its session."""
_isolation: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""Connection -> the default isolation level of its session."""


def keep_statements(connection: Any) -> None:
    """Use prepared statements on connections with these settings from now on."""
    connection.settings_dict[KEPT_KEY] = True


def default_isolation(connection: Any) -> str:
    """Return the isolation level of transactions that do not name one. It is that of the server,
    the database or the role, and Django does not know it. Each session is asked once."""
    connection.ensure_connection()
    driver = connection.connection
    if driver not in _isolation:
        with connection.wrap_database_errors, driver.cursor() as cursor:
            cursor.execute("SHOW default_transaction_isolation")
            _isolation[driver] = str(cursor.fetchone()[0])
    return _isolation[driver]


def needs_no_cursor(connection: Any, *known: Any) -> bool:
    """Return whether a statement may be sent without Django's cursor.

    It may not if something else observes or replaces the cursor: a query log, an execution wrapper,
    or a cursor class that chooses a tenant's schema or forbids statements. Opens the connection,
    unless a wrapper forbids queries.

    Args:
        known: execution wrappers that may be bypassed.
    """
    if connection.execute_wrappers != [*known] or connection.queries_logged:
        return False
    for name in ("cursor", "_cursor"):
        function = getattr(getattr(connection, name), "__func__", None)
        if function is not getattr(BaseDatabaseWrapper, name):
            return False
    if connection.connection is None:
        connection.ensure_connection()
        return needs_no_cursor(connection, *known)  # receivers of its signal may have added one
    return True


def are_kept(connection: Any) -> bool:
    """Return whether prepared statements are used on this connection now."""
    if not connection.settings_dict.get(KEPT_KEY) or not needs_no_cursor(connection):
        return False
    driver = connection.connection
    begins_plainly = driver.isolation_level is driver.read_only is driver.deferrable is None
    return driver.autocommit or begins_plainly


def fetch_kept(connection: Any, text: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Run a prepared statement and return its rows. Requires that ``are_kept`` is true.

    Args:
        connection: Django's connection.
        text: SQL with ``%(name)s`` for each parameter.
        parameters: numbers, str, bytes, UUIDs or None; lists become arrays.

    Raises:
        DatabaseError: the statement failed.
    """
    from psycopg.adapt import Transformer

    name, command, values = kept_form(text, parameters)
    with connection.wrap_database_errors:
        driver = connection.connection
        try:
            result = run_kept(driver, name, command, values)
        except not_kept() as error:
            connection.settings_dict[KEPT_KEY] = False
            raise OperationalError(str(error)) from error
        rows = Transformer(driver)
        rows.set_pgresult(result)
        found: list[tuple[Any, ...]] = rows.load_rows(0, result.ntuples, tuple)
        return found


def run_kept(driver: Any, name: bytes, command: bytes, values: list[bytes | None]) -> Any:
    """Run the statement in the open transaction, or begin one if the session does not autocommit.

    The driver waits for the answers, because libpq's own waiting functions have no deadline.
    """
    session = driver.pgconn
    if not driver.autocommit and session.transaction_status == IDLE:
        session.send_query(b"BEGIN")
        _answer(driver)
    known = names_known_to(driver)
    if name not in known:
        session.send_prepare(name, command)
        _answer(driver)
        known.add(name)
    session.send_query_prepared(name, values, result_format=BINARY)
    return _answer(driver)


def names_known_to(driver: Any) -> set[bytes]:
    """Return the names of the statements that are prepared in the session."""
    return _known.setdefault(driver, set())


def _answer(driver: Any) -> Any:
    from psycopg.generators import execute

    return checked(driver.pgconn, driver.wait(execute(driver.pgconn))[-1])


def checked(session: Any, result: Any) -> Any:
    """Return the result of a statement. If it failed, raise the error that a cursor would raise."""
    if result.status in (COMMAND, TUPLES):
        return result
    from psycopg import OperationalError as Lost
    from psycopg.errors import error_from_result
    from psycopg.pq import ConnStatus

    if session.status != ConnStatus.OK:
        raise Lost(session.error_message.decode("utf-8", "replace"))
    raise error_from_result(result)


@cache
def not_kept() -> tuple[type[Exception], ...]:
    """Return the errors of a session that does not keep statements, as behind a pooler."""
    from psycopg import errors

    return (
        errors.InvalidSqlStatementName,
        errors.DuplicatePreparedStatement,
        errors.FeatureNotSupported,
    )


def kept_form(text: str, parameters: Mapping[str, Any]) -> tuple[bytes, bytes, list[bytes | None]]:
    """Return a name for the statement, the statement with numbers for its parameters, and their
    values in the order of the numbers.

    Raises:
        DataError: a value contains a NUL character.
    """
    name, command, order = _numbered(text)
    return name, command, [_written(parameters[one]) for one in order]


@cache
def _numbered(text: str) -> tuple[bytes, bytes, tuple[str, ...]]:
    """Return a name for the statement, the statement with ``$1`` and so on for its parameters, and
    their names in order."""
    order = tuple(dict.fromkeys(NAME.findall(text)))
    command = NAME.sub(lambda found: f"${order.index(found[1]) + 1}", text).replace("%%", "%")
    digest = blake2b(command.encode(), digest_size=12).hexdigest()
    return f"stoker_{digest}".encode(), command.encode(), order


def _written(value: Any) -> bytes | None:
    """Return a parameter in PostgreSQL's text format."""
    if value is None:
        return None
    if isinstance(value, UUID):
        return value.hex.encode()
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    written = (array_literal(value) if isinstance(value, list) else str(value)).encode()
    if b"\0" in written:
        raise DataError("PostgreSQL cannot store text that contains a NUL character.")
    return written


SECONDS_KEY = "STOKER_SECONDS"
"""Key in ``settings_dict`` for the client's deadline, in seconds."""


def limit_waits(connection: Any, **_: Any) -> None:
    """Set a client-side deadline for each wait for an answer of PostgreSQL.

    A pooler or load balancer may acknowledge packets after the server has gone. TCP then detects
    nothing, and the server's own deadlines do not reach the client.
    """
    seconds = connection.settings_dict.get(SECONDS_KEY)
    driver = connection.connection
    if seconds is None or not hasattr(driver, "wait"):
        return
    wait = driver.wait

    def wait_within(generator: Any, *args: Any, **options: Any) -> Any:
        return wait(until(generator, time.monotonic() + seconds), *args, **options)

    def until(generator: Any, end: float) -> Generator[Any, Any, Any]:
        """Wrap psycopg's generator. psycopg resumes it ten times a second, even if nothing has
        arrived."""
        try:
            wanted = next(generator)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > end:
                    driver.close()  # a rollback would wait just as long again
                    message = f"PostgreSQL has not answered for {seconds:g} seconds."
                    raise connection.Database.OperationalError(message)
                wanted = generator.send(ready)
        except StopIteration as over:
            return over.value

    driver.wait = wait_within


ALONE = ("VACUUM", "LISTEN")
"""Statements that are forbidden or have no effect inside a transaction."""


LIMITS_KEY = "STOKER_LIMITS"
"""Key in ``settings_dict`` for the settings of each transaction: name -> milliseconds."""


def limit_transactions(connection: Any, limits: Mapping[str, int]) -> None:
    """Let connections that are opened with these settings set such limits, in milliseconds, again
    in each transaction.

    A pooler like PgBouncer lends a server session for one transaction only, so a session's settings
    would affect its other clients, and it may refuse them.
    """
    former = connection.settings_dict.get(LIMITS_KEY, {})
    connection.settings_dict[LIMITS_KEY] = {**former, **limits}
    connection_created.connect(_wrap_transactions, dispatch_uid="stoker.limit_transactions")


def _wrap_transactions(connection: Any, **_: Any) -> None:
    wrappers = connection.execute_wrappers
    if LIMITS_KEY in connection.settings_dict and _limit_transaction not in wrappers:
        wrappers.append(_limit_transaction)


def _limit_transaction(
    execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Run a statement. If it is the first one of its transaction, set the limits before it."""
    connection = context["connection"]
    limits = connection.settings_dict.get(LIMITS_KEY)
    status = connection.connection.info.transaction_status
    if limits is None or status != IDLE or str(sql).startswith(ALONE):
        return execute(sql, params, many, context)
    isolation = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
    settings_sql = "; ".join([isolation, *(f"SET LOCAL {one} = {limits[one]}" for one in limits)])
    if not connection.get_autocommit():
        _send(connection, settings_sql)
        return execute(sql, params, many, context)
    _send(connection, f"BEGIN; {settings_sql}")
    try:
        result = execute(sql, params, many, context)
        _send(connection, "COMMIT")
    except BaseException:
        with suppress(Exception):  # the connection is lost
            _send(connection, "ROLLBACK")
        raise
    return result


def _send(connection: Any, text: str) -> None:
    """Send statements past Django's wrappers, and raise Django's errors."""
    with connection.wrap_database_errors, connection.connection.cursor() as cursor:
        cursor.execute(text)


class Compiled:
    """A query whose SQL is compiled once. An idle cluster runs it twice a second, and compiling
    takes longer than sending. Values are returned as the driver gives them.

    Args:
        rows: the query, with ``values_list``. Several queries with the same columns are sent as
            one statement, and all rows come in any order.
    """

    def __init__(self, *rows: models.QuerySet[Any, Any]) -> None:
        self._rows = rows
        self._alias = rows[0].db
        self._made: tuple[str, tuple[Any, ...]] | None = None

    def fetch(self) -> list[tuple[Any, ...]]:
        """Run the query and return its rows.

        Raises:
            DatabaseError: the query failed.
        """
        if self._made is None:
            self._made = self._compile()
        with connections[self._alias].cursor() as cursor:
            cursor.execute(*self._made)
            found: list[tuple[Any, ...]] = list(cursor.fetchall())
            return found

    def _compile(self) -> tuple[str, tuple[Any, ...]]:
        parts: list[tuple[str, tuple[Any, ...]]] = [
            one.query.get_compiler(self._alias).as_sql() for one in self._rows
        ]
        if len(parts) == 1:
            return parts[0]
        text = " UNION ALL ".join(
            f"SELECT * FROM ({part}) part_{number}"  # noqa: S608 - compiled by Django
            for number, (part, _) in enumerate(parts)
        )
        return text, tuple(chain.from_iterable(parameters for _, parameters in parts))


def any_of(rows: models.QuerySet[Any, Any]) -> Compiled:
    """Return a query for the key of one of these rows. It finds none if there are no rows."""
    return Compiled(rows.values_list("pk")[:1])
