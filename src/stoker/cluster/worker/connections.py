"""Database connections between jobs: as Django does between requests, and a little more."""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import ReferenceType, ref

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.backends.signals import connection_created

from stoker.cluster.process import leave_forked_child
from stoker.exceptions import TransactionLeftOpen
from stoker.jobs.aftercare import Aftercare
from stoker.signals import tell
from stoker.store.engines import engine_for
from stoker.store.transactions import roll_back

JOB_THREADS = "stoker-job"
"""Name prefix of the threads in which a worker runs sync tasks."""


class _Known(threading.local):
    """The connections of one thread, as far as they were ever open. To ask Django for them takes
    longer than many a job; it tells when it opens one."""

    def __init__(self) -> None:
        self.connections = connections.all(initialized_only=True)


_known = _Known()
_of_other_threads: tuple[ReferenceType[Any], ...] = ()
"""Connections of the thread that async tasks use for the ORM, and of threads started by tasks. The
tuple is replaced, never changed, as other threads iterate over it."""


def _note(connection: Any, **_: Any) -> None:
    global _of_other_threads
    _known.connections = connections.all(initialized_only=True)
    engine_for(connection).watch_transactions(connection)
    thread = threading.current_thread()
    if thread is not threading.main_thread() and not thread.name.startswith(JOB_THREADS):
        others = [one for one in _of_other_threads if one() not in (None, connection)]
        _of_other_threads = (*others, ref(connection))


connection_created.connect(_note, dispatch_uid="stoker.cluster.worker.connections")


def tidy_connections() -> None:
    """Close this thread's connections that are broken, too old, or inside a transaction: the writes
    of the next job would never be committed there."""
    roll_back_open_transactions()
    for connection in _known.connections:
        connection.close_if_unusable_or_obsolete()
        connection.queries_log.clear()


def tidy_broken_connections() -> None:
    """Close only this thread's failed connections, as others may be in use."""
    for connection in _known.connections:
        if connection.errors_occurred and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def roll_back_open_transactions(besides: str | None = None) -> list[str]:
    """Roll back this thread's open transactions.

    Args:
        besides: a database whose transaction its owner will end.

    Returns:
        The databases, except those with ``AUTOCOMMIT`` off, where any read opens a transaction.
    """
    left_open = []
    for connection in _known.connections:
        alias = connection.alias
        if alias != besides and _is_open(connection):
            roll_back(connection)
            if connection.settings_dict["AUTOCOMMIT"]:
                tell("transaction_left_open", database=alias)
                left_open.append(alias)
    return left_open


class WorkerAftercare(Aftercare):
    """What a worker cleans up after a task's function has ended."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._rolled_back = 0
        """How often a transaction was found open in the thread that async tasks share."""

    def after_sync(self, besides: str | None) -> None:
        self.leave_forked_child()
        if left_open := roll_back_open_transactions(besides):
            raise TransactionLeftOpen(_sentence(left_open))

    def before_async(self) -> int:
        return self._rolled_back

    async def after_async(self, before: int) -> None:
        """Async tasks share a thread, and so their connections. Nobody can say which of them left a
        transaction open, nor who else has written in it: all that run now have failed."""
        if any(_seems_open(one()) for one in _of_other_threads):
            left_open = await sync_to_async(roll_back_open_transactions)()
            self._rolled_back += bool(left_open)
        if self._rolled_back != before:
            raise TransactionLeftOpen(ASYNC)

    def leave_forked_child(self) -> None:
        """End a child that the task has forked and that came back from the task. On an event loop
        this cannot wait: other tasks would go on in the child, too."""
        if os.getpid() != self._process_id:
            leave_forked_child()


ASYNC = (
    "An async task left a transaction open in the thread in which all async tasks of this worker "
    "use the database. It was rolled back, and what this task wrote may be lost with it. "
    "Begin and end each transaction in one function for sync_to_async()."
)


def _is_open(connection: Any) -> bool:
    """Return whether the session is inside a transaction, including one that Django does not know
    of because a cursor ran ``BEGIN``. Left open, it would hold up all writers on SQLite, and the
    next job's writes would not be committed."""
    return connection.in_atomic_block or engine_for(connection).is_in_transaction(connection)


def _seems_open(connection: Any) -> bool:
    return connection is not None and (
        connection.in_atomic_block or engine_for(connection).may_be_in_transaction(connection)
    )


def _sentence(aliases: list[str]) -> str:
    names = " and ".join(map(repr, aliases))
    return (
        f"The task ended inside a transaction on the database {names}. It was rolled back, and "
        "what the task wrote in it is lost. End each transaction that the task begins."
    )
