"""The thread that keeps the leases of all locks which this process holds.

One for the whole process, begun with the first lock, asleep until the next renewal is due. It has
connections of its own. It holds no lock in memory: one that its owner has dropped unreleased is
renewed no more, and its lease ends.
"""

from __future__ import annotations

import math
import os
import threading
from contextlib import suppress
from weakref import WeakSet

from . import clock
from .holding import Holding


class Renewal:
    """The held locks of one process, and the thread that renews them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: WeakSet[Holding] = WeakSet()
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None

    def watch(self, holding: Holding) -> None:
        """Renew this from now on."""
        with self._changed:
            self._held.add(holding)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="stoker lock renewal", daemon=True
                )
                self._thread.start()
            elif holding.renew_at < self._wakes_at:
                self._changed.notify()

    def forget(self, holding: Holding) -> None:
        """Renew this no more."""
        with self._changed:
            self._held.discard(holding)

    def renew_due(self) -> None:
        """Renew what needs it."""
        with self._changed:
            due = [one for one in self._held if one.renew_at <= clock.now() and not one.is_over]
        for holding in due:
            holding.renew()
            if holding.is_over:
                self.forget(holding)
        for holding in due:
            with suppress(Exception):  # whatever the driver says: the next call connects anew
                holding.terms.find_store().rest()

    def seconds_to_next(self) -> float | None:
        """None when nothing is held."""
        moments = [holding.renew_at for holding in self._held]
        return max(0.0, min(moments) - clock.now()) if moments else None

    def _run(self) -> None:
        while True:
            with self._changed:
                pause = self.seconds_to_next()
                self._wakes_at = math.inf if pause is None else clock.now() + pause
                if pause != 0:
                    self._changed.wait(pause)
                self._wakes_at = -math.inf
            self.renew_due()


renewal = Renewal()
"""This process's."""


def _begin_anew() -> None:
    global renewal
    renewal = Renewal()


# A child has none of its parent's threads, and none of its locks either.
os.register_at_fork(after_in_child=_begin_anew)
