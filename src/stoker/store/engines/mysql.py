"""MariaDB and MySQL: pass keys as a JSON list and join the table to it.

With other forms of key lists these databases may read a whole table, and lock or wait for rows that
are not in the list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, InterfaceError, OperationalError, models
from django.db.backends.signals import connection_created
from django.db.models.lookups import Exact

from stoker.conf import Settings
from stoker.exceptions import PackageTooLarge
from stoker.store.transactions import is_conflict
from stoker.store.written import NOW_ON_MYSQL, Written, as_uuid, set_clause, statement

from .base import Engine
from .sessions import CHECK_AFTER_SECONDS, LARGE_BYTES, idle_seconds, lock_seconds

if TYPE_CHECKING:
    from stoker.models.blocked import BlockedLine
    from stoker.models.job import Message
    from stoker.models.unique_key import Condition, Taking

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
LOCKED_BY_ANOTHER = {LOCK_WAIT_TIMEOUT, 3572}
"""Error codes: ER_LOCK_WAIT_TIMEOUT of MariaDB, ER_LOCK_NOWAIT of MySQL."""
WANTED = "JSON_TABLE(%s, '$[*]' COLUMNS (id CHAR(36) CHARACTER SET ascii PATH '$')) AS wanted"
"""A list of keys as a table. It is ASCII, so that it can be compared with a column of any
collation."""

LISTS = {
    "held": WANTED.replace("%s", "%(held)s").replace("wanted", "held"),
    "sequences": WANTED.replace("%s", "%(sequences)s").replace("wanted", "sequence"),
    "lines": "JSON_TABLE(%(lines)s, '$[*]' COLUMNS (id CHAR(36) CHARACTER SET ascii PATH '$[0]',"
    " number INT PATH '$[1]')) AS line",
    "join": "STRAIGHT_JOIN",
    "holders_index": "FORCE INDEX (stoker_need_holders)",
    "order_index": "FORCE INDEX (stoker_need_order)",
    "line_index": "FORCE INDEX (stoker_blocked_line)",
}
"""Placeholder -> text, for guard_state.sql."""
NO_LIMIT_ON_MARIADB = "SET STATEMENT max_recursive_iterations = 4294967295 FOR "
NO_LIMIT_ON_MYSQL = "/*+ SET_VAR(cte_max_recursion_depth = 4294967295) */ "


class MySQL(Engine):
    """MariaDB or MySQL."""

    is_supported = True
    now_sql = NOW_ON_MYSQL

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
        if len(value) < LARGE_BYTES:
            return
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

    # -- packages ---------------------------------------------------------------------------------

    def insert_jobs(self, jobs: Sequence[Message]) -> set[UUID]:
        for job in jobs:
            self.refuse_too_large(job.package)
        return super().insert_jobs(jobs)

    def insert_fresh(self, job: Message) -> None:
        self.refuse_too_large(job.package)
        super().insert_fresh(job)

    # -- statements -------------------------------------------------------------------------------

    def fetch(self, name: str, parameters: Any, **words: str) -> list[tuple[Any, ...]]:
        """Let a recursive statement return any number of rows. By default MariaDB ends it after
        1,000 steps without an error, and MySQL with one."""
        text = statement(name, **words)
        if text.startswith("WITH RECURSIVE"):
            if self._is_mariadb:
                text = NO_LIMIT_ON_MARIADB + text
            else:
                text = text.replace("\nSELECT ", f"\nSELECT {NO_LIMIT_ON_MYSQL}", 1)
        return self._read(text, parameters)

    def is_exactly(self, field: str, text: str) -> models.Q:
        """Let an index find the texts that are the same for the collation, and compare those as
        bytes."""
        in_bytes = models.Func(
            models.F(field),
            template="CAST(CONVERT(%(expressions)s USING utf8mb4) AS BINARY)",
            output_field=models.BinaryField(),
        )
        return super().is_exactly(field, text) & models.Q(Exact(in_bytes, text.encode()))

    def lock_by_key(
        self, rows: models.QuerySet[Any], keys: Collection[UUID], *names: str, waits: bool = True
    ) -> list[Any]:
        lock = self._lock("UPDATE") + ("" if waits else " SKIP LOCKED")
        meta = rows.model._meta
        fields = [meta.pk if name == "pk" else meta.get_field(name) for name in names]
        if fields:
            fields.append(meta.pk)  # else Django cannot make objects
        read = [field.column for field in fields or meta.concrete_fields]
        text = self._hold_text("hold_by_key", rows, list(dict.fromkeys(read)), lock)
        return list(rows.raw(text, [self._listed(keys)]))

    def hold(
        self, rows: models.QuerySet[Any], names: Sequence[str], keys: Collection[UUID], lock: str
    ) -> list[tuple[Any, ...]]:
        text = self._hold_text("hold_by_key", rows, names, self._lock(lock))
        return self._read(text, [self._listed(keys)])

    def _lock(self, lock: str) -> str:
        """Return the lock clause. On MySQL it must exclude the rows of the JSON list; MariaDB has
        no syntax for that and does not need it."""
        if self._is_mariadb:
            return "LOCK IN SHARE MODE" if lock == "SHARE" else "FOR UPDATE"
        return f"FOR {lock} OF narrow"

    def keys_being_made(self, keys: models.QuerySet[Any], key_ids: Collection[UUID]) -> set[UUID]:
        return {key_id for key_id in key_ids if not self._is_free(keys, key_id)}

    def _is_free(self, rows: models.QuerySet[Any], key: UUID) -> bool:
        """Lock a row, if there is one. Return False if another transaction has it, or is inserting
        it.

        Raises:
            OperationalError: with ``innodb_rollback_on_timeout``, MariaDB has rolled back the whole
                transaction because of that.
        """
        try:
            rows.filter(pk=key).select_for_update(nowait=True).values_list("pk").first()
        except OperationalError as error:
            if error.args[0] not in LOCKED_BY_ANOTHER or self._was_rolled_back(error):
                raise
            return False
        return True

    among_others = "({})"

    def _line_words(self, index: str) -> dict[str, str]:
        """Force the index, whose entries already show that another transaction has locked a row.

        Otherwise a deadlock is possible: a transaction that uses the index locks the entry, and
        then waits for the row of a transaction that found it by the primary key. The latter waits
        for the entry when it deletes the row.
        """
        return {"index": f"FORCE INDEX ({index})", "lock": "FOR UPDATE SKIP LOCKED"}

    def find_each(
        self, name: str, keys: Collection[UUID], index: str = "", *before: Any
    ) -> list[tuple[Any, ...]]:
        words = {"wanted": WANTED, "join": "STRAIGHT_JOIN", "index": f"FORCE INDEX ({index})"}
        return self.fetch(name, [*before, self._listed(keys)], now=self.now_sql, **words)

    def delete_by_key(self, rows: models.QuerySet[Any], keys: Collection[UUID]) -> int:
        return self._delete_by(rows, keys, rows.model._meta.pk.column, "PRIMARY")

    def delete_of_jobs(self, rows: models.QuerySet[Any], job_ids: Collection[UUID]) -> None:
        meta = rows.model._meta
        there = [one for one in (*meta.constraints, *meta.indexes) if one.fields[0] == "job_id"]
        self._delete_by(rows, job_ids, "job_id", there[0].name)

    def _delete_by(
        self, rows: models.QuerySet[Any], keys: Collection[UUID], column: str, index: str
    ) -> int:
        if not keys:
            return 0
        quote = self.connection.ops.quote_name
        table = quote(rows.model._meta.db_table)
        words = {"table": table, "column": quote(column), "index": quote(index)}
        return self._write(statement("delete_by_key", **words), [self._listed(keys)])

    def update_by_key(
        self, rows: models.QuerySet[Any], keys: Collection[UUID], **values: Any
    ) -> None:
        if keys:
            assignments, prepared = set_clause(rows.model, values, self.connection)
            text = self.text_about("update_by_key", rows, assignments=assignments)
            self._write(text, [self._listed(keys), *prepared])

    def _update_each(
        self, rows: models.QuerySet[Any], numbers: Mapping[UUID, int], **words: str
    ) -> None:
        write = Written(self.connection).id
        listed = json.dumps([(write(key), numbers[key]) for key in sorted(numbers)], default=str)
        self._write(self.text_about("update_each_by_key", rows, **words), [listed])

    @property
    def returns_upserts(self) -> bool:  # type: ignore[override] # depends on the server
        return self._is_mariadb

    def _guard_state(
        self, held: Collection[UUID], sequences: Collection[UUID], lines: Collection[BlockedLine]
    ) -> Sequence[tuple[Any, ...]]:
        """Pass each queue as a parameter, because a list of them could not be compared with a
        column of any collation."""
        write = Written(self.connection).id
        queues = sorted({line.queue for line in lines})
        names = {f"queue_{number}": queue for number, queue in enumerate(queues)}
        listed = [(write(line.key_id), 1 + queues.index(line.queue)) for line in sorted(lines)]
        parameters = {
            "held": self._listed(held),
            "sequences": self._listed(sequences),
            "lines": json.dumps(listed, default=str),
            **names,
        }
        marks = "".join(f", %({name})s" for name in names) or ", ''"
        return self.fetch(
            "guard_state",
            parameters,
            **LISTS,
            queue=f"ELT(line.number{marks})",
            now=self.now_sql,
        )

    new_value = ("VALUES(", ")")

    def on_conflict(self, columns: str) -> str:
        return "ON DUPLICATE KEY UPDATE"

    def add_waits(self, values: Sequence[Sequence[Any]], *more: str) -> None:
        """Insert or change rows by their primary keys.

        An INSERT that meets a row in the unique index locks the gap before it until the end of the
        transaction, also at READ COMMITTED. Claims and records of other jobs would have to wait.
        """
        job_ids = {as_uuid(value[0]) for value in values}
        found = self.find_each("waits_of_jobs", job_ids, "stoker_wait_once")
        known = {(as_uuid(job_id), *cause): key for key, job_id, *cause in found}
        rows = [(*value, known.get((as_uuid(value[0]), *value[1:4]))) for value in values]
        super().add_waits(rows, *more, "id")

    def take_new_keys(self, takings: Sequence[Taking]) -> bool:
        """Ask for exclusive locks before the INSERT, which waits with shared ones: if the other
        transaction rolls back, all that wait would get those, and deadlock. At REPEATABLE READ,
        exclusive locks would do the same."""
        if self.sees_later_commits(self.connection):
            words = {"columns": "narrow.key_id", "table": "stoker_unique", "key": "key_id"}
            text = statement("hold_by_key", **words, lock=self._lock("UPDATE"))
            if self._read(text, [self._listed(one.key_id for one in takings)]):
                return False
        return super().take_new_keys(takings)

    def take_over_keys(
        self, keys: models.QuerySet[Any], takings: Sequence[Taking], condition: Condition
    ) -> bool:
        """Lock the keys, and check the condition in Python.

        An UPDATE with subqueries would lock the rows that these read: rows of jobs, whose end would
        then have to wait.
        """
        key_ids = [one.key_id for one in takings]
        self.lock_by_key(keys, key_ids, "key_id")
        seen = keys.look(key_ids)[1]  # type: ignore[attr-defined] # of UniqueKeyQuerySet
        met = [one for one in takings if one.key_id in seen and condition.is_met(seen[one.key_id])]
        write = Written(self.connection).id
        listed = json.dumps(met, default=lambda key: str(write(key)))
        return self._write(statement("unique_take_over_by_key"), [listed]) == len(takings)

    def _listed(self, keys: Iterable[UUID]) -> str:
        """Return the keys as a sorted JSON list, in the form of the database's columns."""
        write = Written(self.connection).id
        return json.dumps([write(key) for key in sorted(keys)], default=str)


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
            raw.query("SELECT @@in_transaction")
            is_open = int(raw.store_result().fetch_row()[0][0]) != 0
        else:
            is_open = _refuses_characteristics(raw)
    except Exception:  # noqa: BLE001 - a connection that fails here cannot be trusted
        return True
    raw.stoker_may_be_open = is_open
    return is_open


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
