"""Public functions for schedules: create, change, find, pause and run them.

::

    from stoker import Cron, every, schedules

    schedules.create("nightly report", report, Cron("0 3 * * *", tz="Europe/Berlin", args=[7]))
    schedules.upsert("ping", "shop.tasks.ping", every(minutes=5))
    schedules.pause("nightly report", by="ada", because="the printer is broken")
    schedules.next_ticks("nightly report", 5)

Names are unique per cluster name (``CLUSTER``) and backend. Schedules that code or settings declare
are changed there; they can be paused, resumed and run here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings as django_settings
from django.db import transaction

from stoker.conf import Settings, settings_for
from stoker.exceptions import InvalidSchedule, ScheduleExists, ScheduleNotFound
from stoker.jobs.results import Result
from stoker.models import Schedule, Tick
from stoker.models.schedule import ScheduleQuerySet
from stoker.store.engines.sessions import explained
from stoker.store.statements import deciding, lock_by_key
from stoker.store.written import database_now_us
from stoker.tasks.registry import task_of
from stoker.tasks.schedules import Scheduled
from stoker.values.cron import in_words, zone_named
from stoker.values.ticks import as_moment

from .fire import Firing
from .rows import changed_state, insert, later_state, opened, resumed_state, scheduled_of, values_of


def create(name: str, task: Any, when: Scheduled, *, backend: str = "default") -> Schedule:
    """Create a schedule.

    Args:
        name: up to 255 characters.
        task: a task, or its dotted path.
        when: ``Cron(...)``, ``every(...)`` or ``once(...)``, with arguments and other options.
        backend: an alias in ``TASKS``.

    Raises:
        ScheduleExists: a schedule of that name exists.
        InvalidSchedule, UnknownTask, NotSerializable, PackageTooLarge: the message says why.
    """
    settings = settings_for(backend)
    with explained(settings.database):
        row = insert(settings, name, Schedule.Source.ROW, task, when)
    if row is None:
        raise ScheduleExists(
            f"There is a schedule {name!r} already: choose another name, or use upsert()."
        )
    return row


def upsert(name: str, task: Any, when: Scheduled, *, backend: str = "default") -> Schedule:
    """Create a schedule, or change the one of that name.

    An unchanged schedule keeps its next moment and its pause. Raises as ``create``; ScheduleExists
    if code or settings declare that name.
    """
    while True:
        try:
            row = get(name, backend=backend)
        except ScheduleNotFound:
            try:
                return create(name, task, when, backend=backend)
            except ScheduleExists:
                continue
        return _change(settings_for(backend), row, task, when)


def update(
    name: str,
    *,
    task: Any = None,
    when: Scheduled | None = None,
    backend: str = "default",
    **terms: Any,
) -> Schedule:
    """Change a schedule: ``update("ping", when=every(minutes=1))``, ``update("ping", args=[2])``.

    Args:
        task: None = unchanged.
        when: None = unchanged.
        terms: options of ``Scheduled``; omitted ones are taken from ``when`` or the row.

    Raises:
        ScheduleNotFound: no schedule has that name.
        ScheduleExists: code or settings declare it.
        Others: as ``create``.
    """
    settings = settings_for(backend)
    row = get(name, backend=backend)
    known = {one.name for one in fields(Scheduled)} - {"name"}
    for term in terms:
        if term not in known:
            raise InvalidSchedule(
                f"A schedule has no option {term!r}. Known: {', '.join(sorted(known))}."
            )
    changed = scheduled_of(settings, row) if when is None else when
    return _change(settings, row, task or task_of(opened(settings, row)), replace(changed, **terms))


def get(name: str, *, backend: str = "default") -> Schedule:
    """Return the schedule of that name. Raises ScheduleNotFound."""
    row = find(backend=backend).filter(name=name).first()
    if row is None:
        raise ScheduleNotFound(f"There is no schedule {name!r}.")
    return row


def find(*, backend: str = "default") -> ScheduleQuerySet:
    """Return a query set of all schedules."""
    settings = settings_for(backend)
    return Schedule.objects.using(settings.database).of(settings.cluster, backend)


def delete(name: str, *, backend: str = "default") -> bool:
    """Delete a schedule and its ticks, but not its jobs. Return False if it does not exist.

    Raises:
        ScheduleExists: code or settings declare it and would add it again.
    """
    row = find(backend=backend).filter(name=name).first()
    if row is None:
        return False
    _refuse_declared(row)
    database = settings_for(backend).database
    with transaction.atomic(using=database):
        is_ours = find(backend=backend).filter(pk=row.pk).delete()[0]
        Tick.objects.using(database).filter(schedule_id=row.pk).delete()
    return bool(is_ours)


def pause(name: str, *, by: str = "", because: str = "", backend: str = "default") -> Schedule:
    """Fire no ticks until the schedule is resumed. Ticks in between are skipped. Raises
    ScheduleNotFound."""
    row = get(name, backend=backend)
    find(backend=backend).filter(pk=row.pk).pause(by, because)
    return get(name, backend=backend)


def resume(name: str, *, backend: str = "default") -> Schedule:
    """Resume a schedule from its next moment on. A one-time schedule whose moment came during the
    pause is over.

    Raises ScheduleNotFound; InvalidSchedule if the rule cannot be read.
    """
    settings = settings_for(backend)
    pk = get(name, backend=backend).pk
    with deciding(settings.database):
        for row in lock_by_key(find(backend=backend), [pk]):
            try:
                state = resumed_state(row, database_now_us(settings.database))
            except ValueError as error:
                raise _unreadable(row, error) from None
            find(backend=backend).filter(pk=pk, is_paused=True).update(**state)
    return get(name, backend=backend)


def run_now(name: str, *, by: str = "", backend: str = "default") -> Result[Any]:
    """Enqueue the schedule's job now, even if it is paused. The next tick is not affected.

    Raises:
        ScheduleNotFound: no schedule has that name.
        PackageError, UnknownTask: the call cannot be read here.
        Others: as ``Task.enqueue``.
    """
    settings = settings_for(backend)
    result = Firing(settings).fire_by_hand(get(name, backend=backend).pk, by)
    if result is None:
        raise ScheduleNotFound(f"There is no schedule {name!r} any more.")
    return result


def ticks(name: str, count: int = 20, *, backend: str = "default") -> list[Tick]:
    """Return the last ticks of a schedule, newest first. Raises ScheduleNotFound."""
    row = get(name, backend=backend)
    own = Tick.objects.using(settings_for(backend).database).filter(schedule_id=row.pk)
    return list(own.order_by("-moment_us")[:count])


def next_ticks(
    schedule: str | Schedule | Scheduled,
    count: int = 5,
    *,
    after: datetime | None = None,
    backend: str = "default",
) -> list[datetime]:
    """Return the next moments in the schedule's time zone, without jitter and ignoring a pause.

    Args:
        schedule: a name, a row, or a schedule that is not stored: ``Cron("0 3 * * *")``.
        after: an aware datetime; None = the row's next moment, or now.

    Raises:
        ScheduleNotFound: no schedule has that name.
        InvalidSchedule: the rule cannot be read.
    """
    if isinstance(schedule, str):
        schedule = get(schedule, backend=backend)
    if isinstance(schedule, Scheduled):
        zone = schedule.zone(str(django_settings.TIME_ZONE))
        since = datetime.now(UTC) if after is None else after.astimezone(UTC)
        moments = _moments_of(schedule, since)
    else:
        zone = schedule.zone
        moments = _moments_of_row(schedule, after)
    return [at.astimezone(zone_named(zone)) for at, _ in zip(moments, range(count), strict=False)]


def describe(schedule: str | Schedule | Scheduled, *, backend: str = "default") -> str:
    """Describe a rule in words. Raises ScheduleNotFound; InvalidSchedule if the rule cannot be
    read."""
    if isinstance(schedule, str):
        schedule = get(schedule, backend=backend)
    if isinstance(schedule, Scheduled):
        return in_words(schedule.rule(str(django_settings.TIME_ZONE)))
    try:
        return schedule.words
    except ValueError as error:
        raise _unreadable(schedule, error) from None


def scheduled(name: str, *, backend: str = "default") -> Scheduled:
    """Return a stored schedule as ``Cron``, ``Every`` or ``Once``, to change it and pass it to
    ``update``.

    Raises ScheduleNotFound; PackageError or ValueError if it cannot be read.
    """
    return scheduled_of(settings_for(backend), get(name, backend=backend))


def _change(settings: Settings, row: Schedule, task: Any, when: Scheduled) -> Schedule:
    _refuse_declared(row)
    values = values_of(settings, row.pk, row.name, task, when, row)
    if values["definition"] != row.definition:
        with deciding(settings.database):
            for locked in lock_by_key(find(backend=row.backend), [row.pk]):
                state = changed_state(locked, values, database_now_us(settings.database))
                find(backend=row.backend).filter(pk=row.pk).update(**values, **state)
    return get(row.name, backend=row.backend)


def _refuse_declared(row: Schedule) -> None:
    if row.is_declared:
        where = "the code" if row.source == Schedule.Source.CODE else "the settings (SCHEDULES)"
        raise ScheduleExists(
            f"The schedule {row.name!r} is declared in {where}: change it there. It can be paused."
        )


def _unreadable(row: Schedule, error: ValueError) -> InvalidSchedule:
    return InvalidSchedule(f"The rule of {row.name!r} cannot be read: {error}.")


def _moments_of(when: Scheduled, since: datetime) -> Iterator[datetime]:
    default = str(django_settings.TIME_ZONE)
    rule = when.rule(default)
    end = None if when.end is None else when.instant(when.end, default)
    if when.start is not None:
        since = max(since, when.instant(when.start, default) - timedelta(microseconds=1))
    found = rule.next_after(since)
    while found is not None and (end is None or found <= end):
        yield found
        found = rule.next_after(found)


def _moments_of_row(row: Schedule, after: datetime | None) -> Iterator[datetime]:
    try:
        course = row.course
    except ValueError as error:
        raise _unreadable(row, error) from None
    if after is not None:
        moment = course.after(int(after.timestamp() * 1_000_000))
    elif row.moment_us is not None and not row.is_paused:
        moment = row.moment_us
    elif row.is_paused:
        moment = later_state(row, int(datetime.now(UTC).timestamp() * 1_000_000))["moment_us"]
    else:
        moment = None
    left = row.repeats_left
    while moment is not None and left != 0:
        yield as_moment(moment)
        left -= 1
        moment = course.after(moment)
