"""The clock by which a holder judges on its own whether its lease has ended."""

from __future__ import annotations

import time

_COUNTS_SLEEP: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Seconds since some moment in the past. Never steps back, and on Linux goes on while the
    machine sleeps: a laptop that was closed for an hour must not believe in its old lease."""
    if _COUNTS_SLEEP is None:
        return time.monotonic()
    return time.clock_gettime(_COUNTS_SLEEP)
