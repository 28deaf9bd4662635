"""Isolation levels, conflicts between transactions, and calls after a commit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from django.db import InterfaceError, OperationalError, connections, transaction

from stoker.exceptions import BrokerUnavailable, TransactionLeftOpen

T = TypeVar("T")
View = TypeVar("View", bound=Callable[..., Any])

TRIES = 10
"""How often a transaction of Stoker is tried, at most, if it conflicts with others."""
RETRY_SECONDS = 0.05
"""Maximum pause before such a transaction is repeated."""

POSTGRES = {"40001", "40P01"}
"""Codes of conflicts: serialization_failure, deadlock_detected."""
MYSQL = {1213, 1020, 3101}
"""Codes of conflicts: ER_LOCK_DEADLOCK, ER_CHECKREAD, and ER_TRANSACTION_ROLLBACK_DURING_COMMIT, by
which Group Replication refuses a transaction that conflicts with one of another server."""

POSTGRES_LOCKED = {"55P03", "40P01"}
"""Codes of locked rows: lock_not_available (also after ``lock_timeout``), deadlock_detected."""
MYSQL_LOCKED = {1205, 1213, 3101}
"""Codes of locked rows: ER_LOCK_WAIT_TIMEOUT, ER_LOCK_DEADLOCK, and
ER_TRANSACTION_ROLLBACK_DURING_COMMIT as above."""

POSTGRES_UNUSABLE = {"25006", "25P03", "25P04"}
"""Codes of sessions that a new connection replaces: read_only_sql_transaction (the server has
become a replica), idle_in_transaction_session_timeout, transaction_timeout. Drivers do not report
them as a lost connection."""

POSTGRES_TEXT = {"22P05"}
"""Code of a text that the database cannot hold: untranslatable_character."""
MYSQL_TEXT = {1267, 1271, 1366, 3988}
"""Codes of texts that a table cannot hold: ER_CANT_AGGREGATE_2COLLATIONS,
ER_CANT_AGGREGATE_NCOLLATIONS, ER_TRUNCATED_WRONG_VALUE_FOR_FIELD, ER_IMPOSSIBLE_STRING_CONVERSION.
Drivers report them as OperationalError."""

MYSQL_TOO_LARGE = {1153}
"""Code of a packet above ``max_allowed_packet``: ER_NET_PACKET_TOO_LARGE."""
MYSQL_PACKET = {*MYSQL_TOO_LARGE, 2006, 2013}
"""Codes with which MariaDB and MySQL answer such a packet: also CR_SERVER_GONE_ERROR and
CR_SERVER_LOST, which may have another reason."""


def is_conflict(error: BaseException | None) -> bool:
    """Return whether the error, or one of its causes, is a conflict between transactions. The
    transaction may succeed if it is repeated."""
    return _has_code(error, POSTGRES, MYSQL)


def repeat_if_aborted(
    alias: str, call: Callable[[], T], may_succeed: Callable[[Exception], bool] = is_conflict
) -> T:
    """Call a function that makes one transaction. Repeat it if the database aborted the transaction
    because of a conflict, unless a transaction was open before.

    Args:
        may_succeed: return whether to repeat after this error.
    """
    connection = connections[alias]
    is_ours = not connection.in_atomic_block and connection.get_autocommit()
    for tries_left in reversed(range(TRIES)):
        try:
            return call()
        except (BrokerUnavailable, OperationalError) as error:
            if not (tries_left and is_ours and may_succeed(error)):
                raise
        pause_before_retry()
    raise AssertionError("the loop returns or raises")


def pause_before_retry() -> None:
    """Wait for a random time, so that transactions that conflicted are not repeated at the same
    time."""
    time.sleep(RETRY_SECONDS * random.random())  # noqa: S311 - no secret


def is_locked_out(error: BaseException | None) -> bool:
    """Return whether the error, or one of its causes, says that another transaction holds a needed
    row. The database itself is reachable."""
    return _has_code(error, POSTGRES_LOCKED, MYSQL_LOCKED)


@contextmanager
def skipping_locked() -> Iterator[None]:
    """Leave the block if another transaction holds a row that it needs."""
    try:
        yield
    except (BrokerUnavailable, OperationalError) as error:
        if not is_locked_out(error):
            raise


def is_session_unusable(error: BaseException | None) -> bool:
    """Return whether the error, or one of its causes, says that the server ended the session
    because its transaction took too long, or that the server is read-only."""
    return _has_code(error, POSTGRES_UNUSABLE, ())


def may_pass(error: BaseException) -> bool:
    """Return whether the error is one of the connection or of the server, not of the statement. The
    statement may succeed on a new connection."""
    return isinstance(error, OperationalError | InterfaceError) or is_session_unusable(error)


def is_text_refused(error: BaseException | None) -> bool:
    """Return whether the error, or one of its causes, says that the character set of the database,
    a table or a column does not have a character of a text. A retry would fail, too."""
    return _has_code(error, POSTGRES_TEXT, MYSQL_TEXT)


def may_be_too_large(error: BaseException | None) -> bool:
    """Return whether the reason for the error, or one of its causes, may be the size of the
    statement."""
    return _has_code(error, (), MYSQL_PACKET)


def is_too_large(error: BaseException | None) -> bool:
    """Return whether the error, or one of its causes, says that the statement is too large."""
    return _has_code(error, (), MYSQL_TOO_LARGE)


def _has_code(
    error: BaseException | None, states: Collection[str], numbers: Collection[int]
) -> bool:
    while error is not None:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        number = error.args[0] if error.args else None
        if state in states or (type(number) is int and number in numbers):
            return True
        error = error.__cause__
    return False


def is_in_transaction(alias: str) -> bool:
    """Return whether a transaction is open that will commit. The transaction of a TestCase will
    not."""
    connection = connections[alias]
    blocks = connection.atomic_blocks
    outside_tests = any(not getattr(block, "_from_testcase", False) for block in blocks)
    return outside_tests or commits_by_hand(connection)


def commits_by_hand(connection: Any) -> bool:
    """Return whether the caller commits what is written on this connection now, because autocommit
    is off. The end of ``transaction.atomic()`` commits nothing then. Such a commit cannot be
    observed."""
    if connection.in_atomic_block:
        return not connection.commit_on_exit
    has_autocommit = connection.settings_dict["AUTOCOMMIT"]
    return not (has_autocommit if connection.connection is None else connection.autocommit)


def without_request_transaction(view: View) -> View:
    """Return the view, excluded from ATOMIC_REQUESTS of all databases. It makes its own
    transactions."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def after_commit(alias: str, call: Callable[[], object]) -> None:
    """Call a function after the open transaction commits, or now if none is open. Errors of the
    function are logged and not raised, because the commit is already made.

    If the caller commits by hand, the function is not called: upkeep or the next poll does the
    work.

    The lambda is needed because Django logs the function's ``__qualname__``, and
    ``functools.partial`` has none.
    """
    if commits_by_hand(connections[alias]):
        return
    transaction.on_commit(lambda: call(), using=alias, robust=True)  # noqa: PLW0108 - see above


def roll_back(connection: Any) -> None:
    """Roll back and close a connection, whatever Django believes about its state. The next use
    opens it again."""
    connection.in_atomic_block = connection.closed_in_transaction = False
    connection.savepoint_ids, connection.atomic_blocks, connection.run_on_commit = [], [], []
    raw = connection.connection
    with suppress(Exception):  # fails after an interrupted query; closing rolls back, too
        connection.rollback()
    try:
        connection.close()  # a pooled connection returns to its pool
    except Exception:  # noqa: BLE001 - the connection is discarded, whatever the driver reports
        connection.connection = None
        with suppress(Exception):
            raw.close()


@contextmanager
def autocommit(alias: str) -> Iterator[None]:
    """Use autocommit, even if the project has turned it off (``AUTOCOMMIT``): otherwise the writes
    of this block would not be committed."""
    connection = connections[alias]
    if connection.in_atomic_block or connection.get_autocommit():
        yield
        return
    connection.close()  # discards uncommitted changes of the previous task
    connection.set_autocommit(True)
    try:
        yield
    finally:
        connection.close()  # the next connection has the project's own setting


@contextmanager
def inner_blocks_closed(alias: str) -> Iterator[None]:
    """Roll back blocks of ``transaction.atomic()`` that the task has entered and not left.
    Otherwise Django would treat the end of the outer block as the end of an inner one, and commit
    nothing."""
    connection = connections[alias]
    depth = len(connection.atomic_blocks)
    error: BaseException = TransactionLeftOpen(
        f"The task ended inside a block of transaction.atomic() on the database {alias!r}. It was "
        "rolled back with all that the task wrote there."
    )
    is_refused = False
    try:
        yield
    finally:
        is_refused = roll_back_blocks(connection, depth, error)
    if is_refused:
        raise error


def roll_back_blocks(connection: Any, depth: int, error: BaseException) -> bool:
    """Roll back blocks of ``transaction.atomic()`` until only ``depth`` of them are open. Return
    whether there were more."""
    has_more = len(connection.atomic_blocks) > depth
    while len(connection.atomic_blocks) > depth:
        connection.atomic_blocks[-1].__exit__(type(error), error, None)
    return has_more
