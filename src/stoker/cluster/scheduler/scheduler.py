"""The scheduler process: fire schedules on time, and repair and clean the store.

Upkeep and relays run beside the schedules in separate threads, so that they cannot delay a tick.

One cluster at a time does upkeep, under a lease. Each step is independent: it checks its condition
in the statement that changes something, works in bounded batches, and its failure is logged and
stops neither the other steps nor the cluster.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from django.apps import apps
from django.db import Error, connections
from django.utils.module_loading import import_string

from stoker.brokers.adapters import broker_for, shares_database
from stoker.brokers.dispatch import Dispatch
from stoker.cluster import board as place
from stoker.cluster.callbacks import Callbacks
from stoker.cluster.channel import is_readable
from stoker.cluster.plan import Plan
from stoker.cluster.process import Child
from stoker.cluster.relays import OUTBOX_SECONDS, OutboxRelay, Relays
from stoker.cluster.reload import code_digest
from stoker.conf import Settings
from stoker.dead_letters.sweep import DeadLetterSweep
from stoker.exceptions import ConfigurationError
from stoker.guards.sweep import GuardSweep
from stoker.inspect.queue_depths import queues
from stoker.jobs.backends import backends_with
from stoker.jobs.cancel import sweep_requests
from stoker.jobs.outcomes import Tallies
from stoker.jobs.pruning import Pruning
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
from stoker.schedules.ticking import Ticks
from stoker.signals import call_project_with, tell
from stoker.store.engines import engine_of
from stoker.store.prepared import any_of
from stoker.store.statements import set_deadlines
from stoker.store.written import moment
from stoker.tasks.registry import import_tasks
from stoker.workflows.sweep import WorkflowSweep

from .rescue import Rescue

FAREWELL_SECONDS = 5.0
SHORT_FAREWELL_SECONDS = 1.0
REST_SECONDS = 1.0
"""Pause between two looks at the work of a scheduler that fires no schedules."""
BULK_PAUSE_SECONDS = 0.5
"""Pause between two runs of the bulk operations that are not finished."""
LOCK = "stoker:upkeep"
VACUUM_SECONDS = 2.0
VACUUM_SHARE, LONGEST_VACUUM_SECONDS = 10, 20.0
"""Vacuum uses at most a tenth of the time, because while a snapshot is open it removes nothing and
takes longer and longer. It still runs at least every ``LONGEST_VACUUM_SECONDS``."""
BULK_SECONDS, BULK_REST_SECONDS = 0.5, 2.0
"""Duration of one run of bulk operations, and the pause after a run that found none."""
REST_RUNS = 6
"""A step that had nothing to do runs once in this many runs."""
HOT_TABLES = (Ready, Claimed, Deferred, Blocked, Need, GuardKey, Outgoing, Schedule)


def main(child: Child) -> None:
    scheduler = Scheduler(child)
    scheduler.run()
    scheduler.broker.close()


class Scheduler:
    """The scheduler of one cluster, with its upkeep."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.settings = child.plan.settings
        set_deadlines(self.settings)
        self.broker = broker_for(self.settings)
        self.upkeep = Upkeep(child.plan, self.settings, self.broker, self._beat_of_upkeep)
        self.ticks = Ticks(
            self.settings, self.broker, child.plan.cluster_id, self._beat, self._listen
        )
        self.callbacks = Callbacks(self._beat)
        self.relays = Relays(self.settings)
        self._is_over = threading.Event()
        self._beat_ns = self._upkeep_beat_ns = time.monotonic_ns()

    def run(self) -> None:
        call_project_with(self.callbacks.put)
        if self.settings.scheduler:
            import_tasks()  # as ticks do: the rescue asks for options of imported tasks
        self._beat_ns = self._upkeep_beat_ns = time.monotonic_ns()  # the imports may take long
        thread = threading.Thread(target=self._do_upkeep, name="upkeep", daemon=True)
        thread.start()
        self.relays.start()
        while not self._listen(0.0):  # also while ticks are late, so that there is no pause
            self._beat()
            self.callbacks.look()
            if self.settings.scheduler:
                self.ticks.run_once()
            else:
                self._listen(REST_SECONDS)
        thread.join(FAREWELL_SECONDS)
        self.relays.stop(SHORT_FAREWELL_SECONDS)
        self.callbacks.close(SHORT_FAREWELL_SECONDS)

    def _do_upkeep(self) -> None:
        try:
            self.upkeep.clean_up_at_start()
            self._show_clean_up()
            self.upkeep.tidy_at_start()
            due_at, alias = 0.0, self.settings.database
            outbox = OutboxRelay(self.settings, alias, self._beat_of_upkeep)
            has_outbox = alias in self.broker.outboxes()
            while not self._is_over.is_set():
                self._beat_of_upkeep()
                self.upkeep.clean_up_if_due()
                self._show_clean_up()
                if time.monotonic() >= due_at:
                    self.upkeep.run()
                    due_at = time.monotonic() + self.settings.upkeep_seconds
                self.upkeep.vacuum_if_due()
                if has_outbox:
                    outbox.relay_if_due()
                goes_on = self.upkeep.go_on_in_bulk()
                self._is_over.wait(BULK_PAUSE_SECONDS if goes_on else OUTBOX_SECONDS)
            self.upkeep.leave()
        finally:
            connections.close_all()  # those of this thread

    def _show_clean_up(self) -> None:
        self.child.board[place.CLEANED_UP] = self.upkeep.is_cleaned_up

    def _listen(self, seconds: float) -> bool:
        """Wait for a message from the sentinel, at most this long. Return whether the process must
        end."""
        if is_readable(seconds, self.child.control):
            for message, _ in self.child.control.receive(block=False):
                if message[0] == "exit":
                    self._is_over.set()
        return self._is_over.is_set()

    def _beat(self) -> None:
        self._beat_ns = time.monotonic_ns()
        self._show()

    def _beat_of_upkeep(self) -> None:
        self._upkeep_beat_ns = time.monotonic_ns()
        self._show()

    def _show(self) -> None:
        """Write the older of both heartbeats: the process counts as hung if either loop hangs."""
        self.child.board[place.SCHEDULER_BEAT_NS] = min(self._beat_ns, self._upkeep_beat_ns)


AppStep = Callable[[Settings, Callable[[], None]], object]
"""A step of upkeep that an app adds. It gets the settings of a backend, and a function to call
often, as a heartbeat. It returns whether it did something."""


def steps_of_apps() -> list[tuple[str, AppStep]]:
    """Return the steps that AppConfigs of installed apps list in ``stoker_upkeep``, with their
    paths."""
    paths = [one for app in apps.get_app_configs() for one in getattr(app, "stoker_upkeep", ())]
    return [(path, import_string(path)) for path in paths]


class Upkeep:
    """The upkeep of one store by one cluster. ``beat`` is called often, as a heartbeat."""

    def __init__(
        self, plan: Plan, settings: Settings, broker: Dispatch, beat: Callable[[], None]
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._broker = broker
        self._beat = beat
        self._alias = settings.database
        self._lock_of_broker = f"{LOCK}:{settings.alias}"
        self._holds_lease = False
        self._vacuum_at = self._bulk_at = 0.0
        self._clean_up_at = math.inf
        self.is_cleaned_up = False
        """Whether the jobs of dead clusters have been rescued since the start, as far as their
        leases had ended, or there were no clusters without a heartbeat for a lease."""
        self._dead: Mapping[str, int] = {}
        """Table -> number of dead rows at the last check."""
        self._guards = GuardSweep(settings, broker, beat)
        self._dead_letters = DeadLetterSweep(settings, beat)
        self._pruning = Pruning(settings, beat)
        self._workflows = WorkflowSweep(settings, beat)
        self._history = History(settings, beat)
        self._tallies = Tallies(settings)
        self.rescuing = Rescue(plan, broker, beat, self._tallies)
        self._backends = backends_with(settings)
        self._running_in_bulk = any_of(
            BulkOperation.objects.using(self._alias).filter(
                state=BulkOperation.State.RUNNING, backend__in=[one.alias for one in self._backends]
            )
        )
        others = Cluster.objects.using(self._alias).exclude(pk=plan.cluster_id)
        self._any_other = any_of(others)
        self._any_request = any_of(Cancellation.objects.using(self._alias))
        self._rests: dict[str, int] = {}
        """Step -> number of runs that still skip it."""
        self.leftovers = Leftovers(self._alias, beat)
        self._steps_of_apps = steps_of_apps()

    def clean_up_at_start(self) -> None:
        """Free the jobs and delete the files of dead clusters of this host, without the upkeep
        lease. Rescue other jobs whose leases have ended, too, if there is no other cluster. If
        there are others, or the store or broker does not answer, they get time first, and
        ``clean_up_if_due`` does it."""
        buried = self._step("clusters of this host", self.rescuing.bury_clusters_of_this_host)
        others = self._step("other clusters", self._any_other.fetch)
        if others is not False:
            self.rescuing.give_living_clusters_time()
        rescued = self._step("rescue", self.rescuing.rescue)
        if others is False and self.rescuing.is_complete:
            self.is_cleaned_up = True
            return
        self._clean_up_at = time.monotonic() + self.rescuing.pause_seconds
        if others and None not in (buried, rescued):
            is_silent = self._step("look for silent clusters", self.rescuing.any_is_silent)
            self.is_cleaned_up = is_silent is False

    def tidy_at_start(self) -> None:
        """Do the rest of the work of a start, for which a drain does not wait."""
        self._step("guards", self._guards.sweep)
        self._step("boards", self.rescuing.remove_old_boards)
        self._step("deploy", lambda: self._history.note_deploy(self._plan.host))

    def clean_up_if_due(self) -> None:
        """Rescue jobs of dead clusters of other hosts, once, without the upkeep lease, when other
        clusters have had time since the start. After an error, or while other clusters get time
        again, try again later. An error may have been an outage during which leases of living
        clusters have ended, so the rescue waits, too."""
        if time.monotonic() < self._clean_up_at:
            return
        buried = self._step("silent clusters", self.rescuing.bury_silent_clusters)
        rescued = None if buried is None else self._step("rescue", self.rescuing.rescue)
        if rescued is not None and self.rescuing.is_complete:
            self._clean_up_at, self.is_cleaned_up = math.inf, True
        else:
            self._clean_up_at = time.monotonic() + self.rescuing.pause_seconds

    def run(self) -> None:
        """Run all due steps, if this cluster holds the upkeep lease."""
        has_lease = self._step("lease", self._take_lease)
        if has_lease is None:
            self.rescuing.note_missed_rescue()
        self._holds_lease = bool(has_lease)
        if self._holds_lease:
            if self._step("clusters", self._any_other.fetch):
                self._step("clusters", self.rescuing.bury_clusters_of_this_host)
                self._step("silent clusters", self.rescuing.bury_silent_clusters)
            self._step("rescue", self.rescuing.rescue)
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
            self._step("ticks", lambda: self.leftovers.forget_ticks(self._settings))
            self._step("relayed", self.leftovers.forget_relayed)
            self._step("begun", self.leftovers.forget_begun)
            self._step("notes", self.leftovers.forget_notes)
            keeps_logs = self._settings.logs is not None
            self._step("logs", lambda: self.leftovers.forget_logs(often=keeps_logs))
            self._step("backlogs", self._history.note_backlogs)
            self._now_and_then("metrics", self._history.tidy)
            self._now_and_then("old bulk operations", lambda: forget_old(self._settings))
            for path, step in self._steps_of_apps:
                self._now_and_then(path, partial(step, self._settings, self._beat))
        elif self._step("lease of the broker", self._take_lease_of_broker):
            self._step("rescue", self.rescuing.rescue)
            if self._step("cancellations", self._any_request.fetch):
                self._step("cancellations", lambda: sweep_requests(self._settings, self._beat))
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
        """Continue the bulk operations of each backend with this store for a short time. Return
        whether there were any."""
        if not self._holds_lease or time.monotonic() < self._bulk_at:
            return False
        name = "bulk operations"
        goes_on = bool(self._step(name, self._running_in_bulk.fetch))
        if goes_on:
            for settings in self._backends:
                self._step(name, partial(self._go_on, settings))
        else:
            self._bulk_at = time.monotonic() + BULK_REST_SECONDS
        return goes_on

    def _go_on(self, settings: Settings) -> None:
        with suppress(ConfigurationError):  # no driver for its broker, as `check` reports
            broker_for(settings)
            go_on(settings, BULK_SECONDS, beat=self._beat)

    def prune(self) -> int:
        """Delete results whose retention has ended. Return their number.

        A broker outside the store may still lease jobs that have ended, if a process died before it
        acked them. Only their rows say that they must not run again, so the rows are kept until
        ``rescue`` has run after the end of such leases.
        """
        if self._broker.broker is None:
            return self._pruning.prune()
        before = self.rescuing.rescued_at - 2 * self._settings.lease_seconds
        return self._pruning.prune(moment(max(0.0, before)))

    # -- the lease, the vacuum, the error boundary ------------------------------------------------

    def _take_lease(self) -> bool:
        # This saves work. Two clusters that prune at the same time do no harm.
        engine_of(self._alias).check_connection()
        return self._take(LOCK)

    def _take_lease_of_broker(self) -> bool:
        """Take the lease for rescuing this broker's jobs. It is needed if the upkeep lease may
        belong to a cluster of another backend, which does not know the broker."""
        needs_it = self._broker.broker is not None and shares_database(self._settings)
        return needs_it and self._take(self._lock_of_broker)

    def _take(self, name: str) -> bool:
        lease_seconds = max(3 * self._settings.upkeep_seconds, 2.0)
        return LockKey.objects.using(self._alias).take(name, self._plan.cluster_id, lease_seconds)

    def leave(self) -> None:
        """Release the upkeep lease when this cluster ends."""
        self._step("tallies", self._tallies.write)
        locks = LockKey.objects.using(self._alias)
        for name in (LOCK, self._lock_of_broker):
            self._step("lease", partial(locks.drop, name, self._plan.cluster_id))

    def _vacuum(self) -> None:
        names = [model._meta.db_table for model in HOT_TABLES]
        self._dead = engine_of(self._alias).vacuum(names, self._dead, self._beat)

    def _now_and_then(self, name: str, function: Callable[[], object]) -> None:
        """Run a step, unless it recently had nothing to do."""
        rest = self._rests.get(name, 0)
        has_done = rest == 0 and self._step(name, function)
        self._rests[name] = 0 if has_done else (rest or REST_RUNS) - 1

    def _step(self, name: str, function: Callable[[], object]) -> bool | None:
        """Run one step and log its errors. If the store or a broker did not answer, the next rescue
        gives other clusters time. Return whether it did something, None after an error."""
        self._beat()
        try:
            return bool(function())
        except Exception as error:  # noqa: BLE001 - a failure here must not stop the cluster
            tell("upkeep_failed", step=name, error=error)
            self.rescuing.note_error(error)
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
        backends = backends_with(settings)
        self._clusters = {one.cluster for one in backends}
        self._keep_seconds = max(one.keep_metrics_seconds for one in backends)
        """Metrics name no backend, so all are kept as long as the one that keeps them longest."""
        self._noted_start = 0
        """The minute of the last sample."""
        self._tables = (
            Tally.objects.using(settings.database),
            Sample.objects.using(settings.database),
        )
        self._deploys = Deploy.objects.using(settings.database)

    def note_backlogs(self) -> None:
        """Store one sample of the queues per minute, across all clusters."""
        if not self._keep_seconds:
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
        before = now - self._keep_seconds
        for cluster in self._clusters:
            self._deploys.forget(cluster, moment(before))
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
