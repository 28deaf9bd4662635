"""Ticks: one row for each moment of a schedule."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from django.db import connections, models
from django.db.models import Count

from stoker.store.statements import insert_rows
from stoker.store.written import Written


class TickQuerySet(models.QuerySet["Tick"]):
    def numbers_of(self, schedule_ids: Collection[UUID]) -> dict[UUID, int]:
        """Return schedule -> number of its ticks, for the schedules that have any. An index
        contains all that is read."""
        rows = self.filter(schedule_id__in=schedule_ids).order_by().values_list("schedule_id")
        return dict(rows.annotate(Count("schedule_id")))

    def forget(self, schedule_id: UUID, keep: int, limit: int) -> int:
        """Delete up to ``limit`` ticks of a schedule, except the newest ``keep``."""
        own = self.filter(schedule_id=schedule_id).order_by("-moment_us")
        newest = own.values_list("moment_us", flat=True)[keep : keep + 1].first()
        if newest is None:
            return 0
        old = self.filter(schedule_id=schedule_id, moment_us__lte=newest).order_by("moment_us")
        keys = list(old.values_list("pk", flat=True)[:limit])
        return self.filter(pk__in=keys).delete()[0]


def insert_ticks(rows: models.QuerySet[Tick], ticks: Sequence[Tick]) -> None:
    """Insert ticks. Raises IntegrityError if the moment has a tick already."""
    written = Written(connections[rows.db])
    values = [
        (
            written.id(tick.schedule_id),
            tick.moment_us,
            str(tick.outcome),
            None if tick.job_id is None else written.id(tick.job_id),
            tick.fired_us,
            tick.count,
            tick.by,
        )
        for tick in ticks
    ]
    names = ("schedule_id", "moment_us", "outcome", "job_id", "fired_us", "count", "by")
    insert_rows(rows, names, values)


class Tick(models.Model):
    class Outcome(models.TextChoices):
        FIRED = "fired"
        MANUAL = "manual"
        """A user fired the tick, at a moment that the rule does not contain."""
        MISSED = "missed"
        """The tick was not fired in time. One row stands for ``count`` moments, starting with this
        one."""
        SKIPPED = "skipped"
        """The tick was not fired, because the previous job had not ended or its unique key was
        taken."""
        HELD = "held"
        """The tick waits until the previous job has ended."""

    id = models.BigAutoField(primary_key=True)
    schedule_id = models.UUIDField()
    moment_us = models.BigIntegerField()
    outcome = models.CharField(max_length=7, choices=Outcome.choices)
    job_id = models.UUIDField(null=True)
    fired_us = models.BigIntegerField()
    """Time of the write, on the database's clock."""
    count = models.IntegerField(default=1)
    by = models.CharField(max_length=150, default="", blank=True)

    objects = TickQuerySet.as_manager()

    class Meta:
        verbose_name = "tick"
        constraints = (
            models.UniqueConstraint(fields=["schedule_id", "moment_us"], name="stoker_tick_once"),
        )

    def __str__(self) -> str:
        return f"{self.schedule_id} {self.moment_us}: {self.outcome}"
