"""The turns of jobs with the same lock: the pusher starts them one after another."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from .flights import Flight

FOLLOW_SECONDS = 0.25
"""How long after the start of a turn other jobs may be leased behind it."""
HELD_UP_SECONDS = 0.1
"""How long after their claim, and after the start of a turn, followers count as jobs that will soon
start. After that, the pusher claims jobs of other keys in their place."""
KEEP_SECONDS = 0.5
"""How long an unstarted job is kept while no worker here has room for it."""
FOLLOWER_SECONDS = 2.0
"""How long a follower is kept, however many turns before it have ended meanwhile."""


class LineOfFlights:
    """The flights of jobs that hold one key."""

    def __init__(self) -> None:
        self.first: Flight | None = None
        """The flight that has the turn."""
        self.followers: deque[Flight] = deque()
        self.ended: set[Flight] = set()
        """Those whose job has ended, until the outcome is recorded."""

    @property
    def may_grow(self) -> bool:
        """Return whether others may be leased behind these."""
        since = time.monotonic() - FOLLOW_SECONDS
        return self.first is None or self.first.came_at >= since

    @property
    def held_up_at(self) -> float:
        """Return when the followers stop counting as jobs that will soon start. There must be at
        least one follower."""
        assert self.first is not None
        return min(self.first.came_at, self.followers[-1].came_at) + HELD_UP_SECONDS

    @property
    def keep_until(self) -> float:
        """Return when to release the first follower. There must be at least one."""
        assert self.first is not None
        has_waited_at = self.followers[0].came_at + FOLLOWER_SECONDS
        return min(self.first.came_at + KEEP_SECONDS, has_waited_at)

    def late(self) -> list[Flight]:
        """Return the followers that have waited too long, behind one job or behind several."""
        assert self.first is not None
        now = time.monotonic()
        if self.first.came_at + KEEP_SECONDS <= now:
            return list(self.followers)
        return [one for one in self.followers if one.came_at + FOLLOWER_SECONDS <= now]


class Turns:
    """The flights of jobs with a lock. This cluster may lease many jobs of one key, in one claim or
    in several. One of them at a time has the turn: it waits for a worker or is at one. The others
    follow it. All of them hold the key, so no other cluster can start a job under it.

    ``came_at`` of a flight is the time when its turn began, or its wait as a follower.
    """

    def __init__(self) -> None:
        self._lines: dict[UUID, LineOfFlights] = {}
        """Key -> its line."""
        self._followed: dict[UUID, LineOfFlights] = {}
        """Key -> its line, if it has followers."""
        self._line_of: dict[UUID, LineOfFlights] = {}
        """Job -> its line."""

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, job_id: object) -> bool:
        """Return whether others may be leased behind this job."""
        line = self._line_of.get(job_id) if isinstance(job_id, UUID) else None
        return line is not None and line.may_grow

    def begin(self, flight: Flight) -> bool:
        """Return whether the flight may wait for a worker. If not, it follows another."""
        key_id = flight.delivery.turn
        if key_id is None:
            return True
        line = self._lines.get(key_id)
        if line is None:
            line = self._lines[key_id] = LineOfFlights()
        self._line_of[flight.delivery.job_id] = line
        if line.first is None:
            line.first = flight
            return True
        line.followers.append(flight)
        self._followed[key_id] = line
        return False

    def end(self, flight: Flight) -> Flight | None:
        """End the turn of a flight whose job has ended. Return the flight whose turn begins."""
        key_id = flight.delivery.turn
        line = None if key_id is None else self._lines.get(key_id)
        if key_id is None or line is None or line.first is not flight:
            return None
        line.ended.add(flight)
        line.first = line.followers.popleft() if line.followers else None
        if line.first is not None:
            line.first.came_at = time.monotonic()
            if not line.followers:
                del self._followed[key_id]
        return line.first

    def leave(self, flight: Flight) -> list[Flight]:
        """Remove a flight. If it had the turn, remove its followers, too, and return them, because
        another cluster may now run its job under the same key."""
        key_id = flight.delivery.turn
        line = None if key_id is None else self._lines.get(key_id)
        if key_id is None or line is None:
            return []
        gone: list[Flight] = []
        if flight in line.ended:
            line.ended.remove(flight)
        elif line.first is flight:
            line.first = None
            gone += line.followers
            line.followers.clear()
        elif flight in line.followers:
            line.followers.remove(flight)
        for one in (flight, *gone):
            self._line_of.pop(one.delivery.job_id, None)
        if not line.followers:
            self._followed.pop(key_id, None)
        if line.first is None and not line.ended:
            del self._lines[key_id]
        return gone

    def followers(self) -> list[Flight]:
        """Return the flights without the turn."""
        return [flight for line in self._followed.values() for flight in line.followers]

    def late(self) -> list[Flight]:
        """Return the followers that have waited too long."""
        return [flight for line in self._followed.values() for flight in line.late()]

    @property
    def keep_until(self) -> float:
        """When to release the first follower, in monotonic seconds."""
        return min((line.keep_until for line in self._followed.values()), default=float("inf"))

    @property
    def moving(self) -> int:
        """The number of followers that are expected to start soon: the last of them was claimed,
        and the turn before them began, within HELD_UP_SECONDS."""
        now = time.monotonic()
        return sum(
            len(line.followers) for line in self._followed.values() if line.held_up_at >= now
        )

    @property
    def moving_until(self) -> float:
        """When ``moving`` decreases unless another turn begins, in monotonic seconds."""
        now = time.monotonic()
        times = (line.held_up_at for line in self._followed.values())
        return min((one for one in times if one >= now), default=float("inf"))
