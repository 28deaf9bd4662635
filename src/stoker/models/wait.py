"""Waits: for what and how long jobs waited before they could be claimed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple
from uuid import UUID

from django.db import connections, models

from stoker.store.engines import engine_of
from stoker.store.written import Written


class NewWait(NamedTuple):
    """A wait to record: see ``Wait``."""

    job_id: UUID
    attempts: int
    kind: str
    """A value of ``Wait.Kind``."""
    name: str
    began_us: int
    total_us: int


class WaitQuerySet(models.QuerySet["Wait"]):
    def add(self, waits: Iterable[NewWait]) -> None:
        """Record waits. A wait for the same cause before the same attempt is added to the row that
        exists. The caller has locked the jobs' rows in their hot tables."""
        write = Written(connections[self.db]).id
        rows = [(write(one.job_id), *one[1:]) for one in waits if one.total_us > 0]
        if rows:
            engine_of(self.db).add_waits(rows)

    def unname(self, job_ids: Collection[UUID], names: Collection[str]) -> None:
        """Count waits of these jobs for these clusters as waits without a name, in the open
        transaction. The caller has locked the jobs' rows in their hot tables."""
        put_back = self.filter(job_id__in=job_ids, kind=WaitKind.PUT_BACK)
        named = list(put_back.filter(name__in=names))
        if not named:
            return
        kept = {(row.job_id, row.attempts): row for row in put_back.filter(name="")}
        renamed: list[int] = []
        added: list[int] = []
        changed: dict[int, Wait] = {}
        for row in named:
            one = kept.setdefault((row.job_id, row.attempts), row)
            if one is row:
                renamed.append(row.pk)
                continue
            one.began_us = min(one.began_us, row.began_us)
            one.total_us += row.total_us
            one.times += row.times
            changed[one.pk] = one
            added.append(row.pk)
        self.filter(pk__in=added).delete()
        self.filter(pk__in=renamed).update(name="")
        for one in changed.values():
            self.filter(pk=one.pk).update(
                began_us=one.began_us, total_us=one.total_us, times=one.times
            )


class WaitKind(models.TextChoices):
    LOCK = "lock"
    LIMIT = "limit"
    RATE = "rate"
    SEQUENCE = "sequence"
    PUT_BACK = "put_back"
    """The job was snoozed, or released without counting the attempt. The time of that attempt is
    included."""
    START_TIME = "start_time"
    """The job was deferred or held until an operator started it."""


class Wait(models.Model):
    """Time that a job waited for one cause before one of its attempts.

    Contains only what no other row says: the enqueue, the start of each attempt, ``run_after`` and
    ``Attempt.retry_at`` are stored elsewhere. A job that runs at once has no row here. There is one
    row for each cause and attempt, however often the job was refused, so the number of rows is
    bounded.
    """

    Kind = WaitKind

    id = models.BigAutoField(primary_key=True)
    job_id = models.UUIDField()
    attempts = models.SmallIntegerField()
    """Number of attempts before this wait."""
    kind = models.CharField(max_length=10, choices=Kind.choices)
    name = models.CharField(max_length=255, default="")
    """Name of the guard, or why a cluster released the job; "" = neither."""
    began_us = models.BigIntegerField()
    """Beginning of the first wait, in microseconds since 1970 on the database's clock."""
    total_us = models.BigIntegerField()
    """Sum of the waits, in microseconds."""
    times = models.IntegerField(default=1, db_default=1)
    """Number of waits."""

    objects = WaitQuerySet.as_manager()

    class Meta:
        verbose_name = "wait"
        constraints = (
            models.UniqueConstraint(
                fields=["job_id", "attempts", "kind", "name"], name="stoker_wait_once"
            ),
        )

    def __str__(self) -> str:
        return f"{self.job_id} waited for {self.name or self.kind}"
