"""The pusher's look at which queues are paused.

A small table is read with a claim when the last look is half a second old, and twice a second
while something is in flight or paused: so a pause counts within a second, and so does its end. No
claim is made by whoever cannot read it: the look comes first, unless the claim itself looks there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from stoker.conf import Settings
from stoker.events import tell
from stoker.models import PausedQueue
from stoker.models.compiled import Compiled

from .flights import Flights
from .patience import Patience
from .recall import Recall

LOOK_SECONDS = 0.5


class Pauses:
    """The paused queues, as one pusher knows them."""

    def __init__(self, settings: Settings, flights: Flights, recall: Recall) -> None:
        self._paused = Compiled(PausedQueue.objects.using(settings.database).values_list("queue"))
        self._flights = flights
        self._recall = recall
        self._look_at = 0.0
        self._has_claimed = False
        self.on_resume: Callable[[], object] = lambda: None
        """Called when there may be more to claim."""

    @property
    def queues(self) -> frozenset[str]:
        """Those that were paused at the last look."""
        return self._flights.paused

    def next_look(self) -> float:
        """Monotonic seconds."""
        is_watched = self._has_claimed or len(self._flights) or self.queues
        return self._look_at if is_watched else float("inf")

    def look_if_due(self, patience: Patience) -> None:
        """Look while something is in flight or paused."""
        if time.monotonic() >= self.next_look():
            self._look(patience)

    def look_again(self) -> None:
        """A claim has been made: look soon, if the last look is too old for it."""
        self._has_claimed = time.monotonic() >= self._look_at

    def are_known(self, patience: Patience) -> bool:
        """Whether a claim may be made now: what is paused has been read a moment ago."""
        return time.monotonic() < self._look_at or self._look(patience)

    def tell_who_stays(self, patience: Patience, served: Collection[str]) -> None:
        """At the end of a drain: the jobs of paused queues are left as they are."""
        self.look_if_due(patience)
        if left := sorted(name for name in self.queues if not served or name in served):
            tell("drained_but_paused", queues=", ".join(left))

    def _look(self, patience: Patience) -> bool:
        """What was claimed before a queue was paused, and has not started, is given back."""
        asked_at = time.monotonic()
        answer = patience.call(self._paused.fetch)
        if answer is None:
            return False
        self._look_at = asked_at + LOOK_SECONDS
        self._has_claimed = False
        paused = frozenset(queue for (queue,) in answer.value)
        resumed, self._flights.paused = self.queues - paused, paused
        if resumed:
            self.on_resume()
        if paused:
            self._flights.give_back_paused()
            self._recall.recall_paused()
        return True
