"""When to claim again: at once while there is more, soon after something came, later in silence."""

from __future__ import annotations

import time

SHORTEST_PAUSE_SECONDS = 0.002
OVERDUE_PAUSE_SECONDS = 0.02
"""Until the next look at a deferred job that is due and could not be had: somebody's transaction
holds it."""


class Tempo:
    """The rhythm of a pusher's claims.

    Args:
        poll_seconds: the longest pause.
    """

    def __init__(self, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._pause_seconds = SHORTEST_PAUSE_SECONDS
        self._there_is_more = False
        self.next_claim = 0.0
        """Monotonic seconds; infinity while more is there and only the workers' hunger counts."""

    @property
    def is_pausing(self) -> bool:
        """Whether time decides when to claim again, not the workers' hunger."""
        return not self._there_is_more

    @property
    def is_going_to_sleep(self) -> bool:
        """Whether the pause has grown long enough to ask when the next deferred job is due."""
        return self.is_pausing and self._pause_seconds >= min(0.05, self._poll_seconds)

    def is_due(self, is_hungry: bool) -> bool:
        """Whether to claim now."""
        if self._there_is_more:
            return is_hungry
        return time.monotonic() >= self.next_claim

    def hurry(self, *, closely: bool = True) -> None:
        """Something may have come: claim now, and closely: keep looking for a while."""
        if closely:
            self._pause_seconds = SHORTEST_PAUSE_SECONDS
        self.next_claim = min(self.next_claim, time.monotonic())

    def note(self, got: int, asked: int) -> None:
        """Learn from a claim."""
        self._there_is_more = got == asked
        if self._there_is_more:
            self.next_claim = float("inf")
            return
        if got:
            self._pause_seconds = SHORTEST_PAUSE_SECONDS
        else:
            self._pause_seconds = min(self._poll_seconds, self._pause_seconds * 2)
        self.next_claim = time.monotonic() + self._pause_seconds

    def wake_in(self, seconds: float | None) -> None:
        """A deferred job is due then."""
        if seconds is not None:
            shortest = SHORTEST_PAUSE_SECONDS if seconds > 0 else OVERDUE_PAUSE_SECONDS
            due = time.monotonic() + max(seconds, shortest)
            self.next_claim = min(self.next_claim, due)
