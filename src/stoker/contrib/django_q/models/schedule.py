"""``Schedule``: a row that says what is to run when, as Django Q has it. Stoker's own schedule,
under the name of the row, is what fires: it is changed in the transaction that changes the row, and
the row shows how far it has come."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models.signals import post_delete
from django.utils import timezone

from stoker.contrib.django_q import conf
from stoker.exceptions import InvalidSchedule

from .task import Task


def now() -> datetime:
    return timezone.now().replace(microsecond=0)


def validate_cron(value: str) -> None:
    """Raises ValidationError for what is no rule of five fields, or six."""
    from stoker.tasks.schedules import Cron

    try:
        Cron(value)
    except InvalidSchedule as error:
        raise ValidationError(str(error)) from None


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    def _fetch_all(self) -> None:
        rows: Any = self
        is_fresh = rows._result_cache is None
        super()._fetch_all()
        if is_fresh and not rows._fields:  # else they are values, no rows
            from stoker.contrib.django_q.mirror import show_progress

            show_progress(rows._result_cache)

    def update(self, **values: Any) -> int:
        with transaction.atomic(using=self.db):
            ids = list(self.values_list("pk", flat=True))
            count = super().update(**values)
            self._reflect(ids, values)
        return count

    def bulk_create(self, objs: Iterable[Schedule], *args: Any, **kwargs: Any) -> list[Schedule]:
        with transaction.atomic(using=self.db):
            rows = super().bulk_create(objs, *args, **kwargs)
            self._reflect([row.pk for row in rows], None)
        return rows

    def _reflect(self, ids: Collection[int], values: dict[str, Any] | None) -> None:
        from stoker.contrib.django_q.mirror import PROGRESS, reflect

        if values is not None and set(values) <= PROGRESS:
            return
        keeps_moment = values is not None and "next_run" not in values
        plain: models.QuerySet[Schedule] = models.QuerySet(self.model, using=self.db)
        for row in plain.filter(pk__in=ids):
            reflect(row, keeps_moment=keeps_moment)


class ScheduleManager(models.Manager.from_queryset(ScheduleQuerySet)):  # type: ignore[misc] # made at run time
    """Where the rows are written, they are read."""

    def get_queryset(self) -> ScheduleQuerySet:
        rows: ScheduleQuerySet = super().get_queryset()
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
    """Of type I."""
    repeats = models.IntegerField(default=-1, help_text="n = n times, -1 = forever")
    next_run = models.DateTimeField(default=now, null=True)
    cron = models.CharField(  # noqa: DJ001 - as above
        max_length=100, null=True, blank=True, validators=[validate_cron]
    )
    task = models.CharField(max_length=100, null=True, editable=False)  # noqa: DJ001 - as above
    """The id of its last task."""
    cluster = models.CharField(max_length=100, default=None, null=True, blank=True)  # noqa: DJ001 - as above
    intended_date_kwarg = models.CharField(max_length=100, null=True, blank=True)  # noqa: DJ001 - as above
    """The keyword in which the function is given the moment that was meant, in ISO 8601."""

    own_id = models.UUIDField(null=True, editable=False)
    """Of Stoker's schedule, which fires."""

    objects: ClassVar[ScheduleManager] = ScheduleManager()

    class Meta:
        verbose_name = "schedule"
        ordering = ("next_run",)
        indexes = (models.Index(fields=["name"], name="stoker_dq_schedule_name"),)

    def __str__(self) -> str:
        return self.name or self.func

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write the row, and let it be so from now on.

        Raises:
            InvalidSchedule: with a sentence for what is wrong; nothing was written then.
        """
        from stoker.contrib.django_q.mirror import first_moment, reflect

        kwargs.setdefault("using", conf.database())
        is_new = self._state.adding and self._meta.pk.value_from_object(self) is None
        if is_new and self.schedule_type == self.CRON:
            self.next_run = first_moment(self)
        with transaction.atomic(using=kwargs["using"]):
            super().save(*args, **kwargs)
            reflect(self)

    def calculate_next_run(self, next_run: datetime | None = None) -> datetime | None:
        """The moment after ``next_run``, or after the one that the row has."""
        from stoker.contrib.django_q.mirror import moment_after

        return moment_after(self, next_run or self.next_run or now())

    def success(self) -> bool | None:
        """Whether its last task succeeded; None = it has not ended, or is not kept."""
        row = Task.get_task(self.task) if self.task else None
        return None if row is None else row.success

    def last_run(self) -> str | None:
        """The name of its last task."""
        row = Task.get_task(self.task) if self.task else None
        return None if row is None else row.name


def _remove(instance: Schedule, **_: Any) -> None:
    from stoker.contrib.django_q.mirror import remove

    remove(instance)


post_delete.connect(_remove, sender=Schedule, dispatch_uid="stoker.contrib.django_q.schedule")
