"""How long permits have to be good for: so long that hardly any runs out before its job is started,
and no longer, since what is left of them is lost for the rate."""

from __future__ import annotations

from collections import deque

SHORTEST_SECONDS = 0.02
"""What no broker goes below."""
LONGEST_SECONDS = 1.0
REMEMBERED = 32


class Permits:
    """Learns from how the last ones were used. On a host or database with much to do, all would run
    out otherwise, and the rate stand still."""

    def __init__(self) -> None:
        self._used: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def seconds(self) -> float:
        """How long the next ones shall be good for, at least."""
        wanted_seconds = 1.1 * max(self._used, default=0.0)
        return min(max(wanted_seconds, SHORTEST_SECONDS), LONGEST_SECONDS)

    def note(self, asked_seconds: float, left_seconds: float) -> None:
        """A job was started with so much time left, or was that late, where it is negative. A very
        late one proves little: it had to wait for something long."""
        self._used.append(min(asked_seconds - left_seconds, 2 * asked_seconds))
