"""The loops of pusher, monitor and scheduler: their heartbeats on the board, and when one of them
counts as hung."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from stoker.conf import Settings

from . import board as place
from .board import Board

LONGEST_PAUSE_SECONDS = 10.0
"""The longest pause before the sentinel starts a process again that has ended early several
times."""
REPLACED_SECONDS = 2 * LONGEST_PAUSE_SECONDS
"""Time in which the sentinel replaces a process that it has killed. Half of it is the longest
pause. The old process ends and the new one starts in the other half."""
MOST_COUNTED_SECONDS = 5.0
"""A loop's silence grows by at most this from one look of the sentinel to the next. If the time
between them was longer, the sentinel was suspended, and perhaps all other processes too."""

LOOPS = {
    "pusher": place.PUSHER_BEAT_NS,
    "monitor": place.MONITOR_BEAT_NS,
    "scheduler": place.SCHEDULER_BEAT_NS,
}
"""Role -> index in the board of the heartbeat of its loop."""


def loops_of(role: str) -> Sequence[str]:
    """Return the loops that the process with this role runs."""
    if role == "core":
        return tuple(LOOPS)
    return (role,) if role in LOOPS else ()


def loop_ages(board: Board) -> dict[str, float]:
    """Return role -> seconds since the last turn of its loop."""
    now_ns = time.monotonic_ns()
    return {role: round(max(0, now_ns - board[beat]) / 1e9, 3) for role, beat in LOOPS.items()}


def hang_seconds(settings: Settings) -> float:
    """Return the time in seconds after which a process without a turn of its loop counts as
    hung."""
    return 2 * settings.database_seconds + 8.0


def first_turn_seconds(settings: Settings) -> float:
    """Return the time in seconds after which a process counts as hung that has not turned its loop
    since it was started. Receivers of ``post_spawn`` may take as long as in a worker."""
    return max(hang_seconds(settings), settings.start_seconds)


def recovery_seconds(settings: Settings) -> float:
    """Return how many seconds it takes at most until a process that hangs is replaced, and the loop
    of the new one turns."""
    return hang_seconds(settings) + REPLACED_SECONDS + first_turn_seconds(settings)


class Loops:
    """The loops of one cluster, for its sentinel."""

    def __init__(self, settings: Settings, board: Board) -> None:
        self._settings = settings
        self._board = board
        self.hang_seconds = hang_seconds(settings)
        self.beats = LOOPS
        self._looked_ns = time.monotonic_ns()
        self._last_beats: dict[str, int] = {}
        """Role -> its heartbeat at the last look."""
        self._silent_seconds = dict.fromkeys(LOOPS, 0.0)
        """Role -> how long its loop has not turned."""
        self._first_beats: dict[str, int] = {}
        """Role -> the heartbeat that was written when its process was started."""

    def note_start(self, role: str) -> None:
        """Write the first heartbeat of a loop whose process is being started."""
        self._board[LOOPS[role]] = self._first_beats[role] = time.monotonic_ns()

    def all_turn(self) -> bool:
        """Return whether every loop has completed a turn within its time limit."""
        self._look()
        return all(self._silent_seconds[role] <= self._longest_seconds(role) for role in self.beats)

    def hung(self) -> Iterator[tuple[str, float]]:
        """Yield the roles whose loop exceeds its time limit, and that limit in seconds."""
        self._look()
        for role, beat in self.beats.items():
            seconds = self._longest_seconds(role)
            if self._silent_seconds[role] > seconds:
                self._board[beat] = self._looked_ns
                yield role, seconds

    def _look(self) -> None:
        """Add the time since the last look to the silence of each loop that has not turned
        meanwhile. The monotonic clock goes on while a cluster is suspended, so a long time counts
        only in part. If the sentinel is only slow, loops that hang are still found, but later."""
        now_ns = time.monotonic_ns()
        counted_ns = min(now_ns - self._looked_ns, round(MOST_COUNTED_SECONDS * 1e9))
        self._looked_ns = now_ns
        for role, beat in self.beats.items():
            turned_ns = self._board[beat]
            if turned_ns == self._last_beats.get(role):
                self._silent_seconds[role] += counted_ns / 1e9
            else:
                self._last_beats[role] = turned_ns
                self._silent_seconds[role] = max(0, min(counted_ns, now_ns - turned_ns)) / 1e9

    def _longest_seconds(self, role: str) -> float:
        """Return the time limit for the next turn of a loop."""
        if self._board[self.beats[role]] != self._first_beats.get(role):
            return self.hang_seconds
        return first_turn_seconds(self._settings)
