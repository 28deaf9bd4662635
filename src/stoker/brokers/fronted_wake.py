"""How a cluster sleeps on a broker and on the store in front of it."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .wake import Wake


class FrontedWake(Wake):
    """Sleeps on both.

    Args:
        look_at_store: called when something has come there.
    """

    def __init__(self, store: Wake, behind: Wake, look_at_store: Callable[[], object]) -> None:
        self._look_at_store = look_at_store
        self._store = store
        self._behind = behind
        self._both: Any = selectors.DefaultSelector()
        self._watched: set[int] = set()
        self._note_longest_sleep()

    def fileno(self) -> int | None:
        """One descriptor for those of both, which change when a connection is opened anew."""
        wanted = {number for one in (self._store, self._behind) if (number := one.fileno())}
        for number in self._watched - wanted:
            with suppress(KeyError, OSError):  # it is closed, and so not watched any more
                self._both.unregister(number)
        for number in wanted:
            with suppress(KeyError):
                self._both.register(number, selectors.EVENT_READ)
        self._watched = wanted
        return self._both.fileno() if wanted else None

    def is_due(self) -> bool:
        has_store_woken = self._store.is_due()
        if has_store_woken:
            self._look_at_store()
        has_woken = self._behind.is_due() or has_store_woken
        self._note_longest_sleep()
        return has_woken

    def close(self) -> None:
        self._store.close()
        self._behind.close()
        self._both.close()

    def _note_longest_sleep(self) -> None:
        longest = [one.max_sleep_seconds for one in (self._store, self._behind)]
        self.max_sleep_seconds = min((one for one in longest if one is not None), default=None)
