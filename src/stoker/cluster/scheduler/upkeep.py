"""Upkeep: repair and clean the store, at a cluster's start and regularly.

One cluster at a time does it, under a lease. Each step is independent: it checks its condition in
the statement that changes something, works in bounded batches, and its failure is logged and stops
neither the other steps nor the cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

from django.db import Error, InterfaceError, OperationalError, connections

from stoker.brokers.contract import Broker, ClaimRequest, Delivery, Return
from stoker.brokers.dispatch import Dispatch
from stoker.cluster.board import Board, board_path, job_lease
from stoker.cluster.plan import Plan
from stoker.cluster.pusher.estimates import outline
from stoker.cluster.reload import code_digest
from stoker.conf import Settings
from stoker.dead_letters.sweep import DeadLetterSweep
from stoker.exceptions import BrokerUnavailable, StokerError
from stoker.guards.sweep import GuardSweep
from stoker.inspect.queue_depths import queues
from stoker.jobs.cancel import sweep_requests
from stoker.jobs.outcomes import CLUSTER_GONE, Attempted, Cancelled, Outcome, Snoozed, Tallies
from stoker.jobs.package import JobOptions, sealer_for
from stoker.jobs.pruning import Pruning
from stoker.jobs.record import finish
from stoker.jobs.retries import is_out_of_attempts
from stoker.locks.sweep import Leftovers
from stoker.models import (
    Blocked,
    BulkOperation,
    Cancellation,
    Claimed,
    Cluster,
    Deferred,
    Deploy,
    GuardKey,
    LockKey,
    Need,
    Outgoing,
    Ready,
    Sample,
    Schedule,
    Tally,
)
from stoker.models.metrics import FOLDS, PEAKS, SAMPLE_SECONDS, fold_oldest, forget_before
from stoker.operations.bulk_walk import forget_old, go_on
from stoker.signals import tell
from stoker.store.engines import engine_of
from stoker.store.locked_jobs import locked_jobs
from stoker.store.prepared import any_of
from stoker.store.transactions import is_locked_out
from stoker.store.written import moment
from stoker.workflows.sweep import WorkflowSweep

from .ended_leases import Outages, broker_clock, database_clock, release_seconds

BATCH = 500
LOCK = "stoker:upkeep"
VACUUM_SECONDS = 2.0
VACUUM_SHARE, LONGEST_VACUUM_SECONDS = 10, 20.0
"""Vacuum uses at most a tenth of the time, because while a snapshot is open it removes nothing and
takes longer and longer. It still runs at least every ``LONGEST_VACUUM_SECONDS``."""
BULK_SECONDS, BULK_REST_SECONDS = 0.5, 2.0
"""Duration of one run of bulk operations, and the pause after a run that found none."""
REST_RUNS = 6
"""A step that had nothing to do runs once in this many runs."""
OLD_BOARD_SECONDS = 86_400.0
HOT_TABLES = (Ready, Claimed, Deferred, Blocked, Need, GuardKey, Outgoing, Schedule)


class Grave(NamedTuple):
    """A dead cluster and its board, which shows the started jobs; None = the board is
    unavailable."""

    cluster: Cluster
    board: Board | None


class Upkeep:
    """The upkeep of one store by one cluster. ``beat`` is called often, as a heartbeat."""

    def __init__(
        self, plan: Plan, settings: Settings, broker: Dispatch, beat: Callable[[], None]
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._broker = broker
        self._beat = beat
        self._rescuer = uuid4()
        """Holder of rescued leases. It is not the cluster, whose pusher does not know of them."""
        self._alias = settings.database
        self._clock = database_clock(settings)
        self._clock_outside = broker_clock(settings, broker.broker)
        self._outages = Outages(release_seconds(settings))
        self._holds_lease = False
        self._vacuum_at = self._bulk_at = 0.0
        self._dead: Mapping[str, int] = {}
        """Table -> number of dead rows at the last check."""
        self._guards = GuardSweep(settings, broker, beat)
        self._dead_letters = DeadLetterSweep(settings, beat)
        self._pruning = Pruning(settings, beat)
        self._died: dict[UUID, Outcome] = {}  # job id -> outcome that the next rescue records
        self._rescued_at = 0.0
        """When the last complete ``rescue`` began, as seconds since the epoch."""
        self._workflows = WorkflowSweep(settings, broker, beat)
        self._history = History(settings, beat)
        self._tallies = Tallies(settings)
        running = BulkOperation.objects.using(self._alias).filter(state=BulkOperation.State.RUNNING)
        self._running_in_bulk = any_of(running)
        self._others = Cluster.objects.using(self._alias).exclude(pk=plan.cluster_id)
        self._any_other = any_of(self._others)
        self._any_request = any_of(Cancellation.objects.using(self._alias))
        self._rests: dict[str, int] = {}
        """Step -> number of runs that still skip it."""
        self.leftovers = Leftovers(self._alias, beat)

    def clean_up_at_start(self) -> None:
        """Release jobs and delete files of dead clusters of this host, without the upkeep lease."""
        self._step("clusters of this host", self.bury_clusters_of_this_host)
        self._step("rescue", self.rescue)
        self._step("guards", self._guards.sweep)
        self._step("boards", self.remove_old_boards)
        self._step("deploy", lambda: self._history.note_deploy(self._plan.host))

    def run(self) -> None:
        """Run all due steps, if this cluster holds the upkeep lease."""
        has_lease = self._step("lease", self._take_lease)
        if has_lease is None:
            self._outages.note(self._broker.lessors[0])
        self._holds_lease = bool(has_lease)
        if self._holds_lease:
            if self._step("clusters", self._any_other.fetch):
                self._step("clusters", self.bury_clusters_of_this_host)
                self._step("silent clusters", self.bury_silent_clusters)
            self._step("rescue", self.rescue)
            if self._step("cancellations", self._any_request.fetch):
                self._step("cancellations", lambda: sweep_requests(self._settings, self._beat))
            self._step("guards", self._guards.sweep)
            self._step("dead letters", self._dead_letters.sweep)
            self._step("workflows", self._workflows.go_on)
            self._now_and_then("prune", self.prune)
            self._now_and_then("old dead letters", self._dead_letters.purge)
            self._now_and_then("old workflows", self._workflows.tidy)
            self._step("locks", self.leftovers.forget_locks)
            self._step("unique keys", self.leftovers.forget_keys)
            self._step("ticks", lambda: self.leftovers.forget_ticks(self._settings.keep_ticks))
            self._step("relayed", self.leftovers.forget_relayed)
            self._step("begun", self.leftovers.forget_begun)
            self._step("notes", self.leftovers.forget_notes)
            keeps_logs = self._settings.logs is not None
            self._step("logs", lambda: self.leftovers.forget_logs(often=keeps_logs))
            self._step("backlogs", self._history.note_backlogs)
            self._now_and_then("metrics", self._history.tidy)
            self._now_and_then("old bulk operations", lambda: forget_old(self._settings))
        if self._tallies.are_due:
            self._step("tallies", self._tallies.write)

    def vacuum_if_due(self) -> None:
        """Vacuum the hot tables of PostgreSQL.

        Claims read from the start of an index, where dead rows must disappear within seconds,
        earlier than autovacuum would remove them.
        """
        now = time.monotonic()
        if not self._holds_lease or now < self._vacuum_at:
            return
        self._vacuum_at = now + VACUUM_SECONDS
        self._step("vacuum", self._vacuum)
        seconds = VACUUM_SHARE * (time.monotonic() - now)
        self._vacuum_at = now + max(VACUUM_SECONDS, min(seconds, LONGEST_VACUUM_SECONDS))

    def go_on_in_bulk(self) -> bool:
        """Continue bulk operations for a short time. Return whether there were any."""
        if not self._holds_lease or time.monotonic() < self._bulk_at:
            return False
        name = "bulk operations"
        goes_on = bool(self._step(name, self._running_in_bulk.fetch))
        if goes_on:
            self._step(name, lambda: go_on(self._settings, BULK_SECONDS, beat=self._beat))
        else:
            self._bulk_at = time.monotonic() + BULK_REST_SECONDS
        return goes_on

    # -- rescue -----------------------------------------------------------------------------------

    def bury_clusters_of_this_host(self) -> int:
        """Remove clusters on this host that have no process left, as their board shows."""
        here = self._others.filter(host=self._plan.host)
        graves = (Grave(cluster, self._board_of(cluster)) for cluster in here)
        return self._bury_all(grave for grave in graves if grave.board is not None)

    def _board_of(self, cluster: Cluster) -> Board | None:
        """Return the board of a cluster on this host if none of its processes is alive."""
        if cluster.host != self._plan.host:
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
        released without counting the attempt. Jobs that ran, or were finished but not recorded, are
        left to ``rescue``."""
        running, finished = board.pids_of_running_jobs(), board.finished()
        held, count = place.held_by(cluster.pk), 0
        unstarted = [one for one in held if one.job_id not in running]
        unstarted = [one for one in unstarted if job_lease(one) not in finished]
        unstarted = self._without_cancelled(unstarted)
        for start in range(0, len(unstarted), BATCH):
            batch = unstarted[start : start + BATCH]
            returns = [
                Return(one.lease, attempts=one.attempt - 1, crashes=one.crashes) for one in batch
            ]
            count += len(batch) - len(place.settle(again=returns))
            self._beat()
        for one in held:
            if (pid := running.get(one.job_id)) is not None:
                how = f"the worker process {pid} on {cluster.host} died with its whole cluster"
                self._died[one.job_id] = replace(CLUSTER_GONE, detail=how)
        return count + place.expire_holder(cluster.pk)

    def _without_cancelled(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """End the jobs whose cancellation was requested, and return the others."""
        requests = Cancellation.objects.using(self._alias)
        reasons = requests.reasons_of([one.job_id for one in deliveries])
        if asked := [one for one in deliveries if one.job_id in reasons]:
            now = time.time()
            self._finish(
                [Attempted(one, Cancelled(reasons[one.job_id]), "", None, now) for one in asked]
            )
        return [one for one in deliveries if one.job_id not in reasons]

    def rescue(self) -> int:
        """Take over all jobs whose lease has ended, and record the lost attempts as crashes.

        The jobs are retried, or become dead letters if they have used up their attempts. Shortly
        after an outage, the leases of the store or broker that was away are left alone, and so are
        leases after the clock that decides about them was set ahead.
        """
        rescued, began_at, is_complete = 0, time.time(), True
        if not self._clock.can_be_trusted():
            return 0
        for place in self._broker.lessors:  # the store first: it does not wait for a broker
            if self._outages.are_over(place) and self._trusts(place):
                rescued += self._rescue_from(place)
            else:
                is_complete = False
        if is_complete:
            self._rescued_at = began_at
            self._died.clear()
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
                now = time.time()
                kept = self._broker.kept([one.lease for one in deliveries])
                lost = [(one, self._lost(one, one.job_id in kept)) for one in deliveries]
                self._finish([Attempted(one, outcome, "", None, now) for one, outcome in lost])
                rescued += len(deliveries)
                self._beat()
        except BrokerUnavailable:
            self._outages.note(place)
            raise
        return rescued

    def _lost(self, delivery: Delivery, is_kept: bool) -> Outcome:
        """Return the outcome of an attempt whose lease has ended. If the cluster had not handed out
        the job (``Broker.kept``), its last attempt has not begun."""
        if is_kept:
            head = outline(sealer_for(self._settings), delivery.package)
            options = JobOptions(head.max_attempts, head.max_crashes)
            if is_out_of_attempts(options, delivery.attempt, delivery.crashes + 1):
                return Snoozed(0.0, "its cluster is gone, and no worker had received it")
        return self._died.get(delivery.job_id, CLUSTER_GONE)

    def _finish(self, attempted: Sequence[Attempted]) -> None:
        """Record the outcomes. Outcomes that the store refuses, found by halving, or whose rows are
        locked by other transactions wait until their new lease ends."""
        try:
            finish(self._settings, self._broker, attempted, tallies=self._tallies)
        except (StokerError, OperationalError, InterfaceError) as error:
            if not is_locked_out(error):
                raise
            locked = locked_jobs(self._alias, [one.delivery.job_id for one in attempted])
            free = [one for one in attempted if one.delivery.job_id not in locked]
            if len(free) == len(attempted):
                raise
            if free:
                self._finish(free)
        except Exception as error:  # noqa: BLE001 - one bad outcome must not hold up the others
            if len(attempted) == 1:
                tell("upkeep_failed", step="rescue", error=error)
                return
            middle = len(attempted) // 2
            self._finish(attempted[:middle])
            self._finish(attempted[middle:])

    def prune(self) -> int:
        """Delete results whose retention has ended. Return their number.

        A broker outside the store may still lease jobs that have ended, if a process died before it
        acked them. Only their rows say that they must not run again, so the rows are kept until
        ``rescue`` has run after the end of such leases.
        """
        if self._broker.broker is None:
            return self._pruning.prune()
        before = self._rescued_at - 2 * self._settings.lease_seconds
        return self._pruning.prune(moment(max(0.0, before)))

    # -- the lease, the vacuum, the error boundary ------------------------------------------------

    def _take_lease(self) -> bool:
        # This saves work. Two clusters that prune at the same time do no harm.
        lease_seconds = max(3 * self._settings.upkeep_seconds, 2.0)
        engine_of(self._alias).check_connection()
        return LockKey.objects.using(self._alias).take(LOCK, self._plan.cluster_id, lease_seconds)

    def leave(self) -> None:
        """Release the upkeep lease when this cluster ends."""
        self._step("tallies", self._tallies.write)
        self._step(
            "lease",
            lambda: LockKey.objects.using(self._alias).drop(LOCK, self._plan.cluster_id),
        )

    def _vacuum(self) -> None:
        names = [model._meta.db_table for model in HOT_TABLES]
        self._dead = engine_of(self._alias).vacuum(names, self._dead)

    def _now_and_then(self, name: str, function: Callable[[], object]) -> None:
        """Run a step, unless it recently had nothing to do."""
        rest = self._rests.get(name, 0)
        has_done = rest == 0 and self._step(name, function)
        self._rests[name] = 0 if has_done else (rest or REST_RUNS) - 1

    def _step(self, name: str, function: Callable[[], object]) -> bool | None:
        """Run one step and log its errors. Return whether it did something, None after an error."""
        self._beat()
        try:
            return bool(function())
        except Exception as error:  # noqa: BLE001 - a failure here must not stop the cluster
            tell("upkeep_failed", step=name, error=error)
            with suppress(Error):
                connections[self._alias].close()
            return None


MOST_FOLDS = 200
"""Maximum number of aggregations per run. A few are due each minute, and more after a time without
upkeep."""


class History:
    """The history of metrics of one store, and of the deploys beside them.

    Args:
        beat: called often, as a heartbeat.
    """

    def __init__(self, settings: Settings, beat: Callable[[], None]) -> None:
        self._settings = settings
        self._beat = beat
        self._noted_start = 0
        """The minute of the last sample."""
        self._tables = (
            Tally.objects.using(settings.database),
            Sample.objects.using(settings.database),
        )
        self._deploys = Deploy.objects.using(settings.database)

    def note_backlogs(self) -> None:
        """Store one sample of the queues per minute, across all clusters."""
        if not self._settings.keep_metrics_seconds:
            return
        start = int(time.time()) // SAMPLE_SECONDS * SAMPLE_SECONDS
        if start == self._noted_start:
            return
        samples = Sample.objects.using(self._settings.database)
        if not samples.filter(seconds=SAMPLE_SECONDS, start=start).exists():
            samples.bulk_create(
                Sample(
                    start=start,
                    seconds=SAMPLE_SECONDS,
                    queue=queue.name,
                    **{name: getattr(queue, name) for name in PEAKS},
                )
                for queue in queues(self._settings)
            )
        self._noted_start = start

    def note_deploy(self, host: str) -> None:
        """Record the start of this cluster if it has new code."""
        if self._settings.keep_metrics_seconds:
            self._deploys.note(self._settings.cluster, host, code_digest(self._beat))

    def tidy(self) -> int:
        """Aggregate old metrics rows, and delete rows whose retention has ended. Return the
        number of statements that changed something."""
        now = time.time()
        before = now - self._settings.keep_metrics_seconds
        self._deploys.forget(self._settings.cluster, moment(before))
        return self._fold(now) + self._forget(before)

    def _fold(self, now: float) -> int:
        folded = 0
        for rows in self._tables:
            for fold in FOLDS:
                for _ in range(MOST_FOLDS):
                    if not fold_oldest(rows, fold, now):
                        break
                    folded += 1
                    self._beat()
        return folded

    def _forget(self, before: float) -> int:
        forgotten = 0
        for rows in self._tables:
            while forget_before(rows, before):
                forgotten += 1
                self._beat()
        return forgotten
