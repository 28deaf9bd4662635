"""Schedules: what to enqueue and when, with the state of each schedule."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import connections, models, transaction
from django.db.models import Exists, OuterRef, QuerySet, Value
from django.db.models.functions import Now

from stoker.store.engines import engine_of
from stoker.store.statements import lock_by_key
from stoker.store.written import DatabaseNow, InsertedAt, Written, microseconds, statement
from stoker.tasks.schedules import as_sentence
from stoker.values.cron import CronRule, IntervalRule, OnceRule, Rule, in_words, zone_named
from stoker.values.text import stored_text
from stoker.values.ticks import Course, Misfire, as_moment

from .job import Job
from .lock import NOBODY


class FiredTick(NamedTuple):
    """A tick that enqueued a job."""

    schedule_id: UUID
    job_id: UUID
    fired_us: int
    """The moment that fired."""
    missed: int
    """Number of earlier moments that were missed."""
    seen_us: int
    """Moment and due time in the row when it was read."""
    seen_due_us: int
    moment_us: int | None
    """The moment of the next tick; None = the schedule has ended."""
    due_us: int | None
    repeats_left: int


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    def of(self, cluster: str, backend: str) -> ScheduleQuerySet:
        """Return the schedules that clusters of this name fire for this backend."""
        return self.filter(cluster=cluster, backend=backend)

    def due_within(self, seconds: float, limit: int) -> QuerySet[Any, Any]:
        """Return a query for the schedules that are due soon, earliest first. Its columns are id,
        due time, the database's time, and False."""
        soon = self.filter(due_us__lte=DatabaseNow() + microseconds(seconds))
        return soon.order_by("due_us")._due_rows(limit, are_held=False)

    def releasable(self, limit: int) -> QuerySet[Any, Any]:
        """Return a query for the schedules with a held tick whose previous job has ended. Its
        columns are those of ``due_within``, with True as the last one."""
        alive = Job.objects.using(self.db).filter(pk=OuterRef("last_job_id"), status=None)
        held = self.filter(held_us__isnull=False, is_paused=False).exclude(Exists(alive))
        return held._due_rows(limit, are_held=True)

    def _due_rows(self, limit: int, *, are_held: bool) -> QuerySet[Any, Any]:
        rows: Any = self.annotate(now_us=DatabaseNow(), is_held=Value(are_held))
        found: QuerySet[Any, Any] = rows.values_list("pk", "due_us", "now_us", "is_held")
        return found[:limit]

    def hold(self, schedule_id: UUID) -> Schedule | None:
        """Lock the row and return it with the attribute ``now_us``. Return None if it was deleted
        or is locked by another transaction."""
        written = Written(connections[self.db]).id(schedule_id)
        for row in self.model._base_manager.using(self.db).raw(_hold_statement(self.db), [written]):
            return row
        return None

    def hold_all(self, schedule_ids: Collection[UUID]) -> list[Schedule]:
        """Lock and return the given rows. Skip rows that were deleted or are locked by other
        transactions."""
        return lock_by_key(self.model._base_manager.using(self.db).all(), schedule_ids, waits=False)

    def advance_all(self, ticks: Sequence[FiredTick]) -> bool:
        """Write the next moments and job ids of schedules that fired once each. Return False if a
        row has changed since it was read."""
        if not ticks:
            return True
        text = statement("schedule_advance", now=engine_of(self.db).now_sql)
        write = Written(connections[self.db]).id
        rows = [
            (one.moment_us, one.due_us, write(one.job_id), one.fired_us, one.repeats_left,
             one.missed, write(one.schedule_id), one.seen_due_us, one.seen_us)
            for one in sorted(ticks)
        ]  # fmt: skip
        with connections[self.db].cursor() as cursor:
            cursor.executemany(text, rows)
            return bool(cursor.rowcount == len(rows))

    def advance(self, seen: Schedule, **values: Any) -> bool:
        """Write the changes of a tick. Return False if the row has changed since it was read."""
        unchanged = self.filter(
            pk=seen.pk, due_us=seen.due_us, moment_us=seen.moment_us, held_us=seen.held_us
        )
        return bool(unchanged.update(**values))

    def pause(self, by: str, because: str) -> int:
        """Pause these schedules. Return the number that were not paused before."""
        return self.filter(is_paused=False).update(
            is_paused=True,
            paused_us=DatabaseNow(),
            paused_by=stored_text(by, 150),
            paused_because=stored_text(because, 500),
            due_us=None,
        )


@cache
def _hold_statement(alias: str) -> str:
    """Return the SQL of ``hold``. The ORM would take longer to compile it than the database to run
    it."""
    rows = Schedule.objects.using(alias).annotate(now_us=DatabaseNow())
    rows = engine_of(alias).lockable(rows)
    with transaction.atomic(using=alias):  # Django requires a transaction for this query
        text, _ = rows.filter(pk=NOBODY).query.get_compiler(alias).as_sql()
    return str(text)


class ScheduleKind(models.TextChoices):
    CRON = "cron"
    INTERVAL = "interval"
    ONCE = "once"


class Schedule(models.Model):
    Kind = ScheduleKind

    class Source(models.TextChoices):
        CODE = "code"
        SETTINGS = "settings"
        ROW = "row"

    class MisfirePolicy(models.TextChoices):
        ONCE = "once"
        SKIP = "skip"
        ALL = "all"

    class Overlap(models.TextChoices):
        ALLOW = "allow"
        SKIP = "skip"
        QUEUE = "queue"

    id = models.UUIDField(primary_key=True)
    cluster = models.CharField(max_length=100)
    """Name of the clusters that fire it: ``CLUSTER``."""
    backend = models.CharField(max_length=64)
    """Alias in ``TASKS``."""
    name = models.CharField(max_length=255)
    source = models.CharField(max_length=8, choices=Source.choices, default=Source.ROW)
    task = models.CharField(max_length=255)
    package = models.BinaryField()
    """Task and arguments of the job, signed."""
    queue = models.CharField(max_length=100, default="", blank=True)
    """Queue of the jobs; "" = the task's queue."""
    priority = models.SmallIntegerField(null=True, blank=True)
    kind = models.CharField(max_length=8, choices=Kind.choices)
    expression = models.CharField(max_length=255, default="", blank=True)
    """The cron rule."""
    count = models.IntegerField(default=0)
    unit = models.CharField(max_length=8, default="", blank=True)
    anchor = models.CharField(max_length=40, default="", blank=True)
    """ISO 8601: a local time (interval) or an instant (once)."""
    zone = models.CharField(max_length=64)
    start_us = models.BigIntegerField(null=True, blank=True)
    end_us = models.BigIntegerField(null=True, blank=True)
    repeats = models.IntegerField(default=-1)
    repeats_left = models.IntegerField(default=-1)
    jitter_us = models.BigIntegerField(default=0)
    misfire = models.CharField(max_length=4, choices=MisfirePolicy.choices, default="once")
    misfire_cap = models.IntegerField(default=100)
    grace_us = models.BigIntegerField(default=60_000_000)
    overlap = models.CharField(max_length=5, choices=Overlap.choices, default="allow")
    moment_as = models.CharField(max_length=100, default="", blank=True)
    definition = models.CharField(max_length=64, default="", blank=True)
    """Digest of all fields above."""
    timing = models.CharField(max_length=64, default="", blank=True)
    """Digest of the fields that determine the moments."""
    is_paused = models.BooleanField(default=False)
    paused_us = models.BigIntegerField(null=True, blank=True)
    paused_by = models.CharField(max_length=150, default="", blank=True)
    """The user who paused the schedule. "" with a reason: Stoker paused it."""
    paused_because = models.CharField(max_length=500, default="", blank=True)
    problem = models.CharField(max_length=500, default="", blank=True)
    """Why the tick cannot be fired at present."""
    moment_us = models.BigIntegerField(null=True, blank=True)
    """Moment of the next tick; NULL = there is none."""
    due_us = models.BigIntegerField(null=True, blank=True)
    """Due time of the next tick: its moment plus the jitter."""
    held_us = models.BigIntegerField(null=True, blank=True)
    """Moment of a tick that waits for the previous job to end."""
    last_moment_us = models.BigIntegerField(null=True, blank=True)
    last_fired_us = models.BigIntegerField(null=True, blank=True)
    last_job_id = models.UUIDField(null=True, blank=True)
    fired_count = models.BigIntegerField(default=0)
    missed_count = models.BigIntegerField(default=0)
    created_at = InsertedAt(db_default=Now(), editable=False)

    objects = ScheduleQuerySet.as_manager()

    class Meta:
        verbose_name = "schedule"
        permissions = (
            ("run_schedule", "Can run schedules now"),
            ("pause_schedule", "Can pause schedules, and resume them"),
        )
        constraints = (
            models.UniqueConstraint(
                fields=["cluster", "backend", "name"], name="stoker_schedule_name"
            ),
        )
        indexes = (
            models.Index(fields=["due_us"], name="stoker_schedule_due"),
            models.Index(fields=["held_us"], name="stoker_schedule_held"),
        )

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raise ValidationError if the rule cannot be read."""
        try:
            zone_named(self.zone)
            _ = self.rule
        except ValueError as error:
            raise ValidationError(as_sentence(error)) from None

    @property
    def rule(self) -> Rule:
        """The rule. Raises ValueError if it cannot be read."""
        if self.kind == self.Kind.CRON:
            return CronRule(self.expression, self.zone)
        if self.kind == self.Kind.INTERVAL:
            return IntervalRule(
                self.count, self.unit, self.zone, datetime.fromisoformat(self.anchor)
            )
        if self.kind == self.Kind.ONCE:
            return OnceRule(datetime.fromisoformat(self.anchor))
        raise ValueError(f"{self.kind!r} is not a kind of schedule")

    @property
    def words(self) -> str:
        """The rule in words."""
        return in_words(self.rule)

    @property
    def course(self) -> Course:
        return Course(self.pk, self.rule, self.start_us, self.end_us, self.jitter_us)

    @property
    def misfires(self) -> Misfire:
        return Misfire(self.misfire, self.misfire_cap, self.grace_us)

    @property
    def is_over(self) -> bool:
        """Whether the schedule has no further ticks."""
        return self.moment_us is None and not self.is_paused

    @property
    def is_declared(self) -> bool:
        return self.source != self.Source.ROW

    @property
    def next_moment(self) -> datetime | None:
        return None if self.moment_us is None else self.in_zone(self.moment_us)

    @property
    def last_moment(self) -> datetime | None:
        return None if self.last_moment_us is None else self.in_zone(self.last_moment_us)

    def in_zone(self, moment_us: int) -> datetime:
        """Return a moment in the schedule's time zone, or in UTC if this host does not know the
        zone, or the moment is outside the range of dates there."""
        moment = as_moment(moment_us)
        with suppress(ValueError, OverflowError):
            moment = moment.astimezone(zone_named(self.zone))
        return moment
