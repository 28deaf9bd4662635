"""Rescue jobs from clusters that are gone: take over leases that have ended, and record the lost
attempts.

A lease that seems to have ended may belong to a living cluster, if a server's clock was set ahead,
or if the store or a broker was away so that no lease could be extended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

from django.db import Error, InterfaceError, OperationalError

from stoker.brokers.adapters import brokers_beside
from stoker.brokers.contract import Broker, ClaimRequest, Delivery, Return
from stoker.brokers.dispatch import Dispatch
from stoker.cluster.board import Board, board_path, job_lease
from stoker.cluster.plan import Plan
from stoker.cluster.pusher.estimates import outline
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable
from stoker.jobs.backends import backend_of
from stoker.jobs.outcomes import CLUSTER_GONE, Attempted, Cancelled, Outcome, Snoozed, Tallies
from stoker.jobs.package import JobOptions, sealer_for
from stoker.jobs.record import finish
from stoker.jobs.retries import is_out_of_attempts
from stoker.models import Cancellation, Cluster, Job
from stoker.signals import tell
from stoker.store.engines.sessions import LONGEST_PAUSE_SECONDS
from stoker.store.locked_jobs import locked_jobs
from stoker.store.transactions import is_locked_out
from stoker.store.written import MICROSECONDS, database_now_us

BATCH = 500
OLD_BOARD_SECONDS = 86_400.0
JUMP_SHARE = 0.1
"""A clock that gained more than this share of a lease since the last check was set ahead."""


class WatchedClocks:
    """Detects that a server's clock was set ahead. Leases of live clusters would then seem to have
    ended.

    Live clusters extend their leases within one lease by the monotonic clock, or stop their jobs.

    Args:
        what: whose clock it is, for the log.
        read: returns server -> seconds since 1970 on its clock, for the servers that answer.
        lease_seconds: of the cluster.
    """

    def __init__(
        self, what: str, read: Callable[[], Mapping[str, float]], lease_seconds: float
    ) -> None:
        self._what = what
        self._read = read
        self._lease_seconds = lease_seconds
        self._seen: dict[str, tuple[float, float]] = {}
        """Server -> our monotonic time before it was asked, and its time."""
        self._good_at = 0.0

    def can_be_trusted(self) -> bool:
        """Return whether leases that have ended on these clocks have really ended."""
        asked_at = time.monotonic()
        clocks = self._read()
        answered_at = time.monotonic()
        for server, now in clocks.items():
            seen_at, seen = self._seen.get(server, (answered_at, now))
            ahead_seconds = now - seen - (answered_at - seen_at)
            if ahead_seconds > self._lease_seconds * JUMP_SHARE:
                pause_seconds = self._lease_seconds
                tell(
                    "clock_set_ahead",
                    what=self._what,
                    seconds=ahead_seconds,
                    pause_seconds=pause_seconds,
                )
                self._good_at = answered_at + pause_seconds
            self._seen[server] = asked_at, now
        return answered_at >= self._good_at


def database_clock(settings: Settings) -> WatchedClocks:
    """Return a watch on the database's clock, which decides when leases in the store end."""

    def read() -> dict[str, float]:
        return {settings.database: database_now_us(settings.database) / MICROSECONDS}

    return WatchedClocks("database", read, settings.lease_seconds)


def broker_clock(settings: Settings, broker: Broker | None) -> WatchedClocks:
    """Return a watch on the broker's clocks, which decide when leases at the broker end."""
    return WatchedClocks("broker", broker.clocks if broker else dict, settings.lease_seconds)


def release_seconds(settings: Settings) -> float:
    """Return how long after an outage a living cluster may take to extend or release its leases: a
    pause, and a call that the outage has left without an answer. At most a lease."""
    return min(settings.lease_seconds, LONGEST_PAUSE_SECONDS + settings.database_seconds)


class Outages:
    """Gives living clusters time after an outage of the store or a broker. They extend or release
    the leases that ended meanwhile, and such a release does not count as an attempt.

    Args:
        seconds: length of that time.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._away: set[Broker] = set()
        self._over_at: dict[Broker, float] = {}
        """End of the time after the last outage, until a rescue begins after it."""

    def note(self, place: Broker) -> None:
        """Record that the store or broker did not answer. This has no effect from the start of the
        time after an outage until the first rescue after that time, so that a step of upkeep that
        always fails cannot put off the rescue for ever."""
        if place not in self._over_at:
            self._away.add(place)

    def begin_rescue(self) -> None:
        """Let new outages count for each store or broker whose time has ended."""
        now = time.monotonic()
        self._over_at = {place: at for place, at in self._over_at.items() if at > now}

    def are_over(self, place: Broker) -> bool:
        """Return whether living clusters have had time since the last outage of this store or
        broker.

        Raises:
            BrokerUnavailable: it does not answer yet.
        """
        if place in self._away:
            place.ping()
            self._away.remove(place)
            self._over_at[place] = time.monotonic() + self.seconds
        return time.monotonic() >= self._over_at.get(place, 0.0)


class Grave(NamedTuple):
    """A dead cluster and its board, which shows the started jobs; None = the board is
    unavailable."""

    cluster: Cluster
    board: Board | None


class Rescue:
    """Rescues the jobs of one store and its broker, for one cluster.

    Args:
        beat: called often, as a heartbeat.
        tallies: count the outcomes that are recorded.
    """

    def __init__(
        self, plan: Plan, broker: Dispatch, beat: Callable[[], None], tallies: Tallies
    ) -> None:
        self._plan = plan
        self._settings = broker.settings
        self._broker = broker
        self._beat = beat
        self._tallies = tallies
        self._alias = self._settings.database
        self._rescuer = uuid4()
        """Holder of rescued leases. It is not the cluster, whose pusher does not know of them."""
        self._clock = database_clock(self._settings)
        self._clock_outside = broker_clock(self._settings, broker.broker)
        self._outages = Outages(release_seconds(self._settings))
        self.is_complete = False
        """Whether the last ``rescue`` took over all leases that had ended."""
        self.rescued_at = 0.0
        """When the last complete ``rescue`` began, as seconds since the epoch."""
        self._others = Cluster.objects.using(self._alias).exclude(pk=plan.cluster_id)

    @property
    def pause_seconds(self) -> float:
        """How long living clusters get after an outage."""
        return self._outages.seconds

    def note_error(self, error: Exception) -> None:
        """Record an outage of the store, or of the broker outside it, if the error of a step says
        that it did not answer. The step may have waited for the whole of the outage."""
        is_outage = isinstance(error, BrokerUnavailable | OperationalError | InterfaceError)
        if is_outage and not is_locked_out(error):
            is_of_store = isinstance(error, Error) or isinstance(error.__cause__, Error)
            self._outages.note(self._broker.lessors[0 if is_of_store else -1])

    def note_missed_rescue(self) -> None:
        """Record an outage of the store that prevented a run of upkeep, and so its rescue. It
        counts even if no rescue has begun since the time after an earlier outage."""
        self._outages.begin_rescue()
        self._outages.note(self._broker.lessors[0])

    def give_living_clusters_time(self) -> None:
        """Treat the start of this cluster as the end of an outage. If there are other clusters, it
        cannot know whether they could extend their leases until now, nor whether they live: if the
        store was away, they could write no heartbeats."""
        for place in self._broker.lessors:
            self._outages.note(place)

    def any_is_silent(self) -> bool:
        """Return whether a cluster has written no heartbeat for a whole lease."""
        return self._others.silent_for(self._settings.lease_seconds).exists()

    def bury_clusters_of_this_host(self) -> int:
        """Remove clusters on this host that have no process left, as their board shows."""
        here = self._others.filter(host=self._plan.host)
        graves = (Grave(cluster, self._board_of(cluster)) for cluster in here)
        return self._bury_all(grave for grave in graves if grave.board is not None)

    def _board_of(self, cluster: Cluster) -> Board | None:
        """Return the board of a cluster on this host if none of its processes is alive. The board
        of a cluster with another broker is left to clusters that can free its jobs there."""
        others = {one.settings.alias for one in brokers_beside(self._settings)}
        if cluster.host != self._plan.host or cluster.info.get("alias") in others:
            return None
        return Board.of_the_dead(Path(cluster.info.get("board", "")))

    def remove_old_boards(self) -> None:
        """Delete boards without a row. They are kept for a day, for clusters of this user's other
        projects."""
        folder = board_path(self._plan.cluster_id).parent
        for path in folder.glob("cluster-*.board"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > OLD_BOARD_SECONDS:
                    board = Board.of_the_dead(path)
                    if board is not None:
                        board.remove()

    def bury_silent_clusters(self) -> int:
        """Remove clusters without a heartbeat for a whole lease; their leases have ended. If
        they ran on this host, read their boards, because ``bury_clusters_of_this_host`` may have
        failed."""
        if not (self._clock.can_be_trusted() and self._outages.are_over(self._broker.lessors[0])):
            return 0
        silent = self._others.silent_for(self._settings.lease_seconds)
        return self._bury_all(Grave(cluster, self._board_of(cluster)) for cluster in silent)

    def _bury_all(self, graves: Iterable[Grave]) -> int:
        """Bury these clusters. If a broker is unavailable, go on, and raise the error last."""
        count, error = 0, None
        for grave in graves:
            try:
                count += self._bury(grave)
            except BrokerUnavailable as one:
                error = error or one
            self._beat()
        if error is not None:
            raise error
        return count

    def _bury(self, grave: Grave) -> int:
        """Free the jobs of a dead cluster, and delete its row and board. If that fails, the board
        is left unlocked for the next attempt."""
        with nullcontext() if grave.board is None else closing(grave.board):
            count = self._free(grave)
            if grave.board is not None:
                grave.board.path.unlink(missing_ok=True)
        return count

    def _free(self, grave: Grave) -> int:
        """Free the jobs of a dead cluster, and delete its row last. The jobs of the store go first,
        so that they do not wait for a broker that is unavailable."""
        cluster, count = grave.cluster, 0
        if grave.board is not None:
            for place in self._broker.lessors:
                count += self._free_at(place, cluster, grave.board)
        tell("cluster_buried", name=cluster.name, host=cluster.host, count=count)
        Cluster.objects.using(self._alias).filter(
            pk=cluster.pk, heartbeat_us=cluster.heartbeat_us
        ).delete()
        return count

    def _free_at(self, place: Broker, cluster: Cluster, board: Board) -> int:
        """Free the jobs that a dead cluster has leased there. Jobs that had not started are
        released without counting the attempt. For jobs that ran, or were finished but not recorded,
        record the lost attempts. Those that cannot be recorded now are left to ``rescue``."""
        running, finished = board.pids_of_running_jobs(), board.finished()
        lost: list[Delivery] = []
        unstarted: list[Delivery] = []
        for one in place.held_by(cluster.pk):
            has_started = one.job_id in running or job_lease(one) in finished
            (lost if has_started else unstarted).append(one)
        count = self._release(self._without_cancelled(unstarted, place), place)
        deaths: dict[UUID, Outcome] = {}
        for job_id, pid in running.items():
            how = f"the worker process {pid} on {cluster.host} died with its whole cluster"
            deaths[job_id] = replace(CLUSTER_GONE, detail=how)
        for start in range(0, len(lost), BATCH):
            batch = self._with_packages(lost[start : start + BATCH], place)
            self._record(batch, place, lambda _, one: deaths.get(one.job_id, CLUSTER_GONE))
            self._beat()
        if lost:
            tell("jobs_rescued", count=len(lost))
        place.expire_holder(cluster.pk)
        return count + len(lost)

    def _release(self, unstarted: Sequence[Delivery], place: Broker) -> int:
        """Release jobs without counting the attempt. Return how many were still leased."""
        count = 0
        for start in range(0, len(unstarted), BATCH):
            batch = unstarted[start : start + BATCH]
            returns = [
                Return(one.lease, attempts=one.attempt - 1, crashes=one.crashes) for one in batch
            ]
            count += len(batch) - len(place.settle(again=returns))
            self._beat()
        return count

    def _without_cancelled(self, deliveries: Sequence[Delivery], place: Broker) -> list[Delivery]:
        """End the jobs whose cancellation was requested, and return the others."""
        requests = Cancellation.objects.using(self._alias)
        reasons = requests.reasons_of([one.job_id for one in deliveries])
        if asked := [one for one in deliveries if one.job_id in reasons]:
            self._record(
                self._with_packages(asked, place),
                place,
                lambda _, one: Cancelled(reasons[one.job_id]),
            )
        return [one for one in deliveries if one.job_id not in reasons]

    def _with_packages(self, deliveries: Sequence[Delivery], place: Broker) -> list[Delivery]:
        """Add the packages, which ``held_by`` of the store does not read."""
        if place is not self._broker.store:
            return list(deliveries)
        stored = Job.objects.using(self._alias).packages([one.job_id for one in deliveries])
        return [one._replace(package=stored.get(one.job_id, b"")) for one in deliveries]

    def rescue(self) -> int:
        """Take over all jobs whose lease has ended, and record the lost attempts as crashes.

        The jobs are retried, or become dead letters if they have used up their attempts. Shortly
        after an outage, the leases of the store or broker that was away are left alone, and so are
        leases after the clock that decides about them was set ahead.
        """
        rescued, began_at, is_complete = 0, time.time(), True
        self.is_complete = False
        self._outages.begin_rescue()
        if not self._clock.can_be_trusted():
            return 0
        for place in self._broker.lessors:  # the store first: it does not wait for a broker
            if self._outages.are_over(place) and self._trusts(place):
                rescued += self._rescue_from(place)
            else:
                is_complete = False
        if is_complete:
            self.is_complete, self.rescued_at = True, began_at
        if rescued:
            tell("jobs_rescued", count=rescued)
        return rescued

    def _trusts(self, place: Broker) -> bool:
        """Return whether leases of the broker outside the store that have ended on its clock have
        really ended. The database's clock has been checked already."""
        if place is not self._broker.broker:
            return True
        try:
            return self._clock_outside.can_be_trusted()
        except BrokerUnavailable:
            self._outages.note(place)
            raise

    def _rescue_from(self, place: Broker) -> int:
        rescued = 0
        request = ClaimRequest(BATCH, self._rescuer, self._settings.lease_seconds)
        try:
            while deliveries := self._broker.claim_expired(request, place):
                kept = self._broker.kept([one.lease for one in deliveries])
                self._record(deliveries, place, partial(outcome_of_lost, kept))
                rescued += len(deliveries)
                self._beat()
        except BrokerUnavailable:
            self._outages.note(place)
            raise
        return rescued

    def _record(
        self,
        deliveries: Sequence[Delivery],
        place: Broker,
        outcome_of: Callable[[Settings, Delivery], Outcome],
    ) -> None:
        """Record the outcomes of these jobs, each with the settings of its backend."""
        now = time.time()
        for settings, some in self._by_backend(deliveries, place):
            outcomes = [(one, outcome_of(settings, one)) for one in some]
            attempted = [Attempted(one, outcome, "", None, now) for one, outcome in outcomes]
            self._finish(settings, attempted)

    def _by_backend(
        self, deliveries: Sequence[Delivery], place: Broker
    ) -> list[tuple[Settings, list[Delivery]]]:
        """Return the jobs of each backend with this store. Those that none can open, and those of a
        broker outside the store, count as jobs of this cluster's backend."""
        found: dict[Settings, list[Delivery]] = {}
        for one in deliveries:
            settings = self._settings
            if place is self._broker.store:
                settings = backend_of(self._settings, one.queue, one.package)
            found.setdefault(settings, []).append(one)
        return list(found.items())

    def _finish(self, settings: Settings, attempted: Sequence[Attempted]) -> None:
        """Record the outcomes. Outcomes that the store refuses or whose hooks need a driver that
        is missing here, found by halving, and outcomes whose rows are locked by other transactions
        wait until their new lease ends."""
        try:
            finish(settings, self._broker, attempted, tallies=self._tallies)
        except (BrokerUnavailable, OperationalError, InterfaceError) as error:
            if not is_locked_out(error):
                raise
            locked = locked_jobs(self._alias, [one.delivery.job_id for one in attempted])
            free = [one for one in attempted if one.delivery.job_id not in locked]
            if len(free) == len(attempted):
                raise
            if free:
                self._finish(settings, free)
        except Exception as error:  # noqa: BLE001 - one bad outcome must not hold up the others
            if len(attempted) == 1:
                tell("upkeep_failed", step="rescue", error=error)
                return
            middle = len(attempted) // 2
            self._finish(settings, attempted[:middle])
            self._finish(settings, attempted[middle:])


def outcome_of_lost(kept: Collection[UUID], settings: Settings, delivery: Delivery) -> Outcome:
    """Return the outcome of an attempt whose lease has ended. If the cluster had not handed out the
    job (``Broker.kept``), its last attempt has not begun."""
    if delivery.job_id in kept:
        head = outline(sealer_for(settings), delivery.package)
        options = JobOptions(head.max_attempts, head.max_crashes)
        if is_out_of_attempts(options, delivery.attempt, delivery.crashes + 1):
            return Snoozed(0.0, "its cluster is gone, and no worker had received it")
    return CLUSTER_GONE
