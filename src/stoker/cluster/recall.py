"""Taking back what a worker has been sent and has not started.

Unstarted jobs behind a long one are recalled as soon as somebody is idle, and all of them when the
cluster stops. The recall goes over the board: the worker shows what it starts before it looks
whether it was recalled, the pusher writes the recall before it looks what was started; so one of
the two always sees it. In between it waits a little, for memory to be the same on all processors.
"""

from __future__ import annotations

import time

from . import board as place
from .board import Board
from .flights import Flight, Flights
from .roster import Roster

UNFAIR_SECONDS = 0.02
"""How long a job may wait behind another while some worker is idle."""
SETTLES_SECONDS = 0.002


class Recall:
    """The recalls of one cluster."""

    def __init__(self, roster: Roster, flights: Flights, board: Board) -> None:
        self._roster = roster
        self._flights = flights
        self._board = board
        self._since: dict[int, tuple[int, float]] = {}
        """Worker -> through which number, and since when; until it has settled."""

    def recall_all(self) -> None:
        """Take back everything unstarted from everybody."""
        for worker in self._roster.links:
            self.recall(worker)

    def recall_for_the_idle(self) -> None:
        """Let idle workers have what waits behind a long job elsewhere."""
        self.take_back()
        if self._roster.is_unfair():
            now = time.monotonic()
            for worker in self._roster.links:
                unstarted = self._unstarted(worker)
                is_late = unstarted and now - unstarted[0].sent_at > UNFAIR_SECONDS
                if is_late and worker not in self._since:
                    self.recall(worker)

    def recall_paused(self) -> None:
        """Take back what waits inside a worker and is of a paused queue. What else waits there is
        handed out again."""
        for worker in self._roster.links:
            unstarted = self._unstarted(worker)
            is_paused = any(one.delivery.queue in self._flights.paused for one in unstarted)
            if is_paused and worker not in self._since:
                self.recall(worker)

    def recall(self, worker: int, through: int | None = None) -> None:
        """Let a worker start nothing of what it has been sent so far."""
        held = self._flights.with_worker(worker)
        through = max([through or 0, *held, self._board.worker(worker, place.RECALLED_THROUGH)])
        if through:
            self._board.set_worker(worker, place.RECALLED_THROUGH, through)
            self._since[worker] = (through, time.monotonic())

    def take_back(self) -> None:
        """After a recall has settled, everything not started by then is ours again."""
        now = time.monotonic()
        for worker, (through, since) in list(self._since.items()):
            if now - since >= SETTLES_SECONDS:
                del self._since[worker]
                for flight in self._unstarted(worker):
                    if flight.number <= through:
                        self._flights.take_back(flight)

    def settle(self) -> None:
        """Wait for the recalls that are under way. It is a moment."""
        if self._since:
            time.sleep(SETTLES_SECONDS)
            self.take_back()

    def has_started(self, worker: int, number: int) -> bool:
        """Whether a job may have been started. Of a worker that is gone nobody knows yet: how it
        died is still to be told."""
        link = self._roster.links.get(worker)
        last_started = self._board.worker(worker, place.LAST_STARTED)
        is_there = link and link.incarnation == self._board.worker(worker, place.INCARNATION)
        return not is_there or number <= last_started

    def next_look(self, now: float) -> float:
        """When a recall may be due, or settled; monotonic seconds."""
        if self._since:
            return now + SETTLES_SECONDS
        return now + UNFAIR_SECONDS if self._roster.is_unfair() else float("inf")

    def _unstarted(self, worker: int) -> list[Flight]:
        held = self._flights.with_worker(worker)
        return [one for number, one in held.items() if not self.has_started(worker, number)]
