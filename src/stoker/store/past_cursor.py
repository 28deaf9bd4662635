"""Add one job on PostgreSQL without Django's cursor, which takes several times as long as the
server."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID
from weakref import WeakSet

from django.db.transaction import mark_for_rollback_on_error

from stoker.store.prepared import (
    IDLE,
    KEPT_KEY,
    checked,
    kept_form,
    names_known_to,
    needs_no_cursor,
    not_kept,
    run_kept,
)

PLAIN = re.compile(r"[\w.:/ -]*", re.ASCII)
"""Text without characters that quoting could change, whatever the session's settings."""
BEFORE_NOTICE = 4
"""Number of results of BEGIN, two inserts and COMMIT."""
END = 10
"""libpq's status of the result that follows the last one of a transaction in a pipeline."""

_used: WeakSet[Any] = WeakSet()
"""Connections of the driver that have added a job in a transaction of its own. The next insert of
such a connection is prepared. The first is not, because many connections are opened for one
request, which adds one job."""


class Insert(NamedTuple):
    """The SQL that adds a job, with ``%(name)s`` for each parameter."""

    text: str
    """One or more statements, whose values are written into the text."""
    kept: str
    """One statement with the same effect, to be prepared."""


def send_past_cursor(
    connection: Any, insert: Insert, parameters: Mapping[str, Any], notice: str
) -> bool:
    """Send an insert without Django's cursor, if nothing depends on the cursor.

    In a transaction of its own it is prepared from the second one of a session on, because the
    server takes longer to read and plan it than to run it. In the caller's transaction it is not:
    behind a pooler that the settings do not declare, its error would end that transaction.

    Args:
        connection: Django's connection.
        parameters: values by name.
        notice: a statement to run after the commit. It may fail.

    Returns:
        Whether the notice was sent. It is not sent if the caller's transaction is still open.

    Raises:
        DatabaseError: the statement failed. An open transaction must be rolled back.
    """
    with mark_for_rollback_on_error(connection.alias):
        connection.close_if_health_check_failed()
        cursor_class = getattr(connection.Database, "ClientCursor", None)
        if cursor_class is None or not needs_no_cursor(connection):
            with connection.cursor() as cursor:
                cursor.execute(insert.text, parameters)
            return False
        connection.validate_thread_sharing()
        connection.validate_no_broken_transaction()
        with connection.wrap_database_errors:
            driver = connection.connection
            session = driver.pgconn
            is_idle = session.transaction_status == IDLE and not session.pipeline_status
            is_plain = PLAIN.fullmatch(parameters["task"] + parameters["queue"])
            if driver.autocommit and is_idle and is_plain and _keeps_inserts(connection):
                try:
                    return _send_kept(connection, insert.kept, parameters, notice)
                except not_kept():  # nothing was added
                    connection.settings_dict[KEPT_KEY] = False
            if is_plain and (driver.autocommit or not is_idle):
                written = {name: _literal(value) for name, value in parameters.items()}
                return _send_text(connection, insert.text % written, notice)
            cursor_class(driver).execute(insert.text, parameters)
            return False


def _keeps_inserts(connection: Any) -> bool:
    """Return whether to prepare this insert. Note that the session has added a job."""
    settings = connection.settings_dict
    if settings.get("DISABLE_SERVER_SIDE_CURSORS") or not settings.get(KEPT_KEY, True):
        return False
    driver = connection.connection
    if driver not in _used:
        _used.add(driver)
        return False
    return _has_pipelines()


@cache
def _has_pipelines() -> bool:
    from psycopg import Pipeline

    return Pipeline.is_supported()


def _send_kept(connection: Any, text: str, parameters: Mapping[str, Any], notice: str) -> bool:
    """Run a prepared statement in a transaction of its own, and the notice in another one, sent
    together."""
    driver = connection.connection
    name, command, values = kept_form(text, parameters)
    known = names_known_to(driver)
    try:
        with driver.lock:
            if name in known and not notice:
                run_kept(driver, name, command, values)
            else:
                preparing = None if name in known else command
                for result in _send_together(driver, name, preparing, values, notice):
                    checked(driver.pgconn, result)
                    known.add(name)  # the first result is that of the preparation
    finally:
        if driver.pgconn.transaction_status != IDLE or driver.pgconn.pipeline_status:
            # Interrupted or lost: the next statement would get the answers to this one. A pool
            # would lend an open connection again.
            driver.close()
            connection.close()
    return bool(notice)


def _send_together(
    driver: Any, name: bytes, preparing: bytes | None, values: list[bytes | None], notice: str
) -> list[Any]:
    """Send a prepared statement, and its text before it if the session does not know it yet.
    Return their results."""
    session = driver.pgconn
    session.enter_pipeline_mode()
    if preparing is not None:
        session.send_prepare(name, preparing)
    session.send_query_prepared(name, values)
    session.pipeline_sync()
    if notice:
        session.send_query_params(notice.encode(), [])
        session.pipeline_sync()
    results: list[Any] = driver.wait(_results_of_first(session, 2 if notice else 1))
    if session.transaction_status == IDLE:
        session.exit_pipeline_mode()
    return results


def _results_of_first(session: Any, transactions: int) -> Generator[Any, Any, list[Any]]:
    """Wait until all transactions have ended, or the session has. Return the results of the first
    transaction. The last of them may be the error of its commit.

    Raises:
        OperationalError: the session ended before the first transaction did.
    """
    from psycopg import OperationalError
    from psycopg.generators import execute

    first: list[Any] = []
    ended = 0
    results = yield from execute(session)
    while True:
        for result in results:
            if result.status == END:
                ended += 1
            elif not ended:
                first.append(result)
        if ended == transactions:
            return first
        try:
            results = yield from _next_results(session)
        except OperationalError:
            if ended:  # the job was added, and the pushers poll
                return first
            raise


def _next_results(session: Any) -> Generator[Any, Any, list[Any]]:
    """Wait for further results of a pipeline.

    Raises:
        OperationalError: the session has ended.
    """
    from psycopg import OperationalError
    from psycopg.generators import fetch_many
    from psycopg.pq import ConnStatus

    if session.status != ConnStatus.OK:
        raise OperationalError(session.error_message.decode("utf-8", "replace"))
    results: list[Any] = yield from fetch_many(session)
    return results


def _send_text(connection: Any, sql: str, notice: str) -> bool:
    """Send the text without the driver's cursor. The notice is outside the transaction, because
    PostgreSQL serialises the commits of transactions that notify."""
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
            with suppress(Exception):  # the first error is raised below
                driver.rollback()
        raise
    return tells


def _literal(value: Any) -> str:
    """Return a value as an SQL literal."""
    if isinstance(value, UUID):
        return f"'{value.hex}'"
    if isinstance(value, bytes):
        return f"E'\\\\x{value.hex()}'"
    return f"'{value}'" if isinstance(value, str) else str(value)
