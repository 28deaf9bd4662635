"""Sessions of MariaDB and MySQL: versions and settings of the server, deadlines, transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, InterfaceError, OperationalError
from django.db.backends.signals import connection_created

from stoker.conf import Settings
from stoker.exceptions import PackageTooLarge
from stoker.store.transactions import is_conflict

from .rows import Rows
from .sessions import CHECK_AFTER_SECONDS, idle_seconds, lock_seconds

PLAIN = frozenset({b"SELECT", b"INSERT", b"UPDATE", b"DELETE", b"REPLAC", b"SAVEPO", b"RELEAS"})
"""First six letters of the statements that never begin a transaction."""
OLDEST_MARIADB = "MariaDB", (10, 6)
"""The first version with ``SKIP LOCKED`` and ``JSON_TABLE``."""
OLDEST_MYSQL = "MySQL", (8, 0, 13)
"""The first version whose columns can have expressions as defaults."""
FIRST_WITH_UUIDS = (10, 7)
"""The first version of MariaDB with the type ``uuid``."""
IN_ORDER = ((10, 10, 7), (10, 11, 6), (11, 0, 4), (11, 1, 3), (11, 2, 2))
"""The first version of each old series of MariaDB that sorts and compares ids as Python does: in
the order of time. Earlier versions with the type ``uuid`` store the groups of a UUID in reverse
order (MDEV-29959), or compare them so (MDEV-31926)."""
LOCK_WAIT_TIMEOUT = 1205
"""Error code ER_LOCK_WAIT_TIMEOUT. MariaDB also refuses by it a lock with NOWAIT."""
REFUSED_INSIDE_TRANSACTION = 1568
"""Error code ER_CANT_CHANGE_TX_CHARACTERISTICS."""
REST_BYTES = 1 << 19
"""Number of bytes allowed for a statement besides its value. A dead letter has a message and a
traceback of up to 74,000 characters, which may have 4 bytes each."""
ESCAPED = b"\x00\n\r\x1a\"'\\"
"""Bytes that are escaped, and so sent as two bytes."""
OF_STOKER = "table_schema = DATABASE() AND table_name LIKE 'stoker\\_%%'"
COLUMNS_OF_IDS = (
    "SELECT COUNT(*), MIN(CONCAT(table_name, '.', column_name)), MIN(column_type)"  # noqa: S608 - our own names
    f" FROM information_schema.columns WHERE {OF_STOKER}"
    " AND (column_type = 'char(32)' OR column_type LIKE 'uuid_%%')"
)
"""The columns of ids that are not of the type ``uuid``. Only ids are ``char(32)``."""
OTHER_ENGINES = (
    f"SELECT engine, COUNT(*) FROM information_schema.tables WHERE {OF_STOKER}"  # noqa: S608 - our own names
    " AND engine <> 'InnoDB' GROUP BY engine ORDER BY engine"
)


class MySQLSessions(Rows):
    """Sessions of MariaDB or MySQL."""

    is_supported = True

    @property
    def _is_mariadb(self) -> bool:
        return bool(self.connection.mysql_is_mariadb)

    def why_unusable(self) -> str:
        return self._why_refused_version() or self._why_unusable_ids()

    def _why_refused_version(self) -> str:
        name, oldest = OLDEST_MARIADB if self._is_mariadb else OLDEST_MYSQL
        version: tuple[int, ...] = self.connection.mysql_version
        where = f"The database {self.alias!r} is {name} {_dotted(version)}"
        if version < oldest:
            return f"{where}, and Stoker needs {_dotted(oldest)} or later."
        if self._is_mariadb and _sorts_uuids_wrongly(version):
            return (
                f"{where}, which does not sort the ids of jobs by time: use MariaDB 10.6, or "
                f"{', '.join(map(_dotted, IN_ORDER))} or a later version."
            )
        return ""

    def _why_unusable_ids(self) -> str:
        """Return what is wrong if Django writes ids as ``uuid``, and the columns have the type that
        other servers give them, or that of an earlier version of MariaDB."""
        if not self.connection.features.has_native_uuid_field:
            return ""
        ((count, first, kind),) = self._read(COLUMNS_OF_IDS, [])
        if not count:
            return ""
        return (
            f"The database {self.alias!r} comes from another server or version: {count} columns of "
            f"Stoker's ids have the type {kind}, for example {first}, and Django needs the type "
            "uuid on this server. Change each with ALTER TABLE ... MODIFY ... uuid: UPGRADING.md "
            "has the statements."
        )

    def weaknesses(self) -> list[str]:
        names = "'innodb_rollback_on_timeout', 'binlog_format', 'log_bin', 'sql_mode'"
        shown: Any = self._read(f"SHOW VARIABLES WHERE variable_name IN ({names})", [])
        has = {name.lower(): value.upper() for name, value in shown}
        where, found = f"The database {self.alias!r}", []
        for engine, count in self._read(OTHER_ENGINES, []):
            found.append(
                f"{where} has {count} of Stoker's tables in {engine}, which has no transactions: "
                "change each with ALTER TABLE ... ENGINE=InnoDB."
            )
        if "STRICT_" not in has.get("sql_mode", ""):
            found.append(
                f"{where} shortens values that are too long: add STRICT_TRANS_TABLES to sql_mode."
            )
        if has.get("log_bin") == "ON" and has.get("binlog_format") == "STATEMENT":
            found.append(
                f"{where} refuses the writes of clusters, because they read committed: set "
                "binlog_format to MIXED or ROW."
            )
        if has.get("innodb_rollback_on_timeout") == "ON":
            found.append(
                f"{where} rolls back a whole transaction if one statement waits too long for a "
                "lock: set innodb_rollback_on_timeout to OFF."
            )
        return found

    def call_limits(self, seconds: int) -> dict[str, Any]:
        return dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), seconds)

    @contextmanager
    def atomic_task(self) -> Iterator[None]:
        """Open the transaction of an atomic task. It reads committed, because these servers do not
        refuse a commit that rests on old rows: a job that the task's lock blocks could be
        missed."""
        is_ours = not self.connection.in_atomic_block
        opened = self.deciding() if is_ours else super().atomic_task()
        with opened, self.connection.execute_wrapper(self._execute_in_task):
            yield

    def _execute_in_task(self, execute: Callable[..., Any], *statement: Any) -> Any:
        """Execute a statement of an atomic task. If the server rolls back the whole transaction,
        let Django refuse all further statements, also if the task swallows the error. Otherwise the
        server would execute them in a new transaction, and Stoker would commit that."""
        try:
            return execute(*statement)
        except OperationalError as error:
            if is_conflict(error) or self._was_rolled_back(error):
                self.connection.needs_rollback = True
            raise

    def limit_sessions(
        self, settings: Settings, *, keeps_statements: bool, is_cluster: bool
    ) -> Sequence[str]:
        """Set the deadlines of locks and idle transactions. MySQL can only end a session that is
        idle, whether it is in a transaction or not."""
        if not is_cluster:
            return ()
        silent_seconds = max(round(settings.lease_seconds / 3), round(2 * CHECK_AFTER_SECONDS))
        statement = (
            f"SET SESSION innodb_lock_wait_timeout = {max(1, round(lock_seconds(settings)))}"
            f" /*M!100300 , idle_transaction_timeout = {idle_seconds(settings)} */"
            f" /*!80000 , wait_timeout = {silent_seconds} */"
        )

        def limit(connection: Any, **_: Any) -> None:
            if connection.alias == self.alias:
                with connection.cursor() as cursor:
                    cursor.execute(statement)

        connection_created.connect(limit, weak=False, dispatch_uid=f"stoker.limits:{self.alias}")
        return ()

    @contextmanager
    def limit_lock_waits(self, seconds: float) -> Iterator[None]:
        """Limit the waits of the session, and restore its own limit. Django's cursor would refuse
        that after an error."""
        raw, limit = self.connection.connection, "@@SESSION.innodb_lock_wait_timeout"
        raw.query(f"SET @stoker_lock_wait = {limit}, {limit} = {max(1, round(seconds))}")
        try:
            yield
        finally:
            with suppress(Exception):  # the connection may be lost
                raw.query(f"SET {limit} = @stoker_lock_wait")

    def watch_transactions(self, connection: Any) -> None:
        """Mark mysqlclient's connection when a statement is sent that may begin a transaction. The
        driver's cursors send all statements by ``query``."""
        raw = connection.connection
        send: Callable[[bytes | str], None] = raw.query

        def query(text: bytes | str) -> None:
            start = text[:80].lstrip()[:6].upper()
            if (start.encode() if isinstance(start, str) else bytes(start)) not in PLAIN:
                raw.stoker_may_be_open = True
            send(text)

        raw.query = query

    def is_in_transaction(self, connection: Any) -> bool:
        """Ask the server, but only if a statement was sent that may have begun a transaction."""
        raw = connection.connection
        if raw is None:
            return False
        try:
            may_be_open = getattr(raw, "stoker_may_be_open", False) or not raw.get_autocommit()
        except connection.Database.OperationalError:  # it is closed
            return False
        return may_be_open and _ask_server(connection)

    def refuse_too_large(self, value: bytes) -> None:
        """Refuse a value that does not fit into ``max_allowed_packet``. The server would close the
        connection, and the client would report that the server has gone away. Nothing is checked on
        an event loop, where this call would block."""
        try:
            ((most_bytes,),) = self._read("SELECT @@max_allowed_packet", [])
        except (DatabaseError, InterfaceError, SynchronousOnlyOperation):
            return  # the error will come again when the value is recorded
        sent_bytes = len(value) + sum(map(value.count, ESCAPED))
        if sent_bytes + REST_BYTES > most_bytes:
            raise PackageTooLarge(
                f"The value takes {sent_bytes:,} bytes in a statement, and max_allowed_packet of "
                f"the database {self.alias!r} allows {most_bytes:,}: keep it in a file or a table "
                "of your own and pass or return where it is, or raise max_allowed_packet."
            )

    def _was_rolled_back(self, refusal: OperationalError) -> bool:
        if refusal.args[0] != LOCK_WAIT_TIMEOUT:
            return False
        ((is_on,),) = self._read("SELECT @@innodb_rollback_on_timeout", [])
        return bool(is_on)


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def _sorts_uuids_wrongly(version: tuple[int, ...]) -> bool:
    is_later = any(version[:2] == first[:2] and version >= first for first in IN_ORDER)
    return FIRST_WITH_UUIDS <= version[:2] <= IN_ORDER[-1][:2] and not is_later


def _ask_server(connection: Any) -> bool:
    """Ask the server whether a transaction is open. Return True if it cannot answer, because the
    state of the transaction is then unknown."""
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
    """Return whether MySQL refuses a statement that is not allowed inside a transaction. MySQL has
    no variable for this."""
    try:
        raw.query("SET TRANSACTION READ WRITE")
    except Exception as error:
        if error.args and error.args[0] == REFUSED_INSIDE_TRANSACTION:
            return True
        raise
    return False
