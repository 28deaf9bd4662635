"""Calls of project code in the monitor and the scheduler: receivers of signals, ``on_dead_letter``.

They run one after another in a separate thread, because they may block or never return. Calls that
must not wait for them, such as writing a result to a cache, have a second thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from stoker.cluster.worker.clean_up import tidy_connections
from stoker.signals import tell

LIMIT_SECONDS = 30.0
MOST_STUCK = 3
"""Maximum number of abandoned calls. Once it is reached, a call that does not return is not
abandoned and delays the following calls."""
MOST_WAITING = 1000
MOVING_SECONDS = 1.0
"""``put`` waits while the queue is full, as long as calls return within this time."""
TELL_SECONDS = 60.0


class Callbacks:
    """Makes the calls of one process to user code in a separate thread.

    Args:
        beat: called as a heartbeat while the queue is full.
    """

    def __init__(self, beat: Callable[[], None], limit_seconds: float = LIMIT_SECONDS) -> None:
        self._beat = beat
        self._limit_seconds = limit_seconds
        self._waiting: deque[tuple[str, Callable[[], object]]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._running: dict[threading.Thread, tuple[str, float]] = {}
        """Thread -> its call and the start time, for the current thread and the abandoned ones."""
        self._left_out = 0
        self._tell_at = 0.0
        self._apart: Callbacks | None = None

    def put(self, what: str, call: Callable[[], object], is_apart: bool = False) -> None:
        """Queue a call. It is dropped if the queue is full and no call returns.

        Args:
            is_apart: whether the call belongs to a second queue, with a thread of its own.
        """
        if is_apart:
            with self._changed:
                self._apart = self._apart or Callbacks(self._beat, self._limit_seconds)
            self._apart.put(what, call)
            return
        while len(self._waiting) >= MOST_WAITING and self._is_moving():
            self._beat()
            time.sleep(0.002)
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                self._left_out += 1
            else:
                self._waiting.append((what, call))
            if self._thread is None or not self._thread.is_alive():
                self._start()
            self._changed.notify_all()

    def look(self) -> None:
        """Abandon a call that takes too long, and log dropped calls. To be called every second or
        so."""
        if self._apart is not None:
            self._apart.look()
        now = time.monotonic()
        with self._changed:
            thread = self._thread
            what, since = self._running.get(thread, ("", now)) if thread else ("", now)
            is_stuck = now - since > self._limit_seconds and len(self._running) <= MOST_STUCK
            if is_stuck:
                self._start()
            left_out = self._left_out if now >= self._tell_at else 0
            if left_out:
                self._left_out, self._tell_at = 0, now + TELL_SECONDS
        if is_stuck:
            tell("callback_stuck", what=what, seconds=now - since)
        if left_out:
            tell("callbacks_left_out", count=left_out)

    def close(self, seconds: float) -> None:
        """Wait until every call is made, at most ``seconds``."""
        until = time.monotonic() + seconds
        if self._apart is not None:
            self._apart.close(seconds)
        with self._changed:
            while self._waiting or self._thread in self._running:
                left = until - time.monotonic()
                if left <= 0:
                    self._left_out += len(self._waiting)
                    break
                self._changed.wait(left)
            self._thread = None
            self._changed.notify_all()
            left_out = self._left_out
        if left_out:
            tell("callbacks_left_out", count=left_out)

    def _is_moving(self) -> bool:
        with self._changed:
            thread = self._thread
            if thread is None or not thread.is_alive():
                return False
            _, since = self._running.get(thread, ("", time.monotonic()))
        return time.monotonic() - since < MOVING_SECONDS

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="callbacks", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                while self._thread is me and not self._waiting:
                    self._changed.wait()
                if self._thread is not me:
                    return
                what, call = self._waiting.popleft()
                self._running[me] = (what, time.monotonic())
            try:
                call()
                tidy_connections()
            except BaseException as error:  # noqa: BLE001 - the project's code may raise anything
                tell("callback_failed", what=what, error=error)
            finally:
                with self._changed:
                    del self._running[me]
                    self._changed.notify_all()
