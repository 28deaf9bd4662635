"""The ticking of one cluster: looks which schedules are due, and fires them on time.

Every cluster does; see lifecycle/firing.py for how only one of them fires each tick. A schedule
that cannot be fired says why, is tried again now and then, and after a time is paused: another
cluster may know its task, as in a rolling deploy.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connections

from stoker.brokers.base import Broker
from stoker.conf import Settings
from stoker.events import tell
from stoker.exceptions import (
    BrokerError,
    InvalidSchedule,
    NewerVersion,
    NotMigrated,
    UnknownTask,
    UnreadablePackage,
)
from stoker.lifecycle.declaring import Declaring, find_declared
from stoker.lifecycle.firing import Firing
from stoker.lifecycle.schedule_rows import ITSELF
from stoker.models import Schedule
from stoker.models.clock import DatabaseNow, microseconds
from stoker.models.rows import as_uuid

from .patience import Patience
from .shares import Shares

LOOK_SECONDS = 0.5
"""How soon a schedule that is new or changed is seen."""
OVERDUE_US = 100_000
"""Then a schedule is anybody's, whose share it may be: that cluster is slow, or gone."""
AT_ONCE = 25
"""Then it is looked again which of the others are due still: other clusters fire, too."""
MOST_LOOKED_AT = 500
BREATH_SECONDS = 0.05
"""Where one process writes at a time, late ticks must let the others write as well."""
LONGEST_REST_SECONDS = 30.0
BROKEN_CODE_SECONDS = 300.0

Listen = Callable[[float], bool]


@dataclass(slots=True)
class Trouble:
    """A schedule that could not be fired here."""

    since: float
    try_at: float
    rest_seconds: float


class Ticks:
    """The schedules that this cluster fires.

    Args:
        beat: called again and again: a sign of life.
        listen: waits so many seconds; True, and sooner, when there is something else to be done.
    """

    def __init__(
        self,
        settings: Settings,
        broker: Broker,
        cluster_id: UUID,
        beat: Callable[[], None],
        listen: Listen,
    ) -> None:
        self._settings = settings
        self._beat = beat
        self._listen = listen
        self._patience = Patience(settings, broker)
        self._firing = Firing(settings)
        self._schedules = Schedule.objects.using(settings.database).of(
            settings.cluster, settings.alias
        )
        self._soon = self._schedules.due_within(LOOK_SECONDS, MOST_LOOKED_AT)
        self._released = self._schedules.released(MOST_LOOKED_AT)
        locks_rows = connections[settings.database].features.has_select_for_update
        self._breath_seconds = 0.0 if locks_rows else BREATH_SECONDS
        self._shares = Shares(settings, cluster_id)
        self._declaring: Declaring | None = None
        self._declares_at = 0.0
        self._releases_at = 0.0
        self._troubles: dict[UUID, Trouble] = {}

    def run_once(self) -> None:
        """Fire what falls due within the next half second, and wait for it."""
        self._declare_if_due()
        looked_at = time.monotonic()
        self._release_if_due()
        answer = self._patience.call(self._look)
        if answer is None:
            self._listen(LOOK_SECONDS)
            return
        now, found = time.monotonic(), answer.value
        batch = found[:AT_ONCE]
        for due_us, schedule_id, now_us in batch:
            self._beat()
            wait = now + (due_us - now_us) / 1e6 - time.monotonic()
            if wait > 0 and self._listen(wait):
                return
            self._fire(schedule_id)
        if len(batch) < len(found):
            self._listen(self._breath_seconds)
        else:
            self._listen(max(0.0, looked_at + LOOK_SECONDS - time.monotonic()))

    def _look(self) -> list[tuple[int, UUID, int]]:
        """Those due soon, the first first. Of those due by now, this cluster's share comes first,
        and that of another only when it is overdue: so they hardly ever want the same."""
        now = time.monotonic()
        resting = [one for one, trouble in self._troubles.items() if trouble.try_at > now]
        soon = self._soon
        if resting:
            among = self._schedules.exclude(pk__in=resting)
            soon = among.due_within(LOOK_SECONDS, MOST_LOOKED_AT)
        ordered = []
        for written, due_us, now_us in soon.fetch():
            key = as_uuid(written)
            is_ours = self._shares.has(key)
            if is_ours or due_us < now_us - OVERDUE_US:
                chance = random.random()  # noqa: S311 - to get out of step
                ordered.append((max(due_us, now_us), not is_ours, chance, due_us, key, now_us))
        return [(due_us, key, now_us) for *_, due_us, key, now_us in sorted(ordered)]

    def _fire(self, schedule_id: UUID) -> None:
        self._within_bounds(schedule_id, lambda: self._firing.fire(schedule_id))

    def _release_if_due(self) -> None:
        """Ticks that wait for the job before them."""
        if time.monotonic() < self._releases_at:
            return
        self._releases_at = time.monotonic() + LOOK_SECONDS
        answer = self._patience.call(self._released.fetch)
        for (written,) in answer.value if answer is not None else ():
            self._beat()
            self._release(as_uuid(written))

    def _release(self, schedule_id: UUID) -> None:
        self._within_bounds(schedule_id, lambda: self._firing.release(schedule_id))

    def _within_bounds(self, schedule_id: UUID, act: Callable[[], object]) -> None:
        """What is wrong with one schedule is no matter of the others."""
        answer = self._patience.call(lambda: self._tried(act))
        if answer is None:
            return
        if answer.value is None:
            self._troubles.pop(schedule_id, None)
        else:
            self._patience.call(lambda: self._note(schedule_id, answer.value))

    @staticmethod
    def _tried(act: Callable[[], object]) -> Exception | None:
        try:
            act()
        except (BrokerError, NotMigrated, DatabaseError, InterfaceError):
            raise
        except Exception as error:  # noqa: BLE001 - the project's code may raise anything
            return error
        return None

    def _note(self, schedule_id: UUID, error: Exception | None) -> None:
        """Let the row say why. It is paused at once where nobody could read it; else when this
        cluster has tried long enough."""
        now = time.monotonic()
        trouble = self._troubles.setdefault(schedule_id, Trouble(now, now, 0.5))
        trouble.rest_seconds = min(LONGEST_REST_SECONDS, trouble.rest_seconds * 2)
        trouble.try_at = now + trouble.rest_seconds
        because = sentence(error)
        rows = self._schedules.filter(pk=schedule_id, is_paused=False)
        grace_seconds = self._settings.unknown_task_grace_seconds
        is_final = isinstance(error, InvalidSchedule | UnreadablePackage)
        may_pass = not is_final or isinstance(error, NewerVersion)
        if may_pass and now - trouble.since < grace_seconds:
            row = rows.exclude(problem=because).first()
            if row is not None and rows.update(problem=because):
                tell("schedule_failed", name=row.name, because=because)
            return
        overdue = rows.filter(due_us__lte=DatabaseNow() - microseconds(grace_seconds))
        row = (overdue if may_pass else rows).first()
        if row is not None and rows.filter(due_us=row.due_us).pause(ITSELF, because):
            self._schedules.filter(pk=schedule_id).update(problem=because)
            tell("schedule_paused", name=row.name, because=because)

    def _declare_if_due(self) -> None:
        if time.monotonic() < self._declares_at:
            return
        self._declares_at = time.monotonic() + self._settings.upkeep_seconds
        self._patience.call(self._shares.divide)
        if self._declaring is None:
            self._declaring = self._begin_to_declare()
        elif self._patience.call(self._declaring.sync) is None:
            self._declares_at = 0.0

    def _begin_to_declare(self) -> Declaring | None:
        try:
            declared = find_declared(self._settings)
        except Exception as error:  # noqa: BLE001 - the project's modules may raise anything
            tell("schedules_not_declared", error=sentence(error))
            self._declares_at = time.monotonic() + BROKEN_CODE_SECONDS
            return None
        declaring = Declaring(self._settings, declared)
        self._patience.call(declaring.reseal)
        self._declares_at = 0.0
        return declaring


def sentence(error: Exception | None) -> str:
    lines = str(error).strip().splitlines()
    told = lines[0] if lines else ""
    name = type(error).__name__
    is_ours = isinstance(error, UnknownTask | UnreadablePackage | InvalidSchedule)
    return (told if is_ours else f"{name}: {told}")[:500]
