"""The pusher's look at which of the jobs that run here are to be ended.

A small table is read twice a second while something is in flight: it is empty unless somebody
cancels, and then it has a row for each job that does not end at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stoker.conf import Settings
from stoker.models import Cancellation

from .flights import Flight, Flights
from .patience import Patience

LOOK_SECONDS = 0.5


class Cancels:
    """The jobs of one cluster that are to be ended.

    Args:
        say: tells the sentinel.
    """

    def __init__(self, settings: Settings, flights: Flights, say: Callable[..., None]) -> None:
        self._requests = Cancellation.objects.using(settings.database)
        self._flights = flights
        self._say = say
        self._look_at = 0.0

    def next_look(self) -> float:
        """Monotonic seconds."""
        return self._look_at if len(self._flights) else float("inf")

    def look_if_due(self, patience: Patience) -> None:
        """Have the workers told that have such a job."""
        if time.monotonic() < self.next_look():
            return
        self._look_at = time.monotonic() + LOOK_SECONDS
        answer = patience.call(self._requests.all().reasons)
        if answer is None or not answer.value:
            return
        for flight in self._flights:
            reason = answer.value.get(flight.delivery.job_id)
            if reason is not None:
                self._cancel(flight, reason)

    def _cancel(self, flight: Flight, reason: str) -> None:
        """A worker that dies is known by how it died; a new one is told again, as the flight has a
        new number then."""
        is_running = flight.worker is not None and flight.report is None
        if is_running and flight.cancelled_as != flight.number:
            flight.cancelled_as = flight.number
            self._say("cancel", flight.worker, flight.number, reason)
