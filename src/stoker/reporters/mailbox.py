"""A mailbox: what may take its time waits here for a thread that does it, one after another."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from weakref import WeakSet

from stoker.events import tell

MOST_WAITING = 100

_mailboxes: WeakSet[Mailbox] = WeakSet()


class Mailbox:
    """That of one reporter in this process. Its thread begins with the first letter, and keeps no
    process from ending."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self.dropped = 0
        """How many letters found no room."""
        self.begin_anew()
        _mailboxes.add(self)

    def begin_anew(self) -> None:
        """In a forked child there is no thread, and the letters are the parent's to send."""
        self._waiting: queue.Queue[Callable[[], object]] = queue.Queue(MOST_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, send: Callable[[], object]) -> None:
        """Have it called soon, unless too many wait already. ``send`` must not raise."""
        try:
            self._start()
            self._waiting.put_nowait(send)
        except (queue.Full, RuntimeError):  # RuntimeError: there can be no further thread
            self.dropped += 1
            if _is_round(self.dropped):
                tell("reports_dropped", reporter=self._owner, count=self.dropped)

    def flush(self, seconds: float) -> None:
        """Wait until all are sent, so long at most."""
        waiting = self._waiting
        with waiting.all_tasks_done:
            waiting.all_tasks_done.wait_for(lambda: not waiting.unfinished_tasks, seconds)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                name = f"stoker-{self._owner}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            send = self._waiting.get()
            try:
                send()
            finally:
                del send
                self._waiting.task_done()


def _is_round(number: int) -> bool:
    """Whether it is 1, 10, 100, ...: how often to tell of something that goes on."""
    return str(number).rstrip("0") == "1"


def _begin_anew() -> None:
    for mailbox in list(_mailboxes):
        mailbox.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
