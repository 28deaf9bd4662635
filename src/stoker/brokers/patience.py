"""Calls to a broker or database that may be away for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from django.db import DatabaseError, InterfaceError, connections
from django.db.backends.signals import connection_created

from stoker.conf import Settings
from stoker.exceptions import BrokerError, NotMigrated
from stoker.signals import tell
from stoker.store import prepared as kept
from stoker.store.transactions import is_locked_out

from .contract import Broker

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
LONGEST_LOCK_SECONDS = 1.0
"""How long one of our statements waits for a row at most: transactions of Stoker's last a few
milliseconds, so whoever holds a row for longer is gone, or is user code."""
SHORTEST_IDLE_SECONDS = 2
"""A transaction of ours may pause for so long between two statements, on a busy machine."""
CLIENT_EXTRA_SECONDS = 1.0
"""How much longer than ``DATABASE_SECONDS`` the client waits for PostgreSQL, so that the server's
own deadline comes first wherever the server still hears us."""
SECONDS_KEY = "STOKER_SECONDS"
"""Where ``settings_dict`` says how long the client waits for an answer of PostgreSQL."""
CHECK_AFTER_SECONDS = 30.0
"""A connection that was not used for so long is asked whether it still works, where Django asks."""

NO_TRANSACTION = 0
"""As libpq numbers the state of a session."""
ALONE = ("VACUUM", "LISTEN")
"""Statements that are not possible, or have no effect, in a transaction."""

PLANNING = "-c enable_bitmapscan=off"
"""The planner takes a queue that it has not seen at its last look for a short one, and would rather
fetch and sort all of it than walk its index: for each claim, however long the queue has become."""


class Answer(Generic[T]):
    """What a call came to."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


class Patience:
    """Makes calls, and after a failure waits longer and longer before the next one."""

    def __init__(self, settings: Settings, broker: Broker) -> None:
        self._settings = settings
        self._broker = broker
        self._pause_seconds = 0.0
        self._down_since: float | None = None
        self._used_at = time.monotonic()
        self.try_at = 0.0
        self.last_error: Exception | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the last call failed and it is too early for the next."""
        return time.monotonic() < self.try_at

    def call(self, function: Callable[[], T]) -> Answer[T] | None:
        """Make the call, unless the last one failed a moment ago.

        Returns:
            The answer. None if the store can't be reached now (the connection is closed then), or
            if another transaction holds rows that the call needs (``has_met_a_lock``).
        """
        if self.is_waiting:
            return None
        self._check_old_connection()
        try:
            answer = Answer(function())
        except (BrokerError, NotMigrated, DatabaseError, InterfaceError) as error:
            if is_locked_out(error):
                self._note_lock(error)
            else:
                self._note_failure(error)
            return None
        self._note_success()
        return answer

    def insist(self, function: Callable[[], T], beat: Callable[[], None]) -> T:
        """The answer, however long it takes; ``beat`` is called between tries."""
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
        """Whether the last failure was that another transaction held rows. The store answers."""
        return is_locked_out(self.last_error)

    def _check_old_connection(self) -> None:
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


def set_deadlines(
    settings: Settings, *, keeps_statements: bool = False, is_cluster: bool = True
) -> None:
    """Give every call that this process makes to the store's database a deadline. Never call this
    in a worker: its connections belong to user code.

    Args:
        settings: the backend's.
        keeps_statements: whether this process makes the same calls again and again.
        is_cluster: whether this is a process of a cluster. Its waits for locked rows are short, and
            the server ends a transaction whose process has gone silent. A command waits longer, as
            nobody tries again for it.
    """
    alias = settings.database
    connection = connections[alias]
    options: dict[str, Any] = connection.settings_dict.setdefault("OPTIONS", {})
    options.pop("isolation_level", None)  # guards decide on what others have committed by then
    ours = [PLANNING]
    if is_cluster:
        ours += [f"-c {name}={value}" for name, value in _session(settings).items()]
    if connection.vendor == "postgresql":
        if connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
            _limit_pooled_transactions(settings, is_cluster=is_cluster)
        elif keeps_statements:
            ours.append(kept.PLANNING)
            kept.keep_statements(alias)
    elif connection.vendor == "mysql" and is_cluster:
        _limit_mysql_sessions(settings)
    limit_calls(connection, settings.database_seconds, ours)
    connection.settings_dict["CONN_MAX_AGE"] = None
    connection.settings_dict["CONN_HEALTH_CHECKS"] = True  # after a long pause, see Patience
    connection.settings_dict["AUTOCOMMIT"] = True  # nobody commits by hand here
    connection.close()


def limit_calls(connection: Any, seconds: float, session: Sequence[str] = ()) -> None:
    """Give every call by the connections that are opened with these settings a deadline.

    Args:
        session: further options of the session, on PostgreSQL.
    """
    options: dict[str, Any] = connection.settings_dict.setdefault("OPTIONS", {})
    whole_seconds = max(1, round(seconds))
    if connection.vendor == "postgresql":
        options.pop("pool", None)  # Django lends no connection from a pool for good
        options.setdefault("connect_timeout", whole_seconds)
        options.setdefault("keepalives_idle", whole_seconds)
        options.setdefault("tcp_user_timeout", whole_seconds * 1000)
        connection.settings_dict[SECONDS_KEY] = seconds + CLIENT_EXTRA_SECONDS
        connection_created.connect(_limit_waits, dispatch_uid="stoker.brokers.patience")
        if not connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
            # Not behind a transaction pooler, where the settings would leak to other clients.
            ours = [f"-c statement_timeout={whole_seconds * 1000}", *session]
            options["options"] = f"{' '.join(ours)} {options.get('options', '')}".rstrip()
    elif connection.vendor == "mysql":
        for name in ("connect_timeout", "read_timeout", "write_timeout"):
            options.setdefault(name, whole_seconds)
    elif connection.vendor == "sqlite":
        options.setdefault("timeout", seconds)


def _limit_waits(connection: Any, **_: Any) -> None:
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


def lock_seconds(settings: Settings) -> float:
    """How long a statement of the cluster's own processes waits for a locked row."""
    return min(LONGEST_LOCK_SECONDS, settings.database_seconds / 4)


def _idle_seconds(settings: Settings) -> int:
    """After how long the server ends a transaction of a process that says nothing. When a machine
    loses its power or its network, nobody tells the server, which would keep the rows locked for
    hours. Short enough that leases outlast it."""
    longest = min(settings.database_seconds, settings.lease_seconds / 3)
    return max(SHORTEST_IDLE_SECONDS, round(longest))


def _session(settings: Settings) -> dict[str, int]:
    """The settings of a session with PostgreSQL."""
    seconds = max(1, round(settings.database_seconds))
    return {
        "lock_timeout": round(lock_seconds(settings) * 1000),
        "idle_in_transaction_session_timeout": _idle_seconds(settings) * 1000,
        "tcp_keepalives_idle": seconds,
        "tcp_keepalives_interval": max(1, seconds // 3),
        "tcp_keepalives_count": 3,
        "tcp_user_timeout": seconds * 1000,
    }


def _limit_pooled_transactions(settings: Settings, *, is_cluster: bool) -> None:
    """Set the deadlines of PostgreSQL anew in each transaction. For a connection through a pooler
    like PgBouncer, which lends the server's sessions by the transaction: what is set for a session
    would apply to other clients."""
    values = {"statement_timeout": max(1, round(settings.database_seconds)) * 1000}
    if is_cluster:
        session = _session(settings)
        values |= {name: session[name] for name in session if not name.startswith("tcp_")}
    wish = "; ".join(f"SET LOCAL {name} = {value}" for name, value in values.items())

    def limit(
        execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        connection = context["connection"]
        driver = connection.connection
        if driver.info.transaction_status != NO_TRANSACTION or str(sql).startswith(ALONE):
            return execute(sql, params, many, context)
        if not connection.get_autocommit():
            _run(driver, wish)
            return execute(sql, params, many, context)
        _run(driver, f"BEGIN; {wish}")
        try:
            result = execute(sql, params, many, context)
            _run(driver, "COMMIT")
        except BaseException:
            with suppress(Exception):  # the connection is lost
                _run(driver, "ROLLBACK")
            raise
        return result

    def use(connection: Any, **_: Any) -> None:
        if connection.alias == settings.database and limit not in connection.execute_wrappers:
            connection.execute_wrappers.append(limit)

    uid = f"stoker.cluster.patience:{settings.database}"
    connection_created.connect(use, weak=False, dispatch_uid=uid)


def _run(driver: Any, text: str) -> None:
    with driver.cursor() as cursor:
        cursor.execute(text)


def _limit_mysql_sessions(settings: Settings) -> None:
    """Have each session with MariaDB or MySQL end its waits and its silent transactions. MySQL can
    only end a session that is silent for long, whether in a transaction or not."""
    silent_seconds = max(round(settings.lease_seconds / 3), round(2 * CHECK_AFTER_SECONDS))
    statement = (
        f"SET SESSION innodb_lock_wait_timeout = {max(1, round(lock_seconds(settings)))}"
        f" /*M!100300 , idle_transaction_timeout = {_idle_seconds(settings)} */"
        f" /*!80000 , wait_timeout = {silent_seconds} */"
    )

    def limit(connection: Any, **_: Any) -> None:
        if connection.alias == settings.database:
            with connection.cursor() as cursor:
                cursor.execute(statement)

    uid = f"stoker.cluster.patience:{settings.database}"
    connection_created.connect(limit, weak=False, dispatch_uid=uid)
