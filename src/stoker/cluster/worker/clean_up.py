"""The clean-up in a worker after each job: database connections are closed between jobs as Django
does between requests, transactions that a task left open are rolled back, and event loops that an
interrupted task left behind are ended.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import AsyncToSync, sync_to_async
from django.core.cache import caches
from django.db import connections
from django.db.backends.signals import connection_created

from stoker.brokers.adapters import close_idle_connections
from stoker.cluster.process import leave_forked_child
from stoker.exceptions import TaskCancelled, TaskTimeout, TransactionLeftOpen
from stoker.jobs.aftercare import Aftercare
from stoker.jobs.running import Running, current
from stoker.signals import tell
from stoker.store.engines import engine_for
from stoker.store.transactions import roll_back

LOOK_SECONDS = 0.01
"""How often to check whether an event loop in another thread is closed."""

T = TypeVar("T")


class _Known(threading.local):
    """Cache of the database connections of one thread. Listing them takes longer than a short job,
    so the list is read again only when Django signals a new connection."""

    def __init__(self) -> None:
        self.look()

    def look(self) -> None:
        """Read this thread's connections from Django, each with a function that checks it, and with
        its setting of autocommit."""
        self.connections = connections.all(initialized_only=True)
        self.looks = [
            (one, engine_for(one).is_in_transaction, one.settings_dict["AUTOCOMMIT"])
            for one in self.connections
        ]


_known = _Known()


def _note(connection: Any, **_: Any) -> None:
    _known.look()
    engine_for(connection).watch_transactions(connection)


connection_created.connect(_note, dispatch_uid="stoker.cluster.worker.clean_up")


def create_caches() -> None:
    """Create this thread's caches outside of its jobs. A job runs in a copy of the thread's
    context, so the next job would create, and connect, a cache of that job again."""
    for alias in caches:
        with suppress(Exception):  # the job that uses it gets the error
            caches[alias]


def tidy_connections() -> None:
    """Close this thread's connections that are broken, too old, or inside a transaction: the writes
    of the next job would never be committed there."""
    if not (known := _known.connections):
        return
    roll_back_open_transactions()
    for connection in known:
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
        besides: alias of a database that is left out, because the caller ends its transaction.

    Returns:
        The aliases of the databases that had an open transaction. Databases with ``AUTOCOMMIT`` off
            are left out, because there any read opens a transaction.
    """
    left_open = []
    for connection in _connections_in_transaction():
        if (alias := connection.alias) != besides:
            roll_back(connection)
            if connection.settings_dict["AUTOCOMMIT"]:
                tell("transaction_left_open", database=alias)
                left_open.append(alias)
    return left_open


def _connections_in_transaction() -> Iterator[Any]:
    """Yield this thread's connections that have an open transaction."""
    for connection, is_in_transaction, autocommit in _known.looks:
        # A cursor may have run BEGIN unknown to Django. Left open, it would hold up all writers on
        # SQLite, and the next job's writes would not be committed.
        is_open = connection.in_atomic_block or is_in_transaction(connection)
        if connection.autocommit != autocommit and connection.connection is not None:
            is_open = True  # the next statement begins a transaction
        if is_open:
            yield connection


def close_connections(besides: str | None) -> None:
    """Close this thread's connections to databases after a task was interrupted: one of them may
    still expect the result of a query. ``besides``: as for ``roll_back_open_transactions``."""
    for connection in _known.connections:
        if connection.alias != besides:
            connection.close()


def end_event_loops() -> None:
    """Cancel the coroutines that a sync task has called by ``async_to_sync``, and that run on in
    other threads because the task was interrupted. Run the sync calls of their clean-up, which
    asgiref makes in this thread, and wait for their end."""
    thread = threading.current_thread()
    executors = AsyncToSync.loop_thread_executors.copy()
    loops = [(loop, one) for loop, one in executors.items() if one._work_thread is thread]
    for loop, executor in loops:
        with suppress(RuntimeError):  # it has just been closed
            loop.call_soon_threadsafe(_cancel_tasks, loop)
        ended: Future[None] = Future()
        threading.Thread(target=_wait_until_closed, args=(loop, ended), daemon=True).start()
        if not executor._broken:  # asgiref before 3.9 takes no calls after an interruption
            executor.run_until_future(ended)
        ended.result()


def _wait_until_closed(loop: asyncio.AbstractEventLoop, ended: Future[None]) -> None:
    while not loop.is_closed():
        time.sleep(LOOK_SECONDS)
    ended.set_result(None)


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


class SharedThread(ThreadPoolExecutor):
    """The thread in which asgiref makes the calls of all async tasks of a worker, one by one."""

    def __init__(self) -> None:
        super().__init__(1)
        self.has_open_transaction = False
        """Whether the last call ended inside a transaction. While a call runs it may be in one
        that it will end itself."""
        self._calls: dict[Future[Any], Running | None] = {}
        """Call that waits or runs -> the attempt that made it."""

    def submit(self, call: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        future = super().submit(self._call, partial(call, *args, **options))
        self._calls[future] = current.get()
        future.add_done_callback(self._calls.pop)
        return future

    async def wait_for_calls(self, running: Running) -> None:
        """Wait until the calls of an attempt have ended."""
        calls = [call for call, its in self._calls.copy().items() if its is running]
        await asyncio.gather(*map(asyncio.wrap_future, calls), return_exceptions=True)

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        finally:
            self.has_open_transaction = any(_connections_in_transaction())


class WorkerAftercare(Aftercare):
    """Cleans up in a worker after a task's function has ended."""

    def __init__(self) -> None:
        self.shared_thread = SharedThread()
        self._is_forked = False
        os.register_at_fork(after_in_child=self._note_fork)  # cheaper than a getpid for each job
        self._rolled_back = 0
        """Number of times that a transaction was found open in the thread that async tasks
        share."""

    def after_sync(self, besides: str | None) -> None:
        if self._is_forked:
            leave_forked_child()
        if AsyncToSync.loop_thread_executors:
            end_event_loops()
        if isinstance(sys.exception(), TaskTimeout | TaskCancelled):
            # first, because a session with an interrupted query seems to be in a transaction
            close_connections(besides)
            close_idle_connections()
        if left_open := roll_back_open_transactions(besides):
            raise TransactionLeftOpen(_sentence(left_open))

    def before_async(self) -> int:
        return self._rolled_back

    async def wait_for_calls(self, running: Running) -> None:
        await self.shared_thread.wait_for_calls(running)

    async def after_async(self, before: int) -> None:
        """Roll back transactions that an async task left open. Async tasks share a thread and
        its connections, so it is unknown which task opened it or has written in it. All async
        tasks that run now fail."""
        if self.shared_thread.has_open_transaction:
            left_open = await sync_to_async(roll_back_open_transactions)()
            self._rolled_back += bool(left_open)
        if self._rolled_back != before:
            raise TransactionLeftOpen(ASYNC)

    def leave_forked_child(self) -> None:
        """End a process that the task has forked and that returned from the task. On an event
        loop this must happen at once, because other tasks would continue in the child, too."""
        if self._is_forked:
            leave_forked_child()

    def _note_fork(self) -> None:
        self._is_forked = True


ASYNC = (
    "An async task left a transaction open in the thread in which all async tasks of this worker "
    "use the database. It was rolled back, and what this task wrote may be lost with it. "
    "Begin and end each transaction in one function for sync_to_async()."
)


def _sentence(aliases: list[str]) -> str:
    names = " and ".join(map(repr, aliases))
    return (
        f"The task ended inside a transaction on the database {names}. It was rolled back, and "
        "what the task wrote in it is lost. End each transaction that the task begins."
    )
