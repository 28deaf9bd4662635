"""Store the schedules that code and settings declare: add, update and delete their rows.

The newest edition among the live clusters decides; see models/edition.py. A dropped schedule is
deleted when no cluster of another edition is left. Unchanged schedules are not written, so they
keep their pause, next moment and count.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from stoker.conf import Settings
from stoker.exceptions import PackageError, StokerError, UnknownTask
from stoker.models import Edition, Schedule, Tick
from stoker.signals import tell
from stoker.store.written import database_now_us
from stoker.tasks.registry import import_tasks
from stoker.tasks.schedules import Scheduled, scheduled_tasks
from stoker.values.ids import new_job_id

from .rows import (
    ENDED,
    ITSELF,
    changed_state,
    insert,
    is_long_past,
    opened,
    reseal,
    resumed_state,
    values_of,
    was_paused_unopened,
)

FORGOTTEN_SECONDS = 30 * 86_400.0
DROPPED_SECONDS = 600.0
"""Pause between two looks for schedules that are no longer declared."""


@dataclass(frozen=True, slots=True)
class Declared:
    """One schedule from code or settings."""

    name: str
    source: str
    task: Any
    """The task, or its dotted path."""
    when: Scheduled


def find_declared(settings: Settings) -> list[Declared]:
    """Return the schedules of the settings, then those of tasks in the ``tasks`` modules of all
    apps.

    Raises:
        UnknownTask: one of these modules cannot be imported.
    """
    found = [
        Declared(name, Schedule.Source.SETTINGS, path, when)
        for name, path, when in settings.schedules
    ]
    for name, error in import_tasks().items():
        raise UnknownTask(f"{name}: {type(error).__name__}: {error}") from error
    for path, task in sorted(scheduled_tasks.items()):
        if task.backend == settings.alias:
            found += [
                Declared(when.name or _numbered(path, number), Schedule.Source.CODE, task, when)
                for number, when in enumerate(task.schedule, 1)
            ]
    return found


def problems(settings: Settings, declared: Sequence[Declared]) -> list[str]:
    """Return one sentence for each schedule that cannot be used."""
    found, names = [], set()
    for one in declared:
        if one.name in names:
            found.append(f"Two schedules have the name {one.name!r}: give one of them another.")
        names.add(one.name)
        try:
            values_of(settings, new_job_id(), one.name, one.task, one.when)
        except StokerError as error:
            found.append(f"The schedule {one.name!r} cannot be used: {error}")
    return found


class Declaring:
    """Keeps the rows of the declared schedules up to date, in one process of a cluster."""

    def __init__(self, settings: Settings, declared: Sequence[Declared]) -> None:
        self._settings = settings
        self._declared = {one.name: one for one in reversed(declared)}
        self._whose = (settings.cluster, settings.alias)
        self._editions = Edition.objects.using(settings.database)
        self._schedules = Schedule.objects.using(settings.database).of(*self._whose)
        self._alive_seconds = max(settings.lease_seconds, 3 * settings.upkeep_seconds)
        self._told: set[str] = set()
        self._look_for_dropped_at = 0.0
        """When to look for rows of schedules that are no longer declared, in monotonic seconds."""
        self._digest = self._digest_of_all()

    def sync(self) -> None:
        """Update the rows to match the declarations, if this process has the newest live
        edition."""
        self._editions.report(*self._whose, self._digest)
        alive = self._editions.alive(*self._whose, self._alive_seconds)
        if alive != [self._digest]:
            self._look_for_dropped_at = 0.0
        if alive[:1] != [self._digest]:
            return
        found = self._schedules.filter(name__in=list(self._declared))
        rows = {row.name: row for row in found}
        for name, one in self._declared.items():
            self._within_bounds(one, rows.get(name))
        if alive == [self._digest]:
            self._remove_dropped()
            self._editions.forget(FORGOTTEN_SECONDS)

    def reseal(self) -> None:
        """Sign packages that were signed with an old SECRET_KEY with the current one, while the
        old key is still configured. Resume schedules that a cluster without the right key or
        serializer has paused."""
        for row in self._schedules:
            try:
                package = reseal(self._settings, row)
            except StokerError:
                continue  # the error is logged and shown when the schedule falls due
            if package is not None:
                self._schedules.filter(pk=row.pk, package=row.package).update(package=package)
            if was_paused_unopened(row):
                self._resume(row)

    def _resume(self, row: Schedule) -> None:
        try:
            state = resumed_state(row, database_now_us(self._settings.database))
        except ValueError:  # its rule cannot be read
            return
        paused = self._schedules.filter(
            pk=row.pk, definition=row.definition, is_paused=True, paused_by=ITSELF
        )
        if paused.filter(paused_us=row.paused_us).update(**state):
            tell("schedule_resumed", name=row.name)

    def _within_bounds(self, one: Declared, row: Schedule | None) -> None:
        """Add or change one schedule. If the schedule is invalid, log the error and return."""
        try:
            if row is None:
                self._add(one)
            elif not row.is_declared:
                self._tell_once(one.name, "another schedule has that name: rename one of them")
            else:
                self._change(one, row)
        except StokerError as error:
            self._tell_once(one.name, str(error))

    def _add(self, one: Declared) -> None:
        row = insert(self._settings, one.name, one.source, one.task, one.when)
        if row is not None:
            tell("schedule_declared", name=one.name, words=row.words)
            if row.is_over:
                tell("schedule_past", name=one.name)
            return
        # Another cluster has just added it, or the database takes another name for the same.
        names = set(self._schedules.filter(name=one.name).values_list("name", flat=True))
        if names and one.name not in names:
            other = names.pop()
            because = f"the database takes its name for {other!r}: rename one of them"
            self._tell_once(one.name, because)

    def _change(self, one: Declared, row: Schedule) -> None:
        values = values_of(self._settings, row.pk, one.name, one.task, one.when, row)
        is_same = values["definition"] == row.definition and row.source == one.source
        if is_same and self._can_open(row):
            return
        now_us = database_now_us(self._settings.database)
        state = changed_state(row, values, now_us)
        is_past = row.moment_us is None and is_long_past(
            state.get("moment_us"), values["grace_us"], now_us
        )
        if is_past:
            state |= ENDED
        unchanged = self._schedules.filter(
            pk=row.pk,
            definition=row.definition,
            package=row.package,
            is_paused=row.is_paused,
            moment_us=row.moment_us,
        )
        if unchanged.update(source=one.source, **values, **state):
            tell("schedule_declared", name=one.name, words=Schedule(pk=row.pk, **values).words)
            if is_past:
                tell("schedule_past", name=one.name)

    def _can_open(self, row: Schedule) -> bool:
        """Return whether this process can open the row's package. It cannot after a change of
        SERIALIZER back to "json", or of SECRET_KEY without SECRET_KEY_FALLBACKS."""
        try:
            opened(self._settings, row)
        except PackageError:
            return False
        return True

    def _remove_dropped(self) -> None:
        """Remove the schedules that are no longer declared. No index finds them, so look for them
        only every ``DROPPED_SECONDS``, and after another edition was alive, which may have added
        some."""
        if time.monotonic() < self._look_for_dropped_at:
            return
        alias = self._settings.database
        declared = self._schedules.exclude(source=Schedule.Source.ROW)
        for row in declared.exclude(name__in=list(self._declared)):
            with transaction.atomic(using=alias):
                is_gone = self._schedules.filter(pk=row.pk, source=row.source).delete()[0]
                if is_gone:
                    Tick.objects.using(alias).filter(schedule_id=row.pk).delete()
            if is_gone:
                tell("schedule_dropped", name=row.name)
        self._look_for_dropped_at = time.monotonic() + DROPPED_SECONDS

    def _tell_once(self, name: str, because: str) -> None:
        if name not in self._told:
            self._told.add(name)
            tell("schedule_refused", name=name, because=because)

    def _digest_of_all(self) -> str:
        """Return a digest of all declarations. It is the same for the same code on every host."""
        digest = hashlib.sha256()
        for name, one in sorted(self._declared.items()):
            try:
                values = values_of(self._settings, new_job_id(), name, one.task, one.when)
                definition = values["definition"]
            except StokerError as error:
                definition = type(error).__name__
            digest.update(f"{name}\n{one.source}\n{definition}\n".encode())
        return digest.hexdigest()


def _numbered(path: str, number: int) -> str:
    return path if number == 1 else f"{path} {number}"
