"""Read requests to the pusher: stop, take no more jobs, stop a job, pause a queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from stoker.brokers.patience import Patience
from stoker.cluster.plan import Plan
from stoker.conf import Settings
from stoker.models import Cancellation, Cluster, PausedQueue
from stoker.signals import tell
from stoker.store.prepared import Compiled

from .adoption import Recall
from .flights import Flight, Flights

REQUESTS_SECONDS = 0.9
"""Half of that costs an idle cluster a fifth of a percent of a core."""


class Requests:
    """What one cluster is asked.

    Args:
        say: tells the sentinel.
        recall: takes back from the workers what none of them has started.
    """

    def __init__(self, plan: Plan, say: Callable[..., None], recall: Callable[[], None]) -> None:
        own_row = Cluster.objects.using(plan.settings.database).filter(pk=plan.cluster_id)
        self._asked = Compiled(own_row.values_list("request"))
        self._say = say
        self._recall = recall
        self._has_said_stop = False
        self.is_quiet = False
        """Whether no more jobs are to be claimed."""
        self.next_look = 0.0
        """Return when to read requests next, in monotonic seconds."""

    def look_if_due(self, patience: Patience) -> None:
        """Read the cluster's row and carry out its request. No row: no heartbeat was written
        yet."""
        if time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + REQUESTS_SECONDS
        answer = patience.call(self._asked.fetch)
        if answer is None or not answer.value:
            return
        ((request,),) = answer.value
        self._be_quiet(request != Cluster.Request.NONE)
        if request == Cluster.Request.STOP and not self._has_said_stop:
            self._has_said_stop = True
            self._say("stop_requested")

    @property
    def standing(self) -> str:
        """The request to write if the cluster's row has to be created again."""
        if self._has_said_stop:
            return Cluster.Request.STOP
        return Cluster.Request.QUIET if self.is_quiet else Cluster.Request.NONE

    def _be_quiet(self, is_quiet: bool) -> None:
        if is_quiet is not self.is_quiet:
            self.is_quiet = is_quiet
            tell("cluster_quiet" if is_quiet else "cluster_resumed")
            if is_quiet:
                self._recall()


CANCELS_SECONDS = 0.5


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
        """Return when to read cancellations next, in monotonic seconds."""
        return self._look_at if len(self._flights) else float("inf")

    def look_if_due(self, patience: Patience) -> None:
        """Have the workers told that have such a job."""
        if time.monotonic() < self.next_look():
            return
        self._look_at = time.monotonic() + CANCELS_SECONDS
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


PAUSES_SECONDS = 0.5


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
        """The queues that were paused at the last look."""
        return self._flights.paused

    def next_look(self) -> float:
        """Return when to read the paused queues next, in monotonic seconds."""
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
        """Return whether the paused queues were read recently enough to claim now."""
        return time.monotonic() < self._look_at or self._look(patience)

    def tell_who_stays(self, patience: Patience, served: Collection[str]) -> None:
        """At the end of a drain: the jobs of paused queues are left as they are."""
        self.look_if_due(patience)
        if left := sorted(name for name in self.queues if not served or name in served):
            tell("drained_but_paused", queues=", ".join(left))

    def _look(self, patience: Patience) -> bool:
        """Read the paused queues, and release their jobs that were claimed but not started."""
        asked_at = time.monotonic()
        answer = patience.call(self._paused.fetch)
        if answer is None:
            return False
        self._look_at = asked_at + PAUSES_SECONDS
        self._has_claimed = False
        paused = frozenset(queue for (queue,) in answer.value)
        resumed, self._flights.paused = self.queues - paused, paused
        if resumed:
            self.on_resume()
        if paused:
            self._flights.give_back_paused()
            self._recall.recall_paused()
        return True
