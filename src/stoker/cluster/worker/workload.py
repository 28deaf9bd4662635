"""The jobs and reports of a worker, its connection to the pusher, and the database connections of
its tasks, which are closed between jobs as Django does between requests.

The main thread runs jobs; the companion thread reconnects when the pusher has died. Both use one
lock, so each step is atomic: ``meet`` tells a new pusher exactly what this worker has, and nothing
is read from an old connection afterwards. So no job is held by two workers.

Reports are kept until the pusher confirms that they are recorded, so that no other process's death
loses one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from asgiref.sync import AsyncToSync, sync_to_async
from django.core.cache import caches
from django.db import connections
from django.db.backends.signals import connection_created

from stoker.brokers.adapters import close_idle_connections
from stoker.cluster.board import MOST_UNRECORDED
from stoker.cluster.channel import Closed, Stream
from stoker.cluster.process import leave_forked_child
from stoker.cluster.wire import Job, Report
from stoker.exceptions import TaskCancelled, TaskTimeout, TransactionLeftOpen
from stoker.jobs.aftercare import Aftercare
from stoker.jobs.running import Running, current
from stoker.logs.capture import Capture
from stoker.signals import tell
from stoker.store.engines import engine_for
from stoker.store.transactions import roll_back

FLUSH_SECONDS = 0.002
LOOK_SECONDS = 0.01
"""How often to check whether an event loop in another thread is closed."""

T = TypeVar("T")

_number_of = itemgetter(0)


class Workload:
    """One worker's jobs, reports and connection to the pusher."""

    def __init__(self) -> None:
        self.on_change: Callable[[], object] = lambda: None
        """Called, in any thread, when there is a new connection or the worker must exit."""
        self.is_leaving = False
        self.logs: Capture | None = None
        """Captures what jobs log and print; None = it is not kept."""
        self._queue: deque[Job] = deque()
        self._jobs: dict[int, Job] = {}
        """Number -> job, from its arrival until it is recorded or skipped."""
        self._reports: dict[int, Report] = {}
        """Number -> report that is not recorded yet, sent or not."""
        self._inherited: set[int] = set()
        """Numbers of unrecorded jobs that the previous worker with this number had finished. The
        board lists them."""
        self._unsent: list[Report] = []
        self._unsent_since = 0.0
        self._skipped: list[int] = []
        self._line: Stream | None = None
        self._followed: Stream | None = None
        """The connection that a thread is reading, and will close."""
        self._lock = threading.Lock()
        self._changed = threading.Event()

    @property
    def line(self) -> Stream | None:
        """The connection to the pusher, or None."""
        return self._line

    @property
    def is_idle(self) -> bool:
        """Return whether no job waits or runs, and no report is to be sent."""
        return not self._jobs

    @property
    def is_over(self) -> bool:
        """Return whether the worker is leaving and has nothing to wait for."""
        return self.is_leaving and self.is_idle

    def follow(self) -> Stream | None:
        """Return the connection to the pusher, or None. From now on the caller reads from it,
        and calls ``lose`` when it breaks."""
        with self._lock:
            if self._line is not None:
                self._followed = self._line
            return self._line

    def wait_for_line(self) -> Stream | None:
        """Wait for a connection to read. Return None when the worker must exit."""
        while not self.is_leaving:
            self._changed.wait()
            line = self.follow()
            if line is not None:
                return line
        return None

    # -- jobs -------------------------------------------------------------------------------------

    def take_in(self, line: Stream, frames: Iterable[Any]) -> None:
        """Store the jobs and messages in the pusher's frames. Frames from an earlier pusher's
        connection are ignored, as their jobs may belong to another worker now."""
        with self._lock:
            for kind, content in frames:
                if kind == "recorded":
                    for number in content:
                        self._reports.pop(number, None)
                        self._jobs.pop(number, None)
                    self._inherited.difference_update(content)
                elif kind == "unrecorded":
                    self._inherited.update(content)
                elif line is self._line and not self.is_leaving:
                    self._jobs.update(zip(map(_number_of, content), content, strict=True))
                    self._queue.extend(content)

    @property
    def has_next(self) -> bool:
        """Return whether a job may start now. No job starts while too many reports are
        unrecorded."""
        return bool(self._queue) and len(self._reports) < MOST_UNRECORDED

    def is_unrecorded(self, number: int) -> bool:
        """Return whether this job has ended and its report is not recorded yet."""
        return number in self._reports or number in self._inherited

    def next(self) -> Job | None:
        """Return the job that has waited longest, to start it now."""
        # Without the lock, which this needs not: another thread may only have emptied the queue.
        try:
            return self._queue.popleft()
        except IndexError:
            return None

    def skip(self, number: int) -> None:
        """Remove a recalled job that has not started."""
        with self._lock:
            self._jobs.pop(number, None)
            self._skipped.append(number)

    def finish(self, number: int, report: Report) -> None:
        """Remove a finished job, and keep its report for ``flush``."""
        with self._lock:
            self._reports[number] = report
            if not self._unsent:
                self._unsent_since = time.monotonic()
            self._unsent.append(report)

    def flush(self, *, older_than_seconds: float = 0.0) -> None:
        """Send the reports, if the oldest has waited that long."""
        has_waited = time.monotonic() - self._unsent_since >= older_than_seconds
        has_logs = self.logs is not None and self.logs.is_due
        if not self._skipped and not (self._unsent and has_waited) and not has_logs:
            return
        with self._lock:
            self._send_unsent(older_than_seconds)

    # -- the line ---------------------------------------------------------------------------------

    def meet(self, stream: Stream) -> None:
        """Connect to a new pusher, and send it all jobs and reports. Stop reading from the old
        connection."""
        with self._lock:
            has = [(job, self._reports.get(number)) for number, job in self._jobs.items()]
            try:
                stream.send(("hello", has))
            except Closed:
                stream.close()
                return
            old, self._line = self._line, stream
            self._unsent.clear()
            self._skipped.clear()
            self._inherited.clear()
            if self.is_leaving:
                self._say_leaving()
            if old is not None:
                self._call_off(old)
            self._changed.set()
        self.on_change()

    def lose(self, line: Stream) -> None:
        """Close a broken connection. The jobs that came over it stay here, and are reported to
        the next pusher."""
        with self._lock:
            self._drop(line)
            line.close()

    def leave(self) -> None:
        """Start no more jobs: return the unstarted ones, and report the running ones."""
        with self._lock:
            self.is_leaving = True
            while (job := self.next()) is not None:
                self._jobs.pop(job[0], None)
            self._send_unsent()
            self._say_leaving()
        self._changed.set()
        self.on_change()

    def stop_reading(self) -> None:
        """Make the thread that reads the connection stop."""
        with self._lock:
            if self._line is not None:
                self._line.stop_reading()

    def wait_until_recorded(self, within_seconds: float) -> None:
        """Wait up to ``within_seconds`` until every report is recorded. Other processes keep the
        rest."""
        until = time.monotonic() + within_seconds
        self.flush()
        while self._reports and (left := until - time.monotonic()) > 0:
            line = self._line
            if line is None:
                time.sleep(0.01)
                continue
            try:
                if line.waits(left):
                    self.take_in(line, line.receive(block=False))
            except Closed:
                self.lose(line)

    def forget(self) -> None:
        """Drop jobs and connection in a child forked by a task, which must not act as a worker."""
        self._lock = threading.Lock()
        self.is_leaving = True
        self._queue.clear()
        if self._line is not None:
            self._line.close()
            self._line = None

    def _send_unsent(self, older_than_seconds: float = 0.0) -> None:
        if self.logs is not None and self._line is not None and (chunks := self.logs.take()):
            self._send(("logs", chunks))
        if self._skipped and self._line is not None:
            skipped, self._skipped = self._skipped, []
            self._send(("skipped", skipped))
        waited_seconds = time.monotonic() - self._unsent_since
        if self._unsent and waited_seconds >= older_than_seconds and self._line is not None:
            reports, self._unsent = self._unsent, []
            self._send(("reports", reports))

    def _say_leaving(self) -> None:
        self._send(("leaving", [number for number in self._jobs if number not in self._reports]))

    def _send(self, message: Any) -> None:
        if self._line is None:
            return
        try:
            self._line.send(message)
        except Closed:  # its reader, if there is one, notices and closes it
            line = self._line
            self._drop(line)
            if line is not self._followed:
                line.close()

    def _call_off(self, line: Stream) -> None:
        """Abandon a connection: its reader notices and closes it; without a reader it is closed
        here."""
        if line is self._followed:
            line.stop_reading()
        else:
            line.close()

    def _drop(self, line: Stream) -> None:
        if self._line is line:
            self._line = None
            if not self.is_leaving:
                self._changed.clear()


JOB_THREADS = "stoker-job"
"""Prefix of the names of the threads in which a worker with CONCURRENCY above 1 runs sync tasks."""


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


connection_created.connect(_note, dispatch_uid="stoker.cluster.worker.workload")


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
