"""SQLite as a queue for several processes.

Options given in ``DATABASES`` are not changed. In-memory databases are not changed either, because
no other process sees them.

``synchronous`` stays FULL, so every commit waits for the disk. With NORMAL, a power failure could
lose committed jobs.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import UUID

from django.db import OperationalError, models, transaction
from django.db.backends.signals import connection_created
from django.db.models.expressions import RawSQL

from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable
from stoker.signals import tell
from stoker.store.prepared import needs_no_cursor
from stoker.store.wake import DataVersion, Wake
from stoker.store.written import NOW_ON_SQLITE, hexes
from stoker.values.ids import id_of

from .base import PLACE, Engine
from .sessions import files_of

if TYPE_CHECKING:
    from stoker.models.blocked import BlockedLine
    from stoker.models.claimed import Claim, Leasing
    from stoker.models.job import Message

T = TypeVar("T")

BUSY_MILLISECONDS = 20_000
LARGEST_WAL_BYTES = 1 << 26
"""Size to which SQLite shortens the file with the WAL after a checkpoint. Otherwise the file keeps
the largest size that it ever had."""
WRITER_MODES = ("IMMEDIATE", "EXCLUSIVE")
"""Modes in which a transaction begins as a writer."""
READ_ONLY = {("mode", "ro"), ("immutable", "1")}
"""Parameters of a ``file:`` URI that make its connections read-only."""
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.0004, 0.01
"""Pauses between attempts to become the writer."""
BUSY = 5
"""SQLITE_BUSY. Its extended codes have the same lowest byte."""
WRITES = ("INSERT", "UPDATE", "DELETE")
WANTED = "(SELECT value AS id FROM json_each(%s)) AS wanted"
"""A JSON list of keys as a table."""
LISTS = {
    "held": WANTED.replace("%s", "%(held)s").replace("wanted", "held"),
    "sequences": WANTED.replace("%s", "%(sequences)s").replace("wanted", "sequence"),
    "lines": "(SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS queue"
    " FROM json_each(%(lines)s)) AS line",
    "queue": "line.queue",
    "join": "CROSS JOIN",
    **dict.fromkeys(("holders_index", "order_index", "line_index"), ""),
}
"""Placeholder -> text, for guard_state.sql."""
JOB_ID, GUARDS, RANK_AND_JOB_ID = itemgetter(0), itemgetter(5), itemgetter(2, 0)
"""Access to columns of a ``PLACE`` row."""


class SQLite(Engine):
    """SQLite 3.35 or later.

    Keys are passed as a JSON list, because SQLite may allow only a thousand parameters. No row
    locks are needed, because only one transaction writes at a time.
    """

    is_supported = sqlite3.sqlite_version_info >= (3, 35)
    has_isolation_levels = False
    has_one_writer = True
    now_sql = NOW_ON_SQLITE

    # -- connections ------------------------------------------------------------------------------

    def tune(self, connection: Any) -> None:
        """Begin every transaction as a writer, use WAL so that readers and writers do not block one
        another, and set a busy time-out."""
        if connection.is_in_memory_db():
            return
        options = connection.settings_dict["OPTIONS"]
        said = str(options.get("init_command") or "").lower()
        # A transaction that reads first and then writes cannot wait for another writer: SQLite
        # refuses it at once, with "database is locked". One that begins as a writer can.
        if "transaction_mode" not in options:
            connection.transaction_mode = "IMMEDIATE"
            connection._start_transaction_under_autocommit = partial(_begin, connection)
            if _write_alone not in connection.execute_wrappers:
                connection.execute_wrappers.insert(0, _write_alone)
        if "timeout" not in options and "busy_timeout" not in said:
            _run(connection, f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
        if "journal_mode" not in said and _run(connection, "PRAGMA journal_mode") != "wal":
            _run(connection, "PRAGMA journal_mode = WAL")
        if "journal_size_limit" not in said:
            _run(connection, f"PRAGMA journal_size_limit = {LARGEST_WAL_BYTES}")

    def needs_tuning(self, options: Mapping[str, Any]) -> bool:
        said = str(options.get("init_command") or "").lower()
        mode = str(options.get("transaction_mode") or "").upper()
        return "journal_mode" not in said or mode not in WRITER_MODES

    @property
    def is_private(self) -> bool:
        return bool(self.connection.is_in_memory_db())

    @property
    def file(self) -> Path | None:
        if self.connection.is_in_memory_db():
            return None
        name = str(self.connection.settings_dict["NAME"])
        if name.startswith("file:"):
            name = unquote(urlsplit(name).path)
        return Path(name).resolve()

    @property
    def is_read_only(self) -> bool:
        return _is_read_only(self.connection)

    def tune_outbox(self, connection: Any, table: str) -> None:
        if _is_read_only(connection):
            return
        found = connection.connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table])
        if found.fetchone() is not None:
            self.tune(connection)

    def limit_sessions(
        self, settings: Settings, *, keeps_statements: bool, is_cluster: bool
    ) -> Sequence[str]:
        """Have each new connection remember its file, so that a cluster notices if the file is
        deleted or replaced. SQLite would go on with the old file without an error."""
        if is_cluster and not self.is_private:

            def note(connection: Any, **_: Any) -> None:
                if connection.alias == self.alias and self.file is not None:
                    connection.stoker_file = self.file, _number_of(self.file)

            connection_created.connect(note, weak=False, dispatch_uid=f"stoker.file:{self.alias}")
            files_of[self.alias] = self._close_if_replaced
        return ()

    def check_connection(self) -> None:
        self._close_if_replaced()
        super().check_connection()

    def _close_if_replaced(self) -> None:
        """Close this thread's connection if the file is not the one that was opened.

        Raises:
            BrokerUnavailable: the file does not exist, and a new connection would create it, or it
                cannot be looked up.
        """
        connection = self.connection
        if connection.in_atomic_block or not hasattr(connection, "stoker_file"):
            return
        file, opened = connection.stoker_file
        present = _number_of(file)
        if present == opened:
            return
        if connection.connection is not None:
            connection.close()
            tell("database_replaced", database=self.alias, file=str(file))
        if present is None:
            raise BrokerUnavailable(f"The file {file} of the database {self.alias!r} is gone.")

    def limit_calls(self, connection: Any, seconds: float, session: Sequence[str] = ()) -> None:
        connection.settings_dict.setdefault("OPTIONS", {}).setdefault("timeout", seconds)

    def is_in_transaction(self, connection: Any) -> bool:
        raw = connection.connection
        try:
            return raw is not None and bool(raw.in_transaction)
        except connection.Database.ProgrammingError:  # it is closed
            return False

    def open_wake(self) -> Wake:
        return DataVersion(self.alias)

    # -- statements -------------------------------------------------------------------------------

    def among(self, keys: Collection[UUID]) -> tuple[str, list[Any]]:
        return "IN (SELECT value FROM json_each(%s))", [hexes(keys)]

    def find_by_key(self, name: str, digits: Sequence[str], **words: str) -> list[tuple[Any, ...]]:
        among = "IN (SELECT value FROM json_each(%s))"
        return self.fetch(name, [json.dumps(list(digits))], among=among, **words)

    def with_keys(self, rows: models.QuerySet[Any], keys: Collection[UUID]) -> models.QuerySet[Any]:
        among = RawSQL("SELECT value FROM json_each(%s)", [hexes(keys)])
        return rows.filter(pk__in=among)

    def _hold_text(
        self, name: str, rows: models.QuerySet[Any], names: Sequence[str], lock: str, **words: str
    ) -> str:
        return super()._hold_text(name, rows, names, "", **words)

    def _line_words(self, index: str) -> dict[str, str]:
        return {"index": "", "lock": ""}

    def find_each(
        self, name: str, keys: Collection[UUID], index: str = "", *before: Any
    ) -> list[tuple[Any, ...]]:
        words = {"wanted": WANTED, "join": "CROSS JOIN", "index": "", "now": self.now_sql}
        return self.fetch(name, [*before, hexes(keys)], **words)

    returns_upserts = True

    def _guard_state(
        self, held: Collection[UUID], sequences: Collection[UUID], lines: Collection[BlockedLine]
    ) -> Sequence[tuple[Any, ...]]:
        parameters = {
            "held": hexes(held),
            "sequences": hexes(sequences),
            "lines": json.dumps([(line.key_id.hex, line.queue) for line in lines]),
        }
        return self.fetch("guard_state", parameters, **LISTS, now=self.now_sql)

    # -- jobs -------------------------------------------------------------------------------------

    def insert_fresh(self, job: Message) -> None:
        """Insert without Django's cursor if nothing wraps it. The cursor takes several times as
        long as SQLite for such short statements."""
        if not write_together(self.connection, self._inserts_of(job)):
            super().insert_fresh(job)

    def claim_ready(
        self,
        ready: models.QuerySet[Any],
        queues: Sequence[str],
        spans: Mapping[str, list[Any]],
        limit: int,
        leasing: Leasing,
    ) -> list[Claim] | None:
        """Lease jobs without guards.

        Reading the jobs and their packages happens before and after the transaction, so that other
        writers wait less. The transaction leases only the jobs that are still ready.
        """
        lines = [(queue, limit) for queue in queues]
        line = self.lock_lines(ready, PLACE, "", ("queue",), lines)
        if len(queues) > 1:
            line = sorted(line, key=RANK_AND_JOB_ID)[:limit]
        if any(map(GUARDS, line)):
            return None
        if not line:
            return []
        listed = json.dumps([*map(JOB_ID, line)])
        leased = {**leasing._asdict(), "holder": leasing.holder.hex, "job_ids": listed}
        with transaction.atomic(using=self.alias, savepoint=False):
            self.fetch("listed_lease", leased, now=self.now_sql)
            self.fetch("listed_leave", leased)
        rows = self.fetch("claims", [listed], wanted=WANTED, join="CROSS JOIN", index="")
        return [  # as _claim() does, without a call for each job
            (id_of(int(digits, 16)), lease_id, package, *place, 0, 0.0, "",
             due and self.as_seconds(due))
            for digits, lease_id, package, *place, due in rows
            if lease_id == leasing.lease_id
        ]  # fmt: skip

    def end_leases(
        self, leases: models.QuerySet[Any], digits: Sequence[str], lease_ids: Sequence[int]
    ) -> Sequence[tuple[Any, ...]]:
        given = json.dumps(list(zip(digits, lease_ids, strict=True)))
        return self.fetch("listed_end", {"leases": given})


def _is_read_only(connection: Any) -> bool:
    name = urlsplit(str(connection.settings_dict["NAME"]))
    return name.scheme == "file" and not READ_ONLY.isdisjoint(parse_qsl(name.query))


def _number_of(file: Path) -> tuple[int, int] | None:
    """Return the numbers of the device and of the file; None if the file does not exist or cannot
    be looked up, for example because its volume was unmounted."""
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


def _begin(connection: Any) -> None:
    """Begin a transaction as a writer. Replaces Django's method.

    Raises:
        django.db.OperationalError: others were writing for the whole busy time-out.
    """
    raw = connection.connection
    with connection.wrap_database_errors:
        _in_steps(raw, partial(raw.execute, "BEGIN IMMEDIATE"))


def write_together(connection: Any, statements: Sequence[tuple[str, Sequence[Any]]]) -> bool:
    """Run statements in one transaction without Django's cursor, if nothing depends on the cursor.
    For short statements the cursor takes several times as long as SQLite.

    Args:
        connection: connection to SQLite. If a block of ``transaction.atomic()`` is open, the
            statements become part of its transaction.
        statements: the statements with their parameters.

    Returns:
        Whether the statements were run.

    Raises:
        DatabaseError: a statement failed, and nothing was written, or the open transaction must be
            rolled back.
        TransactionManagementError: the open transaction must be rolled back already.
    """
    connection.validate_thread_sharing()
    if not connection.in_atomic_block:
        connection.close_if_health_check_failed()
    raw = needs_no_cursor(connection, _write_alone) and connection.connection
    if not raw:
        return False
    if connection.in_atomic_block:
        return _write_inside(connection, statements)
    if not connection.autocommit:
        return False
    with connection.wrap_database_errors:
        if raw.in_transaction:
            return False
        try:
            _in_steps(raw, partial(raw.execute, "BEGIN IMMEDIATE"))
            for sql, parameters in statements:
                raw.execute(sql.replace("%s", "?"), parameters)
            raw.execute("COMMIT")
        except BaseException:
            raw.rollback()
            raise
    return True


def _write_inside(connection: Any, statements: Sequence[tuple[str, Sequence[Any]]]) -> bool:
    """Run statements in the open transaction, like ``write_together``."""
    connection.validate_no_broken_transaction()
    with (
        transaction.atomic(using=connection.alias, savepoint=False),
        connection.wrap_database_errors,
    ):
        for sql, parameters in statements:
            connection.connection.execute(sql.replace("%s", "?"), parameters)
    return True


def _write_alone(
    execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Run a statement. If it writes outside a transaction, retry while the database is busy.

    With SQLite's own waiting, processes that write all the time could block it until the busy
    time-out.
    """
    raw = context["connection"].connection
    if many or raw.in_transaction or sql.lstrip()[:6].upper() not in WRITES:
        return execute(sql, params, many, context)
    return _in_steps(raw, partial(execute, sql, params, many, context))


def _in_steps(raw: Any, write: Callable[[], T]) -> T:
    """Retry a write until it succeeds, with short pauses. SQLite's own busy handler sleeps for up
    to a tenth of a second, but most of Stoker's transactions last a few milliseconds."""
    (limit,) = raw.execute("PRAGMA busy_timeout").fetchone()
    try:
        raw.execute("PRAGMA busy_timeout = 0")
        return _try_within(limit / 1000, write)
    finally:
        raw.execute(f"PRAGMA busy_timeout = {limit}")


def _try_within(seconds: float, write: Callable[[], T]) -> T:
    until = time.monotonic() + seconds
    pause = SHORTEST_PAUSE_SECONDS
    while True:
        try:
            return write()
        except (OperationalError, sqlite3.OperationalError) as error:
            code = getattr(error.__cause__ or error, "sqlite_errorcode", 0)
            is_busy = code & 0xFF == BUSY
            if not is_busy or time.monotonic() >= until:
                raise
        time.sleep(pause)
        pause = min(pause * 1.1, LONGEST_PAUSE_SECONDS)


def _run(connection: Any, pragma: str) -> Any:
    """Run a pragma and return its value. Return None if it cannot be set now, because another
    process uses the file or the file is read-only. SQLite stores the journal mode in the file, so
    the next connection tries again."""
    with suppress(connection.Database.OperationalError):
        row = connection.connection.execute(pragma).fetchone()
        return row[0] if row else None
    return None
