"""When to start again what died: at once, unless it dies as soon as it lives."""

from __future__ import annotations

import time

SHORT_LIFE_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0

Key = tuple[str, int]


class Restarts:
    """The processes that are to be started, each with its moment."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._short_lives: dict[Key, int] = {}

    def plan(self, key: Key, lived_seconds: float, *, is_failure: bool) -> None:
        """Start ``key`` again: at once after a long life or a clean end, later and later after
        short ones."""
        if lived_seconds >= SHORT_LIFE_SECONDS or not is_failure:
            self._short_lives.pop(key, None)
        else:
            self._short_lives[key] = self._short_lives.get(key, 0) + 1
        short_lives = self._short_lives.get(key, 0)
        pause = 0.0
        if short_lives > 1:
            pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (short_lives - 2))
        self._due[key] = time.monotonic() + pause

    def due(self) -> list[Key]:
        """Those whose moment has come; each is named once."""
        now = time.monotonic()
        keys = [key for key, moment in self._due.items() if moment <= now]
        for key in keys:
            del self._due[key]
        return keys
