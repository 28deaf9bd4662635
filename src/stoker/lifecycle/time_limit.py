"""The soft time-out: ``TaskTimeout`` raised inside the task, in whichever thread it runs.

It is a request. A task that swallows it, or sits in C code, is ended by the sentinel.
"""

from __future__ import annotations

import ctypes
import heapq
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from stoker.exceptions import TaskTimeout

NO_LIMIT = nullcontext()


def time_limit(seconds: float | None) -> AbstractContextManager[None]:
    """Raise TaskTimeout in the block when it takes longer than ``seconds``; None = no limit."""
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

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Aim:
    """A block of the current thread in which another thread may have an error raised, once. The
    aimed-at thread takes no lock when it leaves the block: the error may be raised in it at any
    point there, also between taking a lock and noting it."""

    __slots__ = ("error", "fired", "is_being_decided", "is_over", "thread_id")

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.thread_id = threading.get_ident()
        self.is_over = False
        self.is_being_decided = False
        self.fired = False

    def fire(self) -> None:
        """Called by another thread."""
        self.is_being_decided = True
        if not self.is_over and not self.fired:
            self.fired = True
            _raise_in(self.thread_id, self.error)
        self.is_being_decided = False

    def leave(self) -> None:
        """Called by the aimed-at thread: from here on the error is not raised in it any more."""
        while True:
            try:
                self.is_over = True
                while self.is_being_decided:
                    time.sleep(0)
                if self.fired:
                    _raise_in(self.thread_id, None)
                return
            except self.error:  # raised just now: it is the one that fired, and the last
                continue


class _Watch(Aim):
    """One block that is being watched."""

    __slots__ = ("deadline",)

    def __init__(self, seconds: float) -> None:
        super().__init__(TaskTimeout)
        self.deadline = time.monotonic() + seconds

    def __lt__(self, other: _Watch) -> bool:
        return self.deadline < other.deadline


class _Watchdog:
    """A thread that raises TaskTimeout in other threads when their time is over."""

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
            raise TaskTimeout(message(seconds)) from None
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
