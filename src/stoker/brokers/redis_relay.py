"""How jobs are brought to Redis: in loads, and from outboxes within a time.

Who relays may be stopped for long between reading an outbox and telling Redis, while others relay
the same and the jobs end. What is remembered keeps such a latecomer from adding them again; for
that to be short, he is refused when he comes too late: on Redis' clock, since nobody notices his
own pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stoker.models.clock import MICROSECONDS

from .base import Message

AT_ONCE = 500
RELAY_SECONDS = 60.0
"""How long after an outbox was read what was found there may be added."""
LATE_SECONDS = 600.0
"""How long a job is remembered that its outbox has no more: longer than anybody can be late, with
room for a server's clock that is set back."""
TOO_LATE = (
    f"What was read from the outbox reached Redis more than {RELAY_SECONDS:.0f} seconds later, and "
    "was not added: it will be read again."
)
REMEMBERED_SECONDS = 24 * 3600.0
"""The same, of one that may still be in its outbox, because who relayed it died."""
LOAD_JOBS = 100_000
"""Redis takes a million words in one command, and a job has five."""
LOAD_BYTES = 256 << 20


class ServerClock:
    """The server's clock as this process can tell it, without asking each time.

    Args:
        ask: gives what the server's clock says, in microseconds since 1970.
    """

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._lead: float | None = None
        """Of the server's clock over our monotonic one, in seconds."""

    def now(self) -> float:
        """Seconds since 1970. It asks at first only."""
        if self._lead is None:
            self._lead = self._ask() / MICROSECONDS - time.monotonic()
        return time.monotonic() + self._lead

    def ask_again(self) -> None:
        """It was wrong: ask before the next answer."""
        self._lead = None


def batches(ids: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """As many ids as a script takes."""
    for start in range(0, len(ids), AT_ONCE):
        yield ids[start : start + AT_ONCE]


def loads(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """As many at once as the server takes."""
    start, load_bytes = 0, 0
    for place, message in enumerate(messages):
        load_bytes += len(message.package)
        if place - start >= LOAD_JOBS or (load_bytes > LOAD_BYTES and place > start):
            yield messages[start:place]
            start, load_bytes = place, len(message.package)
    if messages:
        yield messages[start:]
