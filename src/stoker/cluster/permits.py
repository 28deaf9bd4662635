"""How long permits have to be good for. What is left of one is lost for the rate, and so is one
that runs out before its job is started."""

from __future__ import annotations

from collections import deque

SHORTEST_SECONDS = 0.02
"""What no broker goes below."""
LONGEST_SECONDS = 1.0
REMEMBERED = 64
PERIOD_SECONDS = 1.0
"""Of a short rate. In a longer one what is left of a permit hardly counts."""


class Permits:
    """Learns from how the last ones were used. On a host or database with much to do, all would run
    out otherwise, and the rate stand still."""

    def __init__(self) -> None:
        self._used: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def seconds(self) -> float:
        """How long the next ones shall be good for, at least: so long that the least is lost."""
        if not self._used:
            return SHORTEST_SECONDS
        late_seconds = PERIOD_SECONDS / len(self._used)
        used = enumerate(sorted(self._used, reverse=True))
        _, seconds = min((seconds + late * late_seconds, seconds) for late, seconds in used)
        return min(max(1.1 * seconds, SHORTEST_SECONDS), LONGEST_SECONDS)

    def note(self, asked_seconds: float, left_seconds: float) -> None:
        """A job was started with so much time left, or was that late, where it is negative. A very
        late one proves little: it had to wait for something long."""
        self._used.append(min(asked_seconds - left_seconds, 2 * asked_seconds))
