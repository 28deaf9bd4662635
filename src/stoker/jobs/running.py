"""The running attempt: its cancellation and time-out, and its data for log lines, signals,
reporters and the task's own code.

A request to end reaches a task in one of three ways::

    sync, in the main thread      a signal, whose handler raises TaskCancelled; it also ends a wait
    sync, in another thread       TaskCancelled is raised when that thread next runs Python code
    async                         the asyncio task is cancelled: CancelledError

It is a request, like the soft time-out. If a task swallows it, or is busy in C code, the sentinel
kills the worker.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connections
from django.dispatch import Signal

from stoker.brokers.contract import Delivery
from stoker.compat import (
    TASKS_APP,
    task_signals,
)
from stoker.exceptions import (
    TaskCancelled,
    TaskTimeout,
)
from stoker.jobs import outcomes
from stoker.jobs.outcomes import Outcome
from stoker.jobs.package import Package
from stoker.jobs.results import Result
from stoker.signals import tell

SIGNAL = getattr(signal, "SIGURG", None)
"""A signal that is ignored by default, so that a late one does no harm."""


class Interruption:
    """Cancels one attempt on request. If the task is sync, it interrupts the task's thread.

    Initial values are class attributes, because there is one object per job and few are used.
    """

    reason: str | None = None
    """Why the attempt must end. None: no cancellation was requested."""
    _deliver: Callable[[], object] | None = None
    _aim: Aim | None = None
    _is_raised = False

    def cancel(self, reason: str) -> None:
        """Cancel the attempt from another thread. An attempt that has not started will not start.
        An attempt that has ended is not affected."""
        self.reason = reason
        if self._aim is not None:
            self._aim.error = _with_reason(reason)
        deliver = self._deliver
        if deliver is not None:
            deliver()

    def remind(self) -> bool:
        """Send the signal again, and return whether that was necessary. Called repeatedly, because
        a signal that arrives just before a wait begins does not end the wait."""
        if self.reason is None or self._is_raised or self._deliver is not _signal_main_thread:
            return False
        _signal_main_thread()
        return True

    def check(self) -> None:
        """Raise TaskCancelled if the interruption came before the task began."""
        if self.reason is not None:
            raise TaskCancelled(self.reason)

    def is_behind(self, error: BaseException) -> bool:
        """Return whether the attempt ended with this error because it was interrupted."""
        return self.reason is not None and isinstance(error, TaskCancelled | asyncio.CancelledError)

    def __enter__(self) -> None:
        if threading.get_ident() == _main.thread_id:
            _main.interruption = self
            self._deliver = _signal_main_thread
        else:
            self._aim = Aim(TaskCancelled)
            self._deliver = self._aim.fire

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._aim is not None:
            self._aim.leave()
        else:
            _main.interruption = None
        self._deliver = None
        if isinstance(error, Exception):
            _raise_hidden_interruption(error)

    @contextmanager
    def of_coroutine(self) -> Iterator[None]:
        """Target the current asyncio task inside the block."""
        loop, tasks = asyncio.get_running_loop(), [asyncio.current_task()]

        def cancel() -> None:
            for one in tasks:
                assert one is not None
                one.cancel()

        def call_loop() -> None:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(cancel)

        self._deliver = call_loop
        try:
            self.check()
            yield
        finally:
            self._deliver = None
            tasks.clear()

    def ring(self) -> None:
        """Raise TaskCancelled if requested. Called in the main thread by the signal's handler."""
        if self.reason is not None and not self._is_raised:
            self._is_raised = True
            raise TaskCancelled(self.reason)


def _raise_hidden_interruption(error: Exception) -> None:
    """Raise the time-out or cancellation during which this error of a database was raised: an
    interrupted query may leave the connection in a state in which even its cursor cannot be closed.
    """
    before = error.__context__
    while before is not None and not isinstance(before, TaskTimeout | TaskCancelled):
        before = before.__context__
    if before is None:
        return
    used: Sequence[Any] = connections.all(initialized_only=True)
    of_drivers = [one.Database.Error for one in used]
    if isinstance(error, (DatabaseError, InterfaceError, *of_drivers)):
        raise before from error


def _with_reason(reason: str) -> type[TaskCancelled]:
    """Return an exception class with this reason, because only classes can be raised in another
    thread."""

    class Told(TaskCancelled):
        def __init__(self) -> None:
            super().__init__(reason)

    Told.__name__ = Told.__qualname__ = TaskCancelled.__name__
    Told.__module__ = TaskCancelled.__module__
    return Told


class _MainThread:
    """State of the main thread: whether the signal handler is installed, and which interruption the
    handler applies to."""

    thread_id: int | None = None
    interruption: Interruption | None = None


_main = _MainThread()


def listen() -> None:
    """Install the signal handler. Called once per process, in the main thread."""
    if SIGNAL is not None:
        signal.signal(SIGNAL, _hear)
        _main.thread_id = threading.get_ident()


def _hear(_signal: int, _frame: Any) -> None:
    if _main.interruption is not None:
        _main.interruption.ring()


def _signal_main_thread() -> None:
    if SIGNAL is not None and _main.thread_id is not None:
        signal.pthread_kill(_main.thread_id, SIGNAL)


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether SIGINT may have raised the error. In a worker SIGINT has another handler, so a
    KeyboardInterrupt comes from the task."""
    handler = signal.getsignal(signal.SIGINT)
    return isinstance(error, KeyboardInterrupt) and handler is signal.default_int_handler


NO_LIMIT = nullcontext()
SHORTEST_TIMER_SECONDS = 1e-6
"""Shortest time of a timer; 0 would turn it off."""


def time_limit(seconds: float | None) -> AbstractContextManager[None]:
    """Raise TaskTimeout in the block if it takes longer than ``seconds``. None: no limit."""
    if seconds is None:
        return NO_LIMIT
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        return _alarm(seconds)
    return _watchdog.watch(seconds)


def message(seconds: float) -> str:
    return f"the task ran longer than its time-out of {seconds:g} s"


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(_signal: int, _frame: Any) -> None:
        raise TaskTimeout(message(seconds))

    before, began_at = signal.signal(signal.SIGALRM, ring), time.monotonic()
    rest, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if rest:  # a timer of the caller, such as a test's own time-out
            rest = max(rest - (time.monotonic() - began_at), SHORTEST_TIMER_SECONDS)
            signal.setitimer(signal.ITIMER_REAL, rest, interval)


class Aim:
    """Let another thread raise an error in this thread: at most once, and not after ``leave``.

    ``leave`` takes no lock, because the error may be raised at any point, even between acquiring a
    lock and noting that it is held.
    """

    __slots__ = ("error", "fired", "is_being_decided", "is_over", "thread_id")

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.thread_id = threading.get_ident()
        self.is_over = False
        self.is_being_decided = False
        self.fired = False

    def fire(self) -> None:
        """Raise the error in the target thread. Called by another thread."""
        self.is_being_decided = True
        if not self.is_over and not self.fired:
            self.fired = True
            _raise_in(self.thread_id, self.error)
        self.is_being_decided = False

    def leave(self) -> None:
        """End the block. Called by the target thread; the error is not raised after this
        returns."""
        while True:
            try:
                self.is_over = True
                while self.is_being_decided:
                    time.sleep(0)
                if self.fired:
                    _raise_in(self.thread_id, None)
                return
            except self.error:  # the error was raised just now, and it is raised only once
                continue


class _Watch(Aim):
    """A block with a deadline."""

    __slots__ = ("deadline",)

    def __init__(self, seconds: float) -> None:
        super().__init__(TaskTimeout)
        self.deadline = time.monotonic() + seconds

    def __lt__(self, other: _Watch) -> bool:
        return self.deadline < other.deadline


class _Watchdog:
    """A thread that raises TaskTimeout in other threads when their deadline has passed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._watches: list[_Watch] = []
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, seconds: float) -> Iterator[None]:
        watch = _Watch(seconds)
        with self._condition:
            heapq.heappush(self._watches, watch)
            self._start()
            self._condition.notify()
        try:
            yield
        except TaskTimeout as error:
            if error.args:
                raise
            raise TaskTimeout(message(seconds)) from error.__cause__
        finally:
            watch.leave()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="stoker-watchdog", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        with self._condition:
            while True:
                while self._watches and self._watches[0].is_over:
                    heapq.heappop(self._watches)
                if not self._watches:
                    self._condition.wait()
                    continue
                wait_seconds = self._watches[0].deadline - time.monotonic()
                if wait_seconds > 0:
                    self._condition.wait(wait_seconds)
                    continue
                heapq.heappop(self._watches).fire()


def _raise_in(thread_id: int, error: type[BaseException] | None) -> None:
    pending = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), pending)


_watchdog = _Watchdog()


class FoundTask(NamedTuple):
    """A task, with what never changes in a process."""

    task: Any
    is_async: bool
    is_atomic: bool
    is_once: bool
    """Whether a job must not start a second time (``at_most_once``)."""


# Not frozen: there is one per job, and creating a frozen object takes several times as long.
@dataclass(slots=True)
class Running:
    """An attempt that runs or is about to run: an opened job."""

    delivery: Delivery
    package: Package
    found: FoundTask
    backend: str
    """Name of the backend under ``TASKS``."""
    started_at: float
    function: Callable[..., Any]
    """The function to call: the task's own, or a wrapper that calls it for each item of a list."""
    timeout_seconds: float | None
    result: Result[Any] | None = None
    """Created on first use; until then None."""
    hard_limit: AbstractContextManager[None] = NO_LIMIT
    """Entered while the task's function runs. A worker is killed if that takes too long."""
    soft_limit: asyncio.Timeout | None = None
    """The time-out of an async task that has started."""
    on_completing: Callable[[], object] = lambda: None
    """Called after an atomic task has returned, before its success is recorded in its
    transaction."""
    interruption: Interruption = field(default_factory=Interruption)
    reported_at: float = float("-inf")
    """Time of the last progress report, in monotonic seconds."""
    has_returned: bool = False
    """Whether the task has returned. Only its return value remains to be serialised."""
    is_logged: bool = False
    """Whether its start was logged. Only then is its end logged, too."""

    @property
    def has_timed_out(self) -> bool:
        """Return whether an async task was cancelled at its time-out. It may end with another
        error, for example of its clean-up."""
        return self.soft_limit is not None and self.soft_limit.expired()

    @property
    def job_id(self) -> UUID:
        return self.delivery.job_id

    @property
    def attempt(self) -> int:
        return self.delivery.attempt

    @property
    def task(self) -> str:
        """The path of the task, or of the plain function that it calls."""
        return self.package.task

    @property
    def queue(self) -> str:
        return self.package.queue

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.package.metadata

    @property
    def short_id(self) -> str:
        """The last digits of the job's id, which are random. Ids of the same minute start alike."""
        return self.job_id.hex[-12:]

    def log_start(self) -> None:
        """Log that the attempt starts, if such lines are enabled."""
        if job_lines.isEnabledFor(logging.INFO):
            self.is_logged = True
            self._log("job_started")

    def log_end(self, outcome: Outcome, seconds: float) -> None:
        """Log how the attempt ended. Failures are logged elsewhere."""
        if not isinstance(outcome, FAILURES):
            self._log("job_ended", outcome=outcome.kind, seconds=seconds)

    def _log(self, name: str, **facts: Any) -> None:
        tell(
            name,
            task=self.task,
            job_id=self.job_id,
            short_id=self.short_id,
            attempt=self.attempt,
            **facts,
        )


job_lines = logging.getLogger("stoker.jobs")
"""Logger of starts and ends of jobs. A cluster lowers its level on a terminal and with ``-v 2``."""
FAILURES = (outcomes.Failed, outcomes.Retried)
tasks_logger = logging.getLogger(TASKS_APP)
DJANGOS_OWN = {
    id(task_signals.log_task_enqueued),
    id(task_signals.log_task_started),
    id(task_signals.log_task_finished),
}
"""Ids of Django's own receivers, which only write log records."""
current: ContextVar[Running | None] = ContextVar("stoker_running", default=None)


def is_heard(signal: Signal, level: int = logging.INFO) -> bool:
    """Return whether sending the signal has any effect. Django's own receivers only write a log
    record at this level."""
    if not signal.receivers or tasks_logger.isEnabledFor(level):
        return bool(signal.receivers)
    for receiver in signal.receivers:  # noqa: SIM110 - a generator takes twice as long
        if receiver[0][0] not in DJANGOS_OWN:
            return True
    return False
