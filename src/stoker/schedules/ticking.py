"""The scheduler's loop: find due schedules and fire them on time.

Every cluster runs it; see schedules/fire.py for how only one of them fires each tick. A schedule
that cannot be fired stores the reason and is retried after growing pauses. It is paused only after
some time, because during a rolling deploy another cluster may know its task. After a database error
that only this schedule causes, it is retried but never paused.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from uuid import UUID
from zlib import crc32

from django.db import DatabaseError, InterfaceError, OperationalError, connections
from django.db.models import Min, OuterRef, Subquery

from stoker.brokers.dispatch import Dispatch
from stoker.conf import Settings
from stoker.exceptions import (
    BadSignature,
    BrokerError,
    InvalidSchedule,
    NewerVersion,
    NotMigrated,
    UnknownTask,
    UnreadableHere,
    UnreadablePackage,
)
from stoker.jobs.faults import fault_of
from stoker.models import Cluster, Schedule, Tick
from stoker.models.schedule import ScheduleQuerySet
from stoker.signals import tell
from stoker.store.engines import engine_of
from stoker.store.engines.sessions import Patience
from stoker.store.prepared import Compiled
from stoker.store.written import DatabaseNow, as_uuid, database_now_us, microseconds
from stoker.values.cron import zone_named
from stoker.values.ticks import as_moment

from .declare import Declaring, find_declared
from .fire import Firing
from .rows import ITSELF

LOOK_SECONDS = 0.5
"""Pause between two queries for due schedules."""
IDLE_LOOK_SECONDS = 1.0
"""Pause between two queries if no schedule is due within this time. A new or changed schedule is
noticed after at most this time."""
OVERDUE_US = 100_000
"""After this delay any cluster fires a schedule, because the cluster responsible is slow or
gone."""
AT_ONCE = 100
"""Maximum number of ticks between two queries. The limit lets other clusters fire some of them."""
MOST_LOOKED_AT = 500
BREATH_SECONDS = 0.05
"""Pause that lets other processes write, on databases with a single writer."""
FIRST_REST_SECONDS, LONGEST_REST_SECONDS = 1.0, 30.0
DATABASE_REST_SECONDS = 0.25
"""First pause after a database error. The error is not shown yet: the server may be restarting."""
BROKEN_CODE_SECONDS = 300.0
AHEAD_SECONDS = 1.0
"""A tick this far in the future shows that the clock was set back. A nearer one may have been fired
by another cluster after this one read the time."""
NEVER_US = 2**63
"""Later than every time that a column of microseconds can hold."""

UNREADABLE = (ValueError, OverflowError)
"""Errors of a rule or moment that cannot be read. They are reported when the schedule is due."""
MAY_PASS = (BrokerError, OperationalError, InterfaceError)
MAY_BE_AWAY = (*MAY_PASS, DatabaseError)

Listen = Callable[[float], bool]


@dataclass(slots=True)
class Trouble:
    """A schedule that could not be fired by this process."""

    since: float
    try_at: float
    rest_seconds: float

    def rest(self) -> None:
        """Set the time of the next try, and double the pause after it."""
        self.try_at = time.monotonic() + self.rest_seconds
        self.rest_seconds = min(LONGEST_REST_SECONDS, self.rest_seconds * 2)


class Ticks:
    """The scheduler's loop of one cluster: it finds due schedules and fires them.

    Args:
        beat: called often, so that the process is known to be alive.
        listen: called to wait for a number of seconds. Returns True, perhaps earlier, if the loop
            must return because the process has something else to do.
    """

    def __init__(
        self,
        settings: Settings,
        broker: Dispatch,
        cluster_id: UUID,
        beat: Callable[[], None],
        listen: Listen,
    ) -> None:
        self._settings = settings
        self._beat = beat
        self._listen = listen
        self._patience = Patience(settings, broker, beat)
        self._firing = Firing(settings)
        self._schedules = Schedule.objects.using(settings.database).of(
            settings.cluster, settings.alias
        )
        self._queries = [_query(self._schedules, with_held=each) for each in (False, True)]
        has_one_writer = engine_of(settings.database).has_one_writer
        self._breath_seconds = BREATH_SECONDS if has_one_writer else 0.0
        self._shares = ClusterShare(settings, cluster_id)
        self._moments = NextMoments(settings)
        self._declaring: Declaring | None = None
        self._declares_at = 0.0
        self._look_at_held = 0.0
        self._troubles: dict[UUID, Trouble] = {}

    def run_once(self) -> None:
        """Fire the ticks of the next half second, each at its time, and release held ticks whose
        previous job has ended."""
        self._declare_if_due()
        looked_at = time.monotonic()
        answer = self._patience.call(self._look)
        if answer is None:
            self._listen(LOOK_SECONDS)
            return
        now, (found, released) = time.monotonic(), answer.value
        for schedule_id in released:
            self._beat()
            self._within_bounds(schedule_id, partial(self._firing.release, schedule_id))
        pause_seconds = LOOK_SECONDS if found else IDLE_LOOK_SECONDS
        soon = [one for one in found if one[0] - one[2] <= LOOK_SECONDS * 1e6]
        healthy = [one for one in soon if one[1] not in self._troubles]
        troubled = [one for one in soon if one[1] in self._troubles]
        batch = [*healthy[: AT_ONCE - 1], *troubled[:1]]  # each call may wait for a lock
        while batch:
            self._beat()
            wait = now + (batch[0][0] - batch[0][2]) / 1e6 - time.monotonic()
            if wait > 0 and self._listen(wait):
                return
            passed = time.monotonic() - now
            due = [one for one in batch if (one[0] - one[2]) / 1e6 <= passed] or batch[:1]
            batch = batch[len(due) :]
            self._fire_all([schedule_id for _, schedule_id, _ in due])
        if len(healthy) + len(troubled) > AT_ONCE:
            self._listen(self._breath_seconds)
        else:
            self._listen(max(0.0, looked_at + pause_seconds - time.monotonic()))

    def _fire_all(self, schedule_ids: Sequence[UUID]) -> None:
        """Fire due schedules. Schedules that only need an enqueue share one transaction. If one
        of them fails, fire each in a separate transaction."""
        rest: Collection[UUID] = schedule_ids
        healthy = [one for one in schedule_ids if one not in self._troubles]
        if len(healthy) > 1:
            with suppress(Exception):  # each is fired alone below; only the failing one is skipped
                fired = self._firing.fire_together(healthy)
                rest = [one for one in schedule_ids if one not in fired]
        for schedule_id in rest:
            self._beat()
            self._within_bounds(schedule_id, partial(self._firing.fire, schedule_id))

    def _look(self) -> tuple[list[tuple[int, UUID, int]], list[UUID]]:
        """Return the schedules that are due soon, earliest first, and those with a held tick to
        release.

        Among those due now, this cluster's share comes first. Schedules of other clusters are added
        when they are overdue, so that clusters rarely compete.
        """
        now = time.monotonic()
        with_held = now >= self._look_at_held
        query = self._queries[with_held]
        if resting := self._resting():
            query = _query(self._schedules.exclude(pk__in=resting), with_held=with_held)
        rows = query.fetch()
        if with_held:
            self._look_at_held = now + LOOK_SECONDS
        ordered, released = [], []
        now_us = rows[0][2] if rows else 0  # each row has its own time on PostgreSQL
        self._moments.note_time(now_us)
        for written, due_us, _, is_held in rows:
            key = as_uuid(written)
            if is_held:
                released.append(key)
                continue
            is_ours = self._shares.has(key)
            if is_ours or due_us < now_us - OVERDUE_US:
                chance = random.random()  # noqa: S311 - to get out of step
                ordered.append((max(due_us, now_us), not is_ours, chance, due_us, key, now_us))
        return [(due_us, key, now_us) for *_, due_us, key, now_us in sorted(ordered)], released

    def _resting(self) -> list[UUID]:
        """Return the schedules that failed and wait for their next try."""
        now = time.monotonic()
        return [one for one, trouble in self._troubles.items() if trouble.try_at > now]

    def _within_bounds(self, schedule_id: UUID, act: Callable[[], object]) -> None:
        """Call ``act`` for one schedule. Errors of this schedule do not affect the other
        schedules."""
        answer = self._patience.call(lambda: self._tried(act))
        if answer is None:
            return
        if answer.value is None:
            self._troubles.pop(schedule_id, None)
            return
        self._beat()
        if self._patience.call(lambda: self._note(schedule_id, answer.value)) is None:
            # The store is unreachable, so the schedule is not the cause.
            self._troubles.pop(schedule_id, None)

    def _tried(self, act: Callable[[], object]) -> Exception | None:
        """Return the error if the schedule caused it.

        Raises:
            BrokerError, DatabaseError, InterfaceError: the store is unreachable.
        """
        try:
            act()
        except NotMigrated:
            raise
        except MAY_BE_AWAY as error:
            self._beat()
            connections[self._settings.database].close()  # the connection may be broken
            self._queries[False].fetch()
            return error
        except Exception as error:  # noqa: BLE001 - the project's code may raise anything
            return error
        return None

    def _note(self, schedule_id: UUID, error: Exception | None) -> None:
        """Store the problem in the row. Pause the schedule at once if it cannot be read, else after
        the grace period."""
        trouble = self._troubles.get(schedule_id)
        if trouble is None:
            now, is_shown = time.monotonic(), not isinstance(error, MAY_BE_AWAY)
            first = FIRST_REST_SECONDS if is_shown else DATABASE_REST_SECONDS
            trouble = self._troubles[schedule_id] = Trouble(now, now, first)
        else:
            is_shown = True
        trouble.rest()
        because = sentence(error)
        rows = self._schedules.filter(pk=schedule_id, is_paused=False)
        if is_shown and self._is_given_up(trouble, error):
            self._pause(rows, error, because)
        elif is_shown:
            row = rows.exclude(problem=because).first()
            if row is not None and rows.update(problem=because):
                tell("schedule_failed", name=row.name, because=because)

    def _is_given_up(self, trouble: Trouble, error: Exception | None) -> bool:
        if isinstance(error, MAY_PASS):
            return False
        return not may_be_fired_elsewhere(error) or (
            time.monotonic() - trouble.since >= self._settings.unknown_task_grace_seconds
        )

    def _pause(self, rows: ScheduleQuerySet, error: Exception | None, because: str) -> None:
        if may_be_fired_elsewhere(error):
            grace_us = microseconds(self._settings.unknown_task_grace_seconds)
            rows = rows.filter(due_us__lte=DatabaseNow() - grace_us)
        row = rows.first()
        if row is not None and rows.filter(due_us=row.due_us).pause(ITSELF, because):
            self._schedules.filter(pk=row.pk).update(problem=because)
            tell("schedule_paused", name=row.name, because=because)

    def _declare_if_due(self) -> None:
        if time.monotonic() < self._declares_at:
            return
        self._declares_at = time.monotonic() + self._settings.upkeep_seconds
        self._patience.call(self._shares.divide)
        self._patience.call(self._moments.follow_clock)
        if self._declaring is None:
            self._declaring = self._begin_to_declare()
        elif self._patience.call(self._declaring.sync) is None:
            self._declares_at = 0.0

    def _begin_to_declare(self) -> Declaring | None:
        self._patience.call(self._moments.follow_zones)
        try:
            declared = find_declared(self._settings)
        except UnknownTask as error:
            tell("schedules_not_declared", error=sentence(error))
            self._declares_at = time.monotonic() + BROKEN_CODE_SECONDS
            return None
        declaring = Declaring(self._settings, declared)
        self._patience.call(declaring.reseal)
        self._declares_at = 0.0
        return declaring


def _query(schedules: ScheduleQuerySet, *, with_held: bool) -> Compiled:
    """Return the query for the schedules that are due soon, and for those with a held tick to
    release if ``with_held``."""
    due = schedules.due_within(IDLE_LOOK_SECONDS, MOST_LOOKED_AT)
    return Compiled(due, schedules.releasable(MOST_LOOKED_AT)) if with_held else Compiled(due)


def may_be_fired_elsewhere(error: Exception | None) -> bool:
    """Return whether a cluster with other code or settings may be able to fire the schedule."""
    is_final = isinstance(error, InvalidSchedule | UnreadablePackage)
    return not is_final or isinstance(error, BadSignature | NewerVersion | UnreadableHere)


def sentence(error: Exception | None) -> str:
    """Return the error in a line that every database accepts."""
    lines = fault_of(error).message.strip().splitlines() if error is not None else []
    told = lines[0] if lines else ""
    name = type(error).__name__
    is_ours = isinstance(error, UnknownTask | UnreadablePackage | InvalidSchedule)
    return (told if is_ours else f"{name}: {told}")[:500]


class NextMoments:
    """Corrects the next moments of recurring schedules, which are computed one tick ahead.

    A row that another process has changed meanwhile is left alone.
    """

    def __init__(self, settings: Settings) -> None:
        self._ticks = Tick.objects.using(settings.database)
        self._schedules = Schedule.objects.using(settings.database).of(
            settings.cluster, settings.alias
        )
        active = self._schedules.filter(is_paused=False)
        self._recurring = active.exclude(kind=Schedule.Kind.ONCE).defer("package")
        self._alias = settings.database
        self._latest_us = NEVER_US  # the clock may have been set back before the start

    def follow_zones(self) -> None:
        """Move next moments to the nearest moments of their rules, in case the time zone data has
        changed since they were computed.

        Called at the start: hosts with different data would otherwise move them to and fro.
        """
        for row in self._recurring.filter(moment_us__isnull=False):
            with suppress(*UNREADABLE):
                assert row.moment_us is not None
                self._move(row, row.course.nearest(row.moment_us), "its time zone has changed")

    def note_time(self, now_us: int) -> None:
        """Note a time of the database's clock, to notice if it is set back later."""
        self._latest_us = max(self._latest_us, now_us)

    def follow_clock(self) -> None:
        """Set next moments back if ticks fired while the database's clock was ahead. Search for
        such ticks at the first call, and when the clock was set back since.

        No tick fires twice, because a tick is a row. The rows of old ticks are deleted, so a next
        moment is not set back to before the oldest row.
        """
        time_us = database_now_us(self._alias)
        if time_us >= self._latest_us - microseconds(AHEAD_SECONDS):
            return
        newest = self._ticks.filter(schedule_id=OuterRef("pk")).order_by("-moment_us")
        # One look-up by index per schedule. With Exists, databases read the whole table.
        rows = self._recurring.alias(newest_us=Subquery(newest.values("moment_us")[:1]))
        ahead = rows.filter(
            moment_us__gt=DatabaseNow(), newest_us__gt=DatabaseNow() + microseconds(AHEAD_SECONDS)
        )
        for row in ahead.annotate(now_us=DatabaseNow()):
            with suppress(*UNREADABLE):
                self._set_back(row, row.now_us)  # type: ignore[attr-defined] # annotated
        self._latest_us = time_us

    def _set_back(self, row: Schedule, now_us: int) -> None:
        first_us = row.course.first(now_us)
        if first_us is None or row.moment_us is None or first_us >= row.moment_us:
            return
        own = self._ticks.filter(schedule_id=row.pk)
        oldest_us = own.aggregate(oldest_us=Min("moment_us"))["oldest_us"] or 0
        moment_us = row.course.first(max(now_us, oldest_us - 1))
        if moment_us is not None and moment_us < row.moment_us:
            own.filter(outcome=Tick.Outcome.MISSED, moment_us__gt=now_us).delete()
            self._move(row, moment_us, "the clock of the database was set back")

    def _move(self, row: Schedule, moment_us: int, because: str) -> None:
        if moment_us == row.moment_us:
            return
        if self._schedules.advance(row, moment_us=moment_us, due_us=row.course.due(moment_us)):
            moment = as_moment(moment_us).astimezone(zone_named(row.zone))
            tell("schedule_moved", name=row.name, moment=moment, because=because)


class ClusterShare:
    """Divides the schedules among the live clusters, so that each fires its share first."""

    def __init__(self, settings: Settings, cluster_id: UUID) -> None:
        self._settings = settings
        self._cluster_id = cluster_id
        self._number = 0
        self._count = 1

    def divide(self) -> None:
        """Divide the schedules among the live clusters."""
        clusters = Cluster.objects.using(self._settings.database)
        alive = clusters.alive_within(self._settings.lease_seconds).filter(
            name=self._settings.cluster, info__alias=self._settings.alias
        )
        keys = sorted({self._cluster_id, *alive.values_list("pk", flat=True)})
        self._number, self._count = keys.index(self._cluster_id), len(keys)

    def has(self, schedule_id: UUID) -> bool:
        return crc32(schedule_id.bytes) % self._count == self._number
