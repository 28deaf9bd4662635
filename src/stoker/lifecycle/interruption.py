"""Interruption: how an attempt that runs is told to end, in whichever thread or coroutine it is.

::

    sync, in the main thread      a signal, whose handler raises TaskCancelled: it ends a wait, too
    sync, in another thread       TaskCancelled is raised when that thread is back in Python
    async                         the asyncio task is cancelled: CancelledError

It is a request, like the soft time-out. A task that swallows it, or sits in C code, is ended by the
sentinel.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from stoker.exceptions import TaskCancelled

from .time_limit import Aim

SIGNAL = getattr(signal, "SIGURG", None)
"""Ignored by who has no handler for it, so that one which comes late does no harm."""


class Interruption:
    """That of one attempt. Entered around a sync task, it is aimed at its thread. As there is one
    for each job, and hardly any is told anything, what it starts with is kept by the class."""

    reason: str | None = None
    """Why the attempt is to end; None = it is not."""
    _deliver: Callable[[], object] | None = None
    _aim: Aim | None = None
    _is_raised = False

    def cancel(self, reason: str) -> None:
        """Called by another thread. What is not running yet will not begin; what is over stays."""
        self.reason = reason
        if self._aim is not None:
            self._aim.error = _with_reason(reason)
        deliver = self._deliver
        if deliver is not None:
            deliver()

    def remind(self) -> bool:
        """Called again and again: a signal that comes just before a wait begins does not end it.
        Whether it is still to be heard."""
        if self.reason is None or self._is_raised or self._deliver is not _signal_main_thread:
            return False
        _signal_main_thread()
        return True

    def check(self) -> None:
        """Raises TaskCancelled when it came before there was anything to interrupt."""
        if self.reason is not None:
            raise TaskCancelled(self.reason)

    def is_behind(self, error: BaseException) -> bool:
        """Whether the attempt ended with this error because it was told to end."""
        return self.reason is not None and isinstance(error, TaskCancelled | asyncio.CancelledError)

    def __enter__(self) -> None:
        if threading.get_ident() == _main.thread_id:
            _main.interruption = self
            self._deliver = _signal_main_thread
        else:
            self._aim = Aim(TaskCancelled)
            self._deliver = self._aim.fire

    def __exit__(self, *_: object) -> None:
        if self._aim is not None:
            self._aim.leave()
        else:
            _main.interruption = None
        self._deliver = None

    @contextmanager
    def of_coroutine(self) -> Iterator[None]:
        """Aimed at the asyncio task that runs this."""
        loop, tasks = asyncio.get_running_loop(), [asyncio.current_task()]

        def cancel() -> None:
            for one in tasks:
                assert one is not None
                one.cancel()

        def call_loop() -> None:
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(cancel)

        self._deliver = call_loop
        try:
            self.check()
            yield
        finally:
            self._deliver = None
            tasks.clear()

    def ring(self) -> None:
        """Called in the main thread, by the handler of the signal."""
        if self.reason is not None and not self._is_raised:
            self._is_raised = True
            raise TaskCancelled(self.reason)


def _with_reason(reason: str) -> type[TaskCancelled]:
    """In another thread only a class can be raised, and no instance."""

    class Told(TaskCancelled):
        def __init__(self) -> None:
            super().__init__(reason)

    Told.__name__ = Told.__qualname__ = TaskCancelled.__name__
    Told.__module__ = TaskCancelled.__module__
    return Told


class _MainThread:
    """The main thread, where it listens, and what runs there now."""

    thread_id: int | None = None
    interruption: Interruption | None = None


_main = _MainThread()


def listen() -> None:
    """Let the main thread be interrupted; called in it, once in a process."""
    if SIGNAL is not None:
        signal.signal(SIGNAL, _hear)
        _main.thread_id = threading.get_ident()


def _hear(_signal: int, _frame: Any) -> None:
    if _main.interruption is not None:
        _main.interruption.ring()


def _signal_main_thread() -> None:
    if SIGNAL is not None and _main.thread_id is not None:
        signal.pthread_kill(_main.thread_id, SIGNAL)
