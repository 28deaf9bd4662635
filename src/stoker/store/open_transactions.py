"""Ask a database's driver whether its session is inside a transaction.

Django does not know of a transaction that a cursor began with a ``BEGIN`` of its own. What the next
job writes there is committed only if somebody commits it, and on SQLite nobody else can write.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

PLAIN = frozenset({b"SELECT", b"INSERT", b"UPDATE", b"DELETE", b"REPLAC", b"SAVEPO", b"RELEAS"})
"""The first six letters of statements that begin no transaction on MariaDB and MySQL."""
IDLE, UNKNOWN = 0, 4
"""As libpq numbers the states of a session: outside of a transaction; its connection is broken."""


def watch(connection: Any) -> None:
    """Prepare a connection that was just opened, so that ``may_be_open`` can answer for it."""
    if connection.vendor == "mysql":
        _note_statements(connection.connection)


def may_be_open(connection: Any) -> bool:
    """Return False if the session is certainly outside of a transaction. Needs no round trip, and
    another thread than the connection's may ask."""
    raw = connection.connection
    return raw is not None and _STATES.get(connection.vendor, _unknown)(raw)


def is_open(connection: Any) -> bool:
    """Return whether the session is inside a transaction. MariaDB and MySQL are asked, if a
    statement was sent that may have begun one; for others their driver knows."""
    if not may_be_open(connection):
        return False
    return connection.vendor != "mysql" or _ask_server(connection)


def roll_back(connection: Any) -> None:
    """Roll back and close a connection, whatever Django believes about it. It is opened anew when
    somebody uses it."""
    connection.in_atomic_block = connection.closed_in_transaction = False
    connection.savepoint_ids, connection.atomic_blocks, connection.run_on_commit = [], [], []
    raw = connection.connection
    try:
        connection.rollback()
        connection.close()
    except Exception:  # noqa: BLE001 - whatever the driver says, it is gone
        connection.connection = None
        with suppress(Exception):
            raw.close()


def _of_postgresql(raw: Any) -> bool:
    return raw.info.transaction_status not in (IDLE, UNKNOWN)


def _of_sqlite(raw: Any) -> bool:
    return bool(raw.in_transaction)


def _of_mysql(raw: Any) -> bool:
    return getattr(raw, "stoker_may_be_open", False) or not raw.get_autocommit()


def _unknown(_raw: Any) -> bool:
    return False


_STATES: dict[str, Callable[[Any], bool]] = {
    "postgresql": _of_postgresql,
    "sqlite": _of_sqlite,
    "mysql": _of_mysql,
}


def _note_statements(raw: Any) -> None:
    """Mark a connection of mysqlclient when a statement is sent that may begin a transaction. Its
    cursors send all of theirs by this method."""
    send = raw.query

    def query(text: bytes | str) -> None:
        start = text[:80].lstrip()[:6].upper()
        if (start.encode() if isinstance(start, str) else bytes(start)) not in PLAIN:
            raw.stoker_may_be_open = True
        send(text)

    raw.query = query


def _ask_server(connection: Any) -> bool:
    """Ask MariaDB or MySQL. If it cannot answer, nobody knows what became of the transaction."""
    raw = connection.connection
    try:
        if connection.mysql_is_mariadb:
            is_open = _fetch_number(raw, "SELECT @@in_transaction") != 0
        else:
            is_open = _refuses_characteristics(raw)
    except Exception:  # noqa: BLE001 - a connection that fails here cannot be trusted
        return True
    raw.stoker_may_be_open = is_open
    return is_open


def _fetch_number(raw: Any, statement: str) -> int:
    with raw.cursor() as cursor:
        cursor.execute(statement)
        (number,) = cursor.fetchone()
    return int(number)


def _refuses_characteristics(raw: Any) -> bool:
    """MySQL has no variable that says so, but refuses this statement inside a transaction."""
    refused_inside_transaction = 1568
    try:
        raw.query("SET TRANSACTION READ WRITE")
    except Exception as error:
        if error.args and error.args[0] == refused_inside_transaction:
            return True
        raise
    return False
