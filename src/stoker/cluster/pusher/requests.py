"""The requests of operators that the pusher reads from the store: to stop, to take no more jobs, to
change the workers, to end a job, or to pause a queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet, TextField, Value
from django.db.models.functions import Cast

from stoker.cluster.plan import Plan
from stoker.cluster.pusher.flights import Flight, Flights
from stoker.cluster.pusher.roster import Recall
from stoker.cluster.wire import Report
from stoker.jobs.outcomes import Cancelled, pack_outcome
from stoker.models import Cancellation, Cluster, PausedQueue
from stoker.signals import tell
from stoker.store.engines.sessions import Patience
from stoker.store.prepared import Compiled
from stoker.store.written import as_uuid

LOOK_SECONDS = 0.5
"""How often requests are read while this cluster has jobs or a queue is paused."""
IDLE_LOOK_SECONDS = 1.1
"""How often requests are read at other times. Each claim is followed by a read, so this is more
than the default of ``POLL_SECONDS``: an idle cluster then wakes up once for both."""


class Requests:
    """Reads all requests with one statement, and has them carried out.

    Args:
        say: sends a message to the sentinel.
        record: sends flights that have a report to the monitor.
    """

    def __init__(
        self,
        plan: Plan,
        flights: Flights,
        recall: Recall,
        say: Callable[..., None],
        record: Callable[[Sequence[Flight]], None],
    ) -> None:
        self.of_cluster = ClusterRequests(say, recall.recall_all)
        self.cancels = Cancels(plan.settings.database, flights, say, record)
        self.pauses = Pauses(plan, flights, recall)
        self._flights = flights
        self._asked = Compiled(*_queries(plan))
        self._look_at = 0.0
        """The last read is too old from this time on, in monotonic seconds."""
        self._has_claimed = False

    def next_look(self) -> float:
        """Return when to read requests next, in monotonic seconds."""
        if self._has_claimed or len(self._flights) or self.pauses.queues:
            return self._look_at
        return self._look_at + IDLE_LOOK_SECONDS - LOOK_SECONDS

    def look_if_due(self, patience: Patience) -> None:
        """Read the requests if a read is due."""
        if time.monotonic() >= self.next_look():
            self._look(patience)

    def note_claim(self) -> None:
        """Note a claim. If the last read is too old, the next ``look_if_due`` reads the
        requests."""
        self._has_claimed = time.monotonic() >= self._look_at

    def allow_claims(self, patience: Patience) -> bool:
        """Return whether to claim now: the requests were read recently, and the cluster was not
        asked to take no more jobs."""
        are_known = time.monotonic() < self._look_at or self._look(patience)
        return are_known and not self.of_cluster.is_quiet

    def _look(self, patience: Patience) -> bool:
        asked_at = time.monotonic()
        answer = patience.call(self._asked.fetch)
        if answer is None:
            return False
        self._look_at = asked_at + LOOK_SECONDS
        self._has_claimed = False
        of_kind: dict[int, list[tuple[Any, ...]]] = {CLUSTER: [], CANCELLATION: [], PAUSE: []}
        for kind, *values in answer.value:
            of_kind[kind].append(tuple(values))
        self.of_cluster.carry_out(of_kind[CLUSTER])
        reasons = {as_uuid(one): reason for one, _, reason in of_kind[CANCELLATION]}
        self.cancels.carry_out(reasons, patience, are_all=len(reasons) < MOST_CANCELLATIONS)
        self.pauses.carry_out((queue for queue, *_ in of_kind[PAUSE]), patience)
        return True


MOST_CANCELLATIONS = 500
"""Number of requests to cancel jobs that are read for all clusters. If there are more, this cluster
asks for those of its own jobs."""
CLUSTER, CANCELLATION, PAUSE = range(3)
"""Values of the first column of the rows that are read: the kind of request. The other three
columns are a text, a number and a text."""


def _queries(plan: Plan) -> list[QuerySet[Any, Any]]:
    """Return the queries for the requests to this cluster. All have the same columns.

    Each text is cast, because MariaDB refuses a UNION of texts with different collations: those of
    the tables and that of the connection.
    """
    alias = plan.settings.database
    own_row = Cluster.objects.using(alias).filter(pk=plan.cluster_id)
    cancellations = Cancellation.objects.using(alias).order_by()[:MOST_CANCELLATIONS]
    paused = PausedQueue.objects.using(alias)
    return [
        own_row.values_list(Value(CLUSTER), _text("request"), "workers", _text("recycle")),
        cancellations.values_list(Value(CANCELLATION), _text("job_id"), Value(0), _text("reason")),
        paused.values_list(Value(PAUSE), _text("queue"), Value(0), _text(Value(""))),
    ]


def _text(column: str | Value) -> Cast:
    return Cast(column, TextField())


class ClusterRequests:
    """Carries out the requests to this cluster: to stop, to take no more jobs, to have another
    number of workers, or to replace some.

    Args:
        say: sends a message to the sentinel.
        recall: recalls the unstarted jobs from all workers.
    """

    def __init__(self, say: Callable[..., None], recall: Callable[[], None]) -> None:
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

    def carry_out(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Carry out the requests in the cluster's row: ``request``, ``workers`` and ``recycle``. No
        row: no heartbeat was written yet."""
        if not rows:
            return
        ((request, number, recycle),) = rows
        workers = None if number is None else int(number)  # MariaDB returns a Decimal
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


NO_WORKER = -1
"""Stands for the worker of a job that ends without one."""


class Cancels:
    """Ends jobs of this cluster that were cancelled, while they run or before they are released.

    Args:
        alias: of the database with the requests.
        say: tells the sentinel.
        record: sends flights that have a report to the monitor.
    """

    def __init__(
        self,
        alias: str,
        flights: Flights,
        say: Callable[..., None],
        record: Callable[[Sequence[Flight]], None],
    ) -> None:
        self._requests = Cancellation.objects.using(alias)
        self._flights = flights
        self._say = say
        self._record = record

    def carry_out(
        self, reasons: Mapping[UUID, str], patience: Patience, *, are_all: bool = True
    ) -> None:
        """End running jobs of this cluster that are to be cancelled.

        Args:
            reasons: job id -> reason, for all clusters.
            patience: makes the call to the store.
            are_all: whether ``reasons`` is complete. If not, read it for this cluster's jobs.
        """
        if not are_all:
            job_ids = [flight.delivery.job_id for flight in self._flights]
            answer = patience.call(lambda: self._requests.reasons_of(job_ids))
            reasons = {} if answer is None else answer.value
        if not reasons:
            return
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
        answer = patience.call(lambda: self._requests.reasons_of(job_ids))
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


class Pauses:
    """The paused queues, as last read by this pusher."""

    def __init__(self, plan: Plan, flights: Flights, recall: Recall) -> None:
        self._alias = plan.settings.database
        self._served = plan.served_queues
        self._flights = flights
        self._recall = recall
        self.on_resume: Callable[[], object] = lambda: None
        """Called when there may be more to claim."""

    @property
    def queues(self) -> frozenset[str]:
        """The queues that were paused at the last read."""
        return self._flights.paused

    def carry_out(self, queues: Iterable[str], patience: Patience) -> None:
        """Note the queues that are paused now, and release their jobs that were claimed but not
        started."""
        before, paused = self.queues, frozenset(queues)
        self._flights.paused = paused
        if resumed := before - paused:
            self.on_resume()
        if paused:
            self._flights.release_paused()
            self._recall.recall_paused()
        for name in self._of_this_cluster(resumed):
            tell("queue_resumed", queue=name)
        if new := self._of_this_cluster(paused - before):
            self._log_new(new, patience)

    def log_left(self) -> None:
        """At the end of a drain, log the paused queues that this cluster serves."""
        if left := self._of_this_cluster(self.queues):
            tell("drained_but_paused", queues=", ".join(left))

    def _log_new(self, names: Sequence[str], patience: Patience) -> None:
        """Log who paused these queues, when and why. If that cannot be read, log only the names."""
        answer = patience.call(lambda: self._rows_of(names))
        known = {row.queue: row for row in answer.value} if answer is not None else {}
        for name in names:
            how = known[name].how if name in known else ""
            tell("queue_paused", queue=name, how=how.removesuffix("."))

    def _rows_of(self, names: Sequence[str]) -> list[PausedQueue]:
        return list(PausedQueue.objects.using(self._alias).filter(queue__in=names))

    def _of_this_cluster(self, names: Iterable[str]) -> list[str]:
        return sorted(name for name in names if not self._served or name in self._served)
