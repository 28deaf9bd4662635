"""Database sessions: deadlines, transactions, wake-ups, and repeated calls while the database or a
broker is unreachable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from django.db import (
    DatabaseError,
    InterfaceError,
    ProgrammingError,
    connections,
    transaction,
)

from stoker.conf import Settings
from stoker.exceptions import (
    BrokerError,
    BrokerUnavailable,
    NotMigrated,
    PoolerRefused,
    RowsLocked,
)
from stoker.signals import tell
from stoker.store.transactions import is_locked_out, may_pass
from stoker.store.wake import NoWake, Wake

LONGEST_LOCK_SECONDS = 1.0
"""Longest wait of a statement for a locked row. Stoker's own transactions last a few milliseconds,
so a longer lock belongs to user code or to a dead process."""
CHECK_AFTER_SECONDS = 30.0
"""Idle time after which Django checks that a connection still works."""
LARGE_BYTES = 1 << 19
"""Every server accepts values up to this size, so smaller ones need no check."""
POOLER_SIGNS = ("unsupported startup parameter", "support command-line options")
"""Parts of the messages by which PgBouncer and RDS Proxy refuse a cluster's session options."""
SHORTEST_IDLE_SECONDS = 2
"""Shortest limit for a transaction's pause between two statements, to allow for a busy machine."""


class Sessions:
    """Default implementation for sessions of the database with one alias, shared by all threads."""

    is_supported = False
    """Whether jobs can be stored in this database."""
    has_isolation_levels = True
    """Whether a transaction can choose its isolation level."""
    has_one_writer = False
    """Whether a writing transaction blocks all other writers until it ends."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def why_unusable(self) -> str:
        """Ask the server for its version, and for the types of the columns of Stoker's tables.
        Return why Stoker cannot use them, or ""."""
        return ""

    @property
    def connection(self) -> Any:
        """Return Django's connection of this thread."""
        return connections[self.alias]

    def tune(self, connection: Any) -> None:
        """Configure a new connection for use by several processes."""

    def needs_tuning(self, options: Mapping[str, Any]) -> bool:
        """Return whether connections with these ``OPTIONS`` would block one another without
        ``tune``."""
        return False

    def check_connection(self) -> None:
        """Let Django check this thread's connection before its next use. Do nothing inside a
        transaction.

        Raises:
            BrokerUnavailable: the file of a SQLite database does not exist any more.
        """
        if not self.connection.in_atomic_block:
            self.connection.close_if_unusable_or_obsolete()

    def tune_outbox(self, connection: Any, table: str) -> None:
        """Configure a new connection to a database that is not the store, if it has an outbox.

        Args:
            connection: the connection.
            table: name of the table of an outbox.
        """

    @property
    def file(self) -> Path | None:
        """Return the file of the database. None if it is on a server or in memory."""
        return None

    @property
    def is_read_only(self) -> bool:
        """Return whether connections with these settings cannot write."""
        return False

    @property
    def is_private(self) -> bool:
        """Return whether only this thread's connection sees the database."""
        return False

    def call_limits(self, seconds: int) -> dict[str, Any]:
        """Return the ``OPTIONS`` that make a connection's calls fail after some seconds."""
        return {}

    def limit_calls(self, connection: Any, seconds: float, session: Sequence[str] = ()) -> None:
        """Set a deadline for every call of connections that are opened with these settings.

        Args:
            connection: the connection whose settings are changed.
            seconds: the deadline.
            session: on PostgreSQL: options of the session. Without any, the server's deadline is
                set in each transaction, because a pooler may refuse options.
        """
        options = connection.settings_dict.setdefault("OPTIONS", {})
        for name, value in self.call_limits(max(1, round(seconds))).items():
            options.setdefault(name, value)

    def limit_sessions(
        self, settings: Settings, *, keeps_statements: bool, is_cluster: bool
    ) -> Sequence[str]:
        """Limit waits for locked rows, and idle transactions, in sessions that this process opens
        from now on. ``statements.set_deadlines`` explains the arguments.

        Returns:
            Session options for ``limit_calls``.
        """
        return ()

    def weaknesses(self) -> list[str]:
        """Ask the server whether the limits of ``limit_sessions`` are in effect. Return a sentence
        for each problem, which says what to do."""
        return []

    def watch_transactions(self, connection: Any) -> None:
        """Prepare a new connection for ``is_in_transaction``."""

    def is_in_transaction(self, connection: Any) -> bool:
        """Return whether the session is in a transaction."""
        return False

    @contextmanager
    def deciding(self, lock_seconds: float | None = None) -> Iterator[None]:
        """Open a transaction whose statements, after waiting for a lock, see the commit of the
        lock's last holder. If a transaction is open, the block becomes a part of it, whatever its
        isolation level.

        Args:
            lock_seconds: how long its statements wait for a locked row. None, or if a transaction
                is open: as long as the session does.
        """
        connection = self.connection
        is_ours = not connection.in_atomic_block
        is_blind = is_ours and self.has_isolation_levels and not self.sees_later_commits(connection)
        with transaction.atomic(using=self.alias, savepoint=False):
            if is_blind:
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            if is_ours and lock_seconds is not None:
                with self.limit_lock_waits(lock_seconds):
                    yield
            else:
                yield

    def limit_lock_waits(self, seconds: float) -> AbstractContextManager[None]:
        """Limit how long statements wait for a locked row, in the block of a transaction."""
        return nullcontext()

    def atomic_task(self) -> AbstractContextManager[Any]:
        """Open the transaction of an atomic task. It has the project's isolation level. If that is
        strict, the server refuses a commit that rests on old rows."""
        return transaction.atomic(using=self.alias)

    def deciding_at_once(self) -> AbstractContextManager[None]:
        """Let the statements of the block see the commits of other transactions. Open a transaction
        only if the session's isolation level is stricter: processes of a cluster save its round
        trips."""
        connection = self.connection
        is_enough = connection.in_atomic_block or not self.has_isolation_levels
        if is_enough or self.sees_later_commits(connection):
            return nullcontext()
        return self.deciding()

    @property
    def locks_by_changing(self) -> bool:
        """Whether a lock must also change the row. From REPEATABLE READ on, PostgreSQL refuses to
        lock a row that was changed after the transaction began, but not one that was locked."""
        connection = self.connection
        return connection.vendor == "postgresql" and not self.sees_later_commits(connection)

    def sees_later_commits(self, connection: Any) -> bool:
        """Return whether a later statement of a transaction sees new commits, unless that
        transaction has set its own isolation level. SQLite has no isolation levels, and never sees
        them."""
        isolation = getattr(connection, "isolation_level", None)
        return is_read_committed(getattr(isolation, "name", isolation))

    def refuse_too_large(self, value: bytes) -> None:
        """Refuse a value that is too large for the database.

        Raises:
            PackageTooLarge: the message names the sizes.
        """

    def open_wake(self) -> Wake:
        """Return the object that a pusher sleeps on until jobs are added."""
        return NoWake()

    def notify(self) -> None:
        """Wake the sleeping pushers, unless this process has just done so."""

    def vacuum(
        self, names: Sequence[str], dead: Mapping[str, int], beat: Callable[[], None]
    ) -> Mapping[str, int]:
        """Remove dead rows from tables, if the database does not do it soon enough itself.

        Args:
            names: names of the tables.
            dead: the result of the previous call. Tables without changes since then are skipped.
            beat: called before each table, because each may take as long as a call may.

        Returns:
            Table -> number of rows that have died so far.

        Raises:
            DatabaseError: a table could not be vacuumed. The others were tried.
        """
        return dead


def is_read_committed(level: object) -> bool:
    """Return whether the isolation level of this name lets later statements see new commits."""
    name = str(level).upper().replace(" ", "_")
    return name in {"READ_COMMITTED", "READ_UNCOMMITTED"}


def lock_seconds(settings: Settings) -> float:
    """Return how long statements of the cluster's own processes wait for a locked row."""
    return min(LONGEST_LOCK_SECONDS, settings.database_seconds / 4)


def idle_seconds(settings: Settings) -> int:
    """Return after how many seconds the server ends an idle transaction.

    If a machine loses power or network, the server is not told, and would keep the rows locked for
    hours. The limit is shorter than a lease.
    """
    longest = min(settings.database_seconds, settings.lease_seconds / 3)
    return max(SHORTEST_IDLE_SECONDS, round(longest))


def session_limits(settings: Settings) -> dict[str, int]:
    """Return the session settings that limit how long a session waits: name -> value."""
    seconds = max(1, round(settings.database_seconds))
    return {
        "lock_timeout": round(lock_seconds(settings) * 1000),
        "idle_in_transaction_session_timeout": idle_seconds(settings) * 1000,
        "tcp_keepalives_idle": seconds,
        "tcp_keepalives_interval": max(1, seconds // 3),
        "tcp_keepalives_count": 3,
        "tcp_user_timeout": seconds * 1000,
    }


T = TypeVar("T")


FIRST_PAUSE_SECONDS = 0.1


LONGEST_PAUSE_SECONDS = 5.0


class CallResult(Generic[T]):
    """The value that a call returned, which may itself be None."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


class Closable(Protocol):
    """A broker connection that ``Patience`` closes after a failure."""

    def close(self) -> None: ...


files_of: dict[str, Callable[[], None]] = {}
"""Alias of a SQLite database -> function that closes this thread's connection if its file was
replaced. Only in the processes of a cluster."""


class Patience:
    """Makes calls to the store or a broker. After each failure it waits longer before the next
    call.

    Args:
        beat: called before each call, because several in a row may take longer than a loop of the
            cluster may without a heartbeat.
    """

    def __init__(
        self, settings: Settings, broker: Closable, beat: Callable[[], None] = lambda: None
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._beat = beat
        self._pause_seconds = 0.0
        self._down_since: float | None = None
        self._used_at = time.monotonic()
        self.try_at = 0.0
        self.last_error: Exception | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the last call failed and it is too early for the next."""
        return time.monotonic() < self.try_at

    def call(self, function: Callable[[], T]) -> CallResult[T] | None:
        """Make the call, unless the last one failed a moment ago.

        Returns:
            The function's result. None if the store is unreachable now (the connection is closed
            then), or if another transaction holds rows that the call needs (``has_met_a_lock``).
        """
        if self.is_waiting:
            return None
        self._beat()
        self.check_old_connection()
        try:
            if close_if_replaced := files_of.get(self._settings.database):
                close_if_replaced()
            answer = CallResult(function())
        except (BrokerError, NotMigrated, DatabaseError, InterfaceError) as error:
            if is_locked_out(error):
                self._note_lock(error)
            else:
                self._note_failure(error)
            return None
        self._note_success()
        return answer

    def insist(self, function: Callable[[], T], beat: Callable[[], None]) -> T:
        """Repeat the call until it succeeds, and return its result. ``beat`` is called between
        tries."""
        while True:
            answer = self.call(function)
            if answer is not None:
                return answer.value
            self.sleep(beat)

    def sleep(self, beat: Callable[[], None]) -> None:
        """Wait until it is time for the next call."""
        while self.is_waiting:
            beat()
            time.sleep(min(0.1, max(0.0, self.try_at - time.monotonic())))
        beat()

    @property
    def has_met_a_lock(self) -> bool:
        """Whether the last call failed because another transaction held rows. The store is
        reachable then."""
        return is_locked_out(self.last_error)

    def check_old_connection(self) -> None:
        """Let Django check the connection before its next use, if it has been idle for long."""
        now = time.monotonic()
        if now - self._used_at > CHECK_AFTER_SECONDS:
            connections[self._settings.database].close_if_unusable_or_obsolete()
        self._used_at = now

    def _note_lock(self, error: Exception) -> None:
        self.last_error = error
        self.try_at = time.monotonic() + FIRST_PAUSE_SECONDS
        tell("rows_locked", error=_one_line(error), seconds=FIRST_PAUSE_SECONDS)

    def _note_failure(self, error: Exception) -> None:
        now = time.monotonic()
        self.last_error = error
        self._down_since = self._down_since or now
        self._pause_seconds = min(
            LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, self._pause_seconds * 2)
        )
        self.try_at = now + self._pause_seconds
        tell("broker_unreachable", error=_one_line(error), seconds=self._pause_seconds)
        for close in (self._broker.close, connections[self._settings.database].close):
            try:
                close()
            except (BrokerError, DatabaseError, InterfaceError):
                continue

    def _note_success(self) -> None:
        if self._down_since is not None:
            tell("broker_back", seconds=time.monotonic() - self._down_since)
            self._down_since = None
            self._pause_seconds = 0.0


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    return line if line.endswith(".") else line + "."


class explained:  # noqa: N801 - used as a word of the language, like contextlib.suppress
    """Turn database errors of the block into Stoker's own errors, which say what to do.

    Args:
        alias: alias of the database.
    """

    __slots__ = ("_alias",)

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, ProgrammingError) or (
            isinstance(error, DatabaseError | InterfaceError) and may_pass(error)
        ):
            told = explain(error, self._alias)
            if told is not error:
                raise told from error


def explain(error: Exception, alias: str) -> Exception:
    """Return Stoker's own error, which says what to do, or ``error`` itself if there is none."""
    message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    lowered = message.lower()
    signs = ["no such table", "no such column", "unknown column"]
    # other errors with these words concern the database or the role itself
    if isinstance(error, ProgrammingError):
        signs += ["does not exist", "doesn't exist"]
    if any(sign in lowered for sign in signs):
        return NotMigrated(
            f"Stoker's tables are not in the database {alias!r} yet ({message}). "
            f"Run: python manage.py migrate --database {alias}"
        )
    if isinstance(error, ProgrammingError):
        return error
    if any(sign in lowered for sign in POOLER_SIGNS):
        return PoolerRefused(
            f"The database {alias!r} is behind a pooler like PgBouncer ({message}): set "
            f'"DISABLE_SERVER_SIDE_CURSORS": True in DATABASES["{alias}"].'
        )
    if is_locked_out(error):
        return RowsLocked(
            f"Another transaction holds rows of the database {alias!r} that are needed: {message}"
        )
    return BrokerUnavailable(f"The database {alias!r} could not process the request: {message}")
