"""``Schedule``: a schedule as a row, as in Django Q.

Each row has a schedule of Stoker's with the same name, which fires. It is updated in the
transaction that changes the row. When rows are read, they show its progress.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import uuid4

from django.conf import settings as django_settings
from django.core.exceptions import ValidationError
from django.db import DatabaseError, IntegrityError, models, transaction
from django.db.models import F, Max
from django.db.models.signals import post_delete
from django.utils import timezone

from stoker.compat import InvalidTask
from stoker.conf import Settings
from stoker.contrib.django_q import conf
from stoker.contrib.django_q.calls import call_task
from stoker.contrib.django_q.spec import (
    Options,
    Spec,
    packed,
    read_arguments,
    spec_of,
    taken_out,
)
from stoker.exceptions import InvalidSchedule, ScheduleExists, StokerError
from stoker.models import Schedule as OwnSchedule
from stoker.schedules import service as schedules
from stoker.schedules.rows import values_of
from stoker.store.written import database_now_us
from stoker.tasks.schedules import Cron, Every, Once, Scheduled
from stoker.values.cron import fields_of, zone_named
from stoker.values.ticks import as_moment, as_us

from .task import Task

logger = logging.getLogger("stoker")
REFUSALS = (StokerError, InvalidTask, ValueError)
"""Errors of wrong values."""


def now() -> datetime:
    return timezone.now().replace(microsecond=0)


def as_own_rule(rule: str) -> str:
    """Return a cron rule of Django Q in the form that means the same to Stoker.

    In Django Q the last of six fields are the seconds; here it is the first. If both fields of days
    are restricted, Django Q runs on the days of either. Stoker does the same, unless one of them
    begins with ``*``, as in ``*/2``.
    """
    try:
        fields = fields_of(rule)
    except ValueError:
        return rule  # Cron() says what is wrong
    if len(fields) == 6:
        fields = [fields[-1], *fields[:-1]]
    if fields[-3] != "*" and fields[-1] != "*":
        fields[-3] = fields[-3].replace("*", "1-31")
        fields[-1] = fields[-1].replace("*", "0-6")
    return " ".join(fields)


def validate_cron(value: str) -> None:
    """Raise ValidationError unless the value is a cron rule, such as ``@daily``."""
    try:
        Cron(as_own_rule(value))
    except InvalidSchedule as error:
        raise ValidationError(str(error)) from None


class ScheduleRowQuerySet(models.QuerySet["Schedule"]):
    def _fetch_all(self) -> None:
        rows: Any = self
        is_fresh = rows._result_cache is None
        super()._fetch_all()
        if is_fresh and not rows._fields:  # else they are values, no rows
            show_progress(rows._result_cache)

    def update(self, **values: Any) -> int:
        with transaction.atomic(using=self.db):
            ids = list(self.values_list("pk", flat=True))
            count = super().update(**values)
            self._reflect(ids, values)
        return count

    def bulk_create(self, objs: Iterable[Schedule], *args: Any, **kwargs: Any) -> list[Schedule]:
        plain: models.QuerySet[Schedule] = models.QuerySet(self.model, using=self.db)
        with transaction.atomic(using=self.db):
            last = plain.aggregate(last=Max("pk"))["last"] or 0
            rows = super().bulk_create(objs, *args, **kwargs)
            ids = [row.pk for row in rows]
            if None in ids:  # MySQL does not return new keys
                ids += plain.filter(pk__gt=last, own_id=None).values_list("pk", flat=True)
            self._reflect(ids, None)
        return rows

    def _reflect(self, ids: Collection[int], values: dict[str, Any] | None) -> None:
        if values is not None and set(values) <= PROGRESS:
            return
        keeps_moment = values is not None and "next_run" not in values
        plain: models.QuerySet[Schedule] = models.QuerySet(self.model, using=self.db)
        for row in plain.filter(pk__in=ids):
            reflect(row, keeps_moment=keeps_moment)


class ScheduleManager(models.Manager.from_queryset(ScheduleRowQuerySet)):  # type: ignore[misc] # made at run time
    """Uses the database that contains the shim's tables."""

    def get_queryset(self) -> ScheduleRowQuerySet:
        rows: ScheduleRowQuerySet = super().get_queryset()
        return rows.using(conf.database()) if self._db is None else rows


class Schedule(models.Model):
    ONCE, MINUTES, HOURLY, DAILY, WEEKLY, BIWEEKLY = "O", "I", "H", "D", "W", "BW"
    MONTHLY, BIMONTHLY, QUARTERLY, YEARLY, CRON = "M", "BM", "Q", "Y", "C"
    TYPE = (
        (ONCE, "Once"),
        (MINUTES, "Minutes"),
        (HOURLY, "Hourly"),
        (DAILY, "Daily"),
        (WEEKLY, "Weekly"),
        (BIWEEKLY, "Biweekly"),
        (MONTHLY, "Monthly"),
        (BIMONTHLY, "Bimonthly"),
        (QUARTERLY, "Quarterly"),
        (YEARLY, "Yearly"),
        (CRON, "Cron"),
    )

    name = models.CharField(max_length=100, null=True, blank=True)  # noqa: DJ001 - as Django Q has it
    func = models.CharField(max_length=256, help_text="e.g. module.tasks.function")
    hook = models.CharField(max_length=256, null=True, blank=True)  # noqa: DJ001 - as above
    args = models.TextField(null=True, blank=True, help_text="e.g. 1, 2, 'John'")  # noqa: DJ001 - as above
    kwargs = models.TextField(null=True, blank=True, help_text="e.g. x=1, y=2")  # noqa: DJ001 - as above
    schedule_type = models.CharField(max_length=2, choices=TYPE, default=ONCE)
    minutes = models.PositiveIntegerField(null=True, blank=True)
    """Interval in minutes, for schedules of type I."""
    repeats = models.IntegerField(default=-1, help_text="n = n times, -1 = forever")
    next_run = models.DateTimeField(default=now, null=True)
    cron = models.CharField(  # noqa: DJ001 - as above
        max_length=100, null=True, blank=True, validators=[validate_cron]
    )
    task = models.CharField(max_length=100, null=True, editable=False)  # noqa: DJ001 - as above
    """Id of the last task."""
    cluster = models.CharField(max_length=100, default=None, null=True, blank=True)  # noqa: DJ001 - as above
    intended_date_kwarg = models.CharField(max_length=100, null=True, blank=True)  # noqa: DJ001 - as above
    """Keyword argument that receives the intended moment, in ISO 8601."""

    own_id = models.UUIDField(null=True, editable=False)
    """Id of Stoker's schedule, which fires."""

    objects: ClassVar[ScheduleManager] = ScheduleManager()

    class Meta:
        verbose_name = "schedule"
        ordering = ("next_run",)
        indexes = (models.Index(fields=["name"], name="stoker_dq_schedule_name"),)

    def __str__(self) -> str:
        return self.name or self.func

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write the row and update Stoker's schedule.

        Raises:
            InvalidSchedule: a value is wrong; nothing was written.
        """
        kwargs.setdefault("using", conf.database())
        is_new = self._state.adding and self._meta.pk.value_from_object(self) is None
        if is_new and self.schedule_type == self.CRON:
            self.next_run = first_moment(self)
        with transaction.atomic(using=kwargs["using"]):
            super().save(*args, **kwargs)
            reflect(self)

    def clean(self) -> None:
        """Raise ValidationError for values that ``save()`` would refuse, so that forms show why."""
        if self.repeats == 0 or self.next_run is None:
            return
        name, _ = _names(self)
        try:
            values_of(conf.settings(), uuid4(), name, _task_of(self), _when(self, None))
        except REFUSALS as error:
            raise ValidationError(str(error)) from None

    @classmethod
    def refresh(cls, schedule_id: int) -> None:
        """Write the progress of Stoker's schedule into the row. Called after the commit of a tick.

        As in Django Q, a row for a single run is deleted after it, unless it is to be kept.
        """
        plain = cls._base_manager.using(conf.database()).filter(pk=schedule_id)
        row = plain.first()
        own = None if row is None else _find(row)
        if own is None or row is None:
            return
        if own.moment_us is None and row.schedule_type == cls.ONCE and own.repeats_left <= 0:
            if row.repeats < 0:
                cls.objects.filter(pk=schedule_id).delete()
            else:
                plain.update(repeats=0, task=_last_task(own))
            return
        _show(row, own)
        plain.update(next_run=row.next_run, repeats=row.repeats, task=row.task)

    def calculate_next_run(self, next_run: datetime | None = None) -> datetime | None:
        """Return the moment of the rule after ``next_run``, or after the row's own ``next_run``."""
        return moment_after(self, next_run or self.next_run or now())

    def success(self) -> bool | None:
        """Return whether the last task succeeded; None = it has not ended or is not kept."""
        row = Task.get_task(self.task) if self.task else None
        return None if row is None else row.success

    def last_run(self) -> str | None:
        """Return the name of the last task."""
        row = Task.get_task(self.task) if self.task else None
        return None if row is None else row.name


PROGRESS = {"task"}
"""Columns that show progress and are not part of the schedule's definition."""
UNITS = {
    Schedule.MINUTES: ("minutes", 1),
    Schedule.HOURLY: ("hours", 1),
    Schedule.DAILY: ("days", 1),
    Schedule.WEEKLY: ("weeks", 1),
    Schedule.BIWEEKLY: ("weeks", 2),
    Schedule.MONTHLY: ("months", 1),
    Schedule.BIMONTHLY: ("months", 2),
    Schedule.QUARTERLY: ("quarters", 1),
    Schedule.YEARLY: ("years", 1),
}


def reflect(row: Schedule, *, keeps_moment: bool = False) -> None:
    """Update Stoker's schedule to match the row, in the open transaction.

    Args:
        keeps_moment: keep the next moment, even if the row shows another one.

    Raises:
        InvalidSchedule: the message says which value is wrong.
    """
    if row.repeats == 0 or row.next_run is None:
        remove(row)
        return
    known = _find(row)
    next_us = _as_whole_us(row.next_run)
    is_kept = known is not None and (keeps_moment or known.moment_us == next_us)
    when = _when(row, known if is_kept else None)
    task = _task_of(row)
    own = _create(row, task, when) if known is None else _change(row, known, task, when)
    if row.own_id != own.pk:
        row.own_id = own.pk
        Schedule._base_manager.using(conf.database()).filter(pk=row.pk).update(own_id=own.pk)
    if not is_kept and row.schedule_type != Schedule.CRON:
        _keep_overdue(own, row.next_run)


def keep_missed(row: Schedule, next_run: datetime) -> None:
    """Let a new cron schedule fire at once if it has missed moments since ``next_run``."""
    own = _find(row)
    first = moment_after(row, _aware(next_run) - timedelta(seconds=1))
    if own is not None and first is not None:
        _keep_overdue(own, first)


def _keep_overdue(own: OwnSchedule, moment: datetime) -> None:
    """Set the next moment of Stoker's schedule to this one if it is in the past: the tick is
    already due and must not be skipped."""
    moment_us = _as_whole_us(moment)
    if not own.is_paused and moment_us <= database_now_us(conf.database()):
        rows = schedules.find(backend=conf.alias()).filter(pk=own.pk)
        rows.update(moment_us=moment_us, due_us=moment_us)


def reflect_unsaved(settings: Settings, beat: Callable[[], None] = lambda: None) -> int:
    """Create Stoker's schedules for rows that were written without ``save()``: by a fixture, by a
    migration, or in SQL. Return their number.

    A row with a wrong value is logged and skipped.
    """
    if settings.database != conf.database():
        return 0
    count, rows = 0, Schedule._base_manager.using(settings.database)
    unsaved = rows.filter(own_id=None, next_run__isnull=False).exclude(repeats=0)
    for key in list(unsaved.order_by("pk").values_list("pk", flat=True)):
        beat()
        try:
            with transaction.atomic(using=settings.database):
                # This locks the row, unless another process has saved it meanwhile.
                if unsaved.filter(pk=key).update(next_run=F("next_run")):
                    reflect(rows.get(pk=key))
                    count += 1
        except (*REFUSALS, DatabaseError) as error:
            logger.warning("The row %s of Schedule cannot run: %s", key, error)
    return count


def _task_of(row: Schedule) -> Any:
    return call_task.under(row.func).using(backend=conf.alias())


def _create(row: Schedule, task: Any, when: Scheduled) -> OwnSchedule:
    """Create Stoker's schedule of a row.

    Only the insert shows whether the name is free, because another transaction may be inserting it.
    """
    name, numbered = _names(row)
    try:
        return schedules.create(name, task, when, backend=conf.alias())
    except ScheduleExists:
        return schedules.create(numbered, task, when, backend=conf.alias())


def _change(row: Schedule, known: OwnSchedule, task: Any, when: Scheduled) -> OwnSchedule:
    """Change Stoker's schedule of a row. It keeps its name if the names of the row are taken."""
    found, name = schedules.find(backend=conf.alias()), known.name
    for wanted in _names(row):
        if wanted == name:
            break
        with suppress(IntegrityError), transaction.atomic(using=conf.database()):
            found.filter(pk=known.pk).update(name=wanted)
            name = wanted
            break
    return schedules.update(name, task=task, when=when, backend=conf.alias())


def _names(row: Schedule) -> tuple[str, str]:
    """Return the name of Stoker's schedule, which is the row's or that of its function, and the
    name to use if another schedule has that one."""
    name = str(row.name or row.func)
    return name, f"{name} #{row.pk}"


def remove(instance: Schedule, **_: Any) -> None:
    """Delete Stoker's schedule of a row that was deleted or has ended."""
    known = _find(instance)
    if known is not None:
        schedules.delete(known.name, backend=conf.alias())


post_delete.connect(remove, sender=Schedule, dispatch_uid="stoker.contrib.django_q.schedule")


def show_progress(rows: Sequence[Schedule]) -> None:
    """Update the progress attributes of the given rows from Stoker's schedules."""
    wanted = {row.own_id: row for row in rows if row.own_id is not None}
    if wanted:
        for own in schedules.find(backend=conf.alias()).filter(pk__in=wanted):
            _show(wanted[own.pk], own)


def moment_after(row: Schedule, moment: datetime) -> datetime | None:
    """Return the next moment of this row's rule, or None if there is none."""
    when = _when(row, None)
    if isinstance(when, Once):
        return None
    found = when.rule(str(django_settings.TIME_ZONE)).next_after(_aware(moment))
    return None if found is None else _as_shown(found)


def first_moment(row: Schedule) -> datetime | None:
    """Return when a new row is first due: at ``next_run``, or for a cron rule at its first moment
    from ``next_run`` on."""
    start = row.next_run
    if start is None or not row.cron:
        return start
    # The rule returns moments after ``since``, and ``next_run`` itself may be a moment.
    since = max(_aware(start) - timedelta(seconds=1), timezone.now())
    return moment_after(row, since)


def _when(row: Schedule, known: OwnSchedule | None) -> Scheduled:
    """Convert the row to a schedule of Stoker's.

    An existing interval keeps its anchor, so that the 31st stays the 31st after a month with 30
    days.
    """
    zone = conf.Conf.TIME_ZONE or str(django_settings.TIME_ZONE)
    assert row.next_run is not None
    start = _aware(row.next_run).replace(microsecond=0)
    anchor = start.astimezone(zone_named(zone)).replace(tzinfo=None)
    if known is not None and known.kind == "interval" and row.schedule_type in UNITS:
        unit, count = UNITS[row.schedule_type]
        if known.unit == unit and known.zone == zone and (count > 1 or known.count == _count(row)):
            anchor = datetime.fromisoformat(known.anchor)
    if known is not None and known.start_us is not None:
        start = as_moment(known.start_us)
    settings = conf.settings()
    args, kwargs, options = _call_of(row)
    terms: dict[str, Any] = {
        "tz": zone,
        "args": (_spec(row, options), packed(settings, args, kwargs)),
        "repeats": row.repeats if row.repeats > 0 else -1,
        "misfire": "once",
        "queue_name": options["cluster"] or conf.main_queue(),
    }
    if row.schedule_type == Schedule.ONCE:
        return Once(start, **terms)
    if row.schedule_type == Schedule.CRON:
        if not row.cron:
            raise InvalidSchedule('schedule_type "C" needs a cron rule: cron="0 3 * * *".')
        return Cron(as_own_rule(row.cron), start=start, **terms)
    if row.schedule_type not in UNITS:
        known_types = ", ".join(kind for kind, _ in Schedule.TYPE)
        raise InvalidSchedule(f"schedule_type={row.schedule_type!r}: write one of {known_types}.")
    if conf.given().get("catch_up") is True:
        terms["misfire"] = "all"
    unit, _ = UNITS[row.schedule_type]
    return Every(count=_count(row), unit=unit, anchor=anchor, start=start, **terms)


def _count(row: Schedule) -> int:
    if row.schedule_type == Schedule.MINUTES:
        return int(row.minutes or 1)
    return UNITS[row.schedule_type][1]


def _call_of(row: Schedule) -> tuple[tuple[Any, ...], dict[str, Any], Options]:
    """Return the arguments of the function and the options of ``async_task``, as Django Q's
    scheduler takes them from a row.

    Raises:
        InvalidSchedule: the row's arguments cannot be read, or an option has no effect here.
    """
    args, kwargs = read_arguments(row.args, row.kwargs)
    given = dict(kwargs.get("q_options") or {})
    other_name = given.pop("broker_name", None)
    given["cluster"] = row.cluster or given.get("cluster", other_name)
    given.setdefault("group", row.name or str(row.pk))
    if row.hook:
        given["hook"] = row.hook
    kwargs["q_options"] = given
    options = taken_out(kwargs)
    if options.get("chain"):
        raise InvalidSchedule(
            'A schedule cannot have the option "chain": schedule a function that calls async_chain.'
        )
    return args, kwargs, options


def _spec(row: Schedule, options: Options) -> Spec:
    spec = spec_of(row.func, options)
    limits = {
        "timeout": options.get("timeout") or None,
        "ack_failure": options.get("ack_failure"),
    }
    spec |= {key: value for key, value in limits.items() if value is not None}
    if row.intended_date_kwarg:
        spec["intended_date_kwarg"] = row.intended_date_kwarg
    spec["schedule"] = row.pk
    return spec


def _find(row: Schedule) -> OwnSchedule | None:
    """Return Stoker's schedule of this row, or None."""
    if row.own_id is None:
        return None
    return schedules.find(backend=conf.alias()).filter(pk=row.own_id).first()


def _show(row: Schedule, own: OwnSchedule) -> None:
    if own.moment_us is not None:
        row.next_run = _as_shown(as_moment(own.moment_us))
    if row.repeats > 0:
        row.repeats = max(own.repeats_left, 0)
    row.task = _last_task(own) or row.task


def _last_task(own: OwnSchedule) -> str | None:
    return None if own.last_job_id is None else own.last_job_id.hex


def _as_whole_us(moment: datetime) -> int:
    """Return the moment without its fraction of a second, in microseconds since 1970."""
    return as_us(_aware(moment).replace(microsecond=0))


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else timezone.make_aware(moment)


def _as_shown(moment: datetime) -> datetime:
    return moment if django_settings.USE_TZ else timezone.make_naive(moment)
