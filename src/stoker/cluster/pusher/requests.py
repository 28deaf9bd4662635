"""The requests of operators that the pusher reads from the store: to stop, to take no more jobs, to
change the workers, to end a job, or to pause a queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from stoker.cluster.plan import Plan
from stoker.cluster.pusher.flights import Flight, Flights
from stoker.cluster.pusher.roster import Recall
from stoker.cluster.wire import Report
from stoker.conf import Settings
from stoker.jobs.outcomes import Cancelled, pack_outcome
from stoker.models import Cancellation, Cluster, PausedQueue
from stoker.signals import tell
from stoker.store.engines.sessions import Patience
from stoker.store.prepared import Compiled
from stoker.store.written import as_uuid

REQUESTS_SECONDS = 0.9
"""How often requests are read. Reading twice as often would cost an idle cluster 0.2 % of a core
more."""


class Requests:
    """Reads the requests of operators to this cluster: to stop, to take no more jobs, to have
    another number of workers, or to replace some.

    Args:
        say: sends a message to the sentinel.
        recall: recalls the unstarted jobs from all workers.
    """

    def __init__(self, plan: Plan, say: Callable[..., None], recall: Callable[[], None]) -> None:
        own_row = Cluster.objects.using(plan.settings.database).filter(pk=plan.cluster_id)
        self._asked = Compiled(own_row.values_list("request", "workers", "recycle"))
        self._say = say
        self._recall = recall
        self._has_said_stop = False
        self.workers: int | None = None
        """The requested number of workers; None = as many as at the start."""
        self._has_said_workers = False
        self._recycled: set[str] = set()
        """The workers that the sentinel was told to replace."""
        self.is_quiet = False
        """Whether no more jobs are to be claimed."""
        self.next_look = 0.0
        """When to read requests next, in monotonic seconds."""

    def look_if_due(self, patience: Patience) -> None:
        """Read the cluster's row and carry out its request. No row: no heartbeat was written
        yet."""
        if time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + REQUESTS_SECONDS
        answer = patience.call(self._asked.fetch)
        if answer is None or not answer.value:
            return
        ((request, workers, recycle),) = answer.value
        self._be_quiet(request != Cluster.Request.NONE)
        if request == Cluster.Request.STOP and not self._has_said_stop:
            self._has_said_stop = True
            self._say("stop_requested")
        # The first time in any case: the sentinel may have another number from the pusher before.
        if workers != self.workers or not self._has_said_workers:
            self.workers, self._has_said_workers = workers, True
            self._say("resize", workers)
        for name in set(recycle.split()) - self._recycled:
            self._recycled.add(name)
            self._say("replace", *map(int, name.split(".")))

    @property
    def standing(self) -> str:
        """Return the open request, so that it is kept if the cluster's row has to be recreated."""
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
NO_WORKER = -1
"""Stands for the worker of a job that ends without one."""


class Cancels:
    """Ends jobs of this cluster that were cancelled, while they run or before they are released.

    Args:
        say: tells the sentinel.
        record: sends flights that have a report to the monitor.
    """

    def __init__(
        self,
        settings: Settings,
        flights: Flights,
        say: Callable[..., None],
        record: Callable[[Sequence[Flight]], None],
    ) -> None:
        self._all = Cancellation.objects.using(settings.database)
        self._requests = Compiled(self._all.values_list("job_id", "reason"))
        self._flights = flights
        self._say = say
        self._record = record
        self._look_at = 0.0

    def next_look(self) -> float:
        """Return when to read cancellations next, in monotonic seconds."""
        return self._look_at if len(self._flights) else float("inf")

    def look_if_due(self, patience: Patience) -> None:
        """Read the cancellations, and send them to the workers of the cancelled jobs."""
        if time.monotonic() < self.next_look():
            return
        self._look_at = time.monotonic() + CANCELS_SECONDS
        answer = patience.call(self._requests.fetch)
        if answer is None or not answer.value:
            return
        reasons = {as_uuid(job_id): reason for job_id, reason in answer.value}
        for flight in self._flights:
            reason = reasons.get(flight.delivery.job_id)
            if reason is not None:
                self._cancel(flight, reason)

    def _cancel(self, flight: Flight, reason: str) -> None:
        """Ask the sentinel, once, to end this flight in its worker. If the flight moves to another
        worker, it has a new number, and the request is repeated."""
        is_running = flight.worker is not None and flight.report is None
        if is_running and flight.cancelled_as != flight.number:
            flight.cancelled_as = flight.number
            self._say("cancel", flight.worker, flight.number, reason)

    def end_unstarted(self, patience: Patience, flights: Sequence[Flight]) -> list[Flight]:
        """End the given jobs whose cancellation was requested, instead of releasing them: another
        cluster might start them at once. Return the other jobs, or no jobs if the requests cannot
        be read."""
        job_ids = [flight.delivery.job_id for flight in flights]
        answer = patience.call(lambda: self._all.reasons_of(job_ids))
        if answer is None:
            return []
        reasons = answer.value
        asked = [one for one in flights if one.delivery.job_id in reasons and _is_known(one)]
        if asked:
            self._flights.forget_released(asked)
            reports = [self._end(one, reasons[one.delivery.job_id]) for one in asked]
            self._record(self._flights.report_all(NO_WORKER, reports))
        return [flight for flight in flights if flight.is_open]

    def _end(self, flight: Flight, reason: str) -> Report:
        """Return the report of a cancelled job that no worker has. Its lease is held until that is
        recorded."""
        number = self._flights.last_number + 1
        self._flights.adopt(number, flight.delivery, NO_WORKER, flight.leased_at)
        return (number, None, time.time(), "", pack_outcome(Cancelled(reason)), "", None)


def _is_known(flight: Flight) -> bool:
    """Return whether the end of the job can be recorded: the store has its row, or its package is
    here."""
    return isinstance(flight.delivery.lease_id, int) or bool(flight.delivery.package)


PAUSES_SECONDS = 0.5


class Pauses:
    """The paused queues, as last read by this pusher."""

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
        """The queues that were paused at the last read."""
        return self._flights.paused

    def next_look(self) -> float:
        """Return when to read the paused queues next, in monotonic seconds."""
        is_watched = self._has_claimed or len(self._flights) or self.queues
        return self._look_at if is_watched else float("inf")

    def look_if_due(self, patience: Patience) -> None:
        """Read the paused queues if a read is due, see ``next_look``."""
        if time.monotonic() >= self.next_look():
            self._look(patience)

    def look_again(self) -> None:
        """Read the paused queues soon after a claim, if the last read is too old."""
        self._has_claimed = time.monotonic() >= self._look_at

    def are_known(self, patience: Patience) -> bool:
        """Return whether the paused queues were read recently enough to claim now."""
        return time.monotonic() < self._look_at or self._look(patience)

    def tell_who_stays(self, patience: Patience, served: Collection[str]) -> None:
        """At the end of a drain, log the paused queues that still have jobs."""
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
            self._flights.release_paused()
            self._recall.recall_paused()
        return True
