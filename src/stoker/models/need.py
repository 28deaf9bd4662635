"""What a job needs before it may start: places under keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from django.db import connections, models

from .rows import Written, insert_rows


class NewNeed(NamedTuple):
    """One guard of a job that is enqueued."""

    key_id: UUID
    kind: str
    """A value of ``Need.Kind``."""
    name: str
    """For screens; the key is what counts."""
    places: int = 1
    """How many may have a place at once; for a rate, starts per period."""
    weight: int = 1
    """How many starts of a rate this job is."""
    period_us: int = 0
    burst: int = 0
    """0 = a sliding window; else the size of a token bucket."""
    on_busy: str = "wait"
    """"wait", "skip" or "retry"."""
    retry_us: int = 0
    """The delay, with ``on_busy="retry"``."""
    halts: bool = False
    """Whether the job's failure for good stops all that come after it."""


COLUMNS = ("job_id", *NewNeed._fields)


class NeedQuerySet(models.QuerySet["Need"]):
    def add(self, needs: Iterable[tuple[UUID, Sequence[NewNeed]]]) -> None:
        """Write down what these jobs need."""
        written = Written(connections[self.db])
        rows = [
            (written.id(job_id), written.id(need.key_id), *need[1:])
            for job_id, needed in needs
            for need in needed
        ]
        insert_rows(self, COLUMNS, rows)


class Need(models.Model):
    """Lives as long as its job. It holds a place while it has a fence and its job is claimed; one
    of a sequence as long as it has a fence."""

    class Kind(models.TextChoices):
        LOCK = "lock"
        LIMIT = "limit"
        RATE = "rate"
        SEQUENCE = "sequence"

    id = models.BigAutoField(primary_key=True)
    job_id = models.UUIDField(db_index=True)
    key_id = models.UUIDField()
    kind = models.CharField(max_length=8, choices=Kind.choices)
    name = models.CharField(max_length=255)
    places = models.IntegerField(default=1)
    weight = models.IntegerField(default=1)
    period_us = models.BigIntegerField(default=0)
    burst = models.IntegerField(default=0)
    on_busy = models.CharField(max_length=5, default="wait")
    retry_us = models.BigIntegerField(default=0)
    halts = models.BooleanField(default=False)
    fence = models.BigIntegerField(null=True)
    """The fencing number of the attempt that has the place; NULL while it has none."""

    objects = NeedQuerySet.as_manager()

    class Meta:
        verbose_name = "need"
        indexes = (
            models.Index(fields=["key_id", "fence"], name="stoker_need_holders"),
            models.Index(fields=["key_id", "job_id"], name="stoker_need_order"),
        )

    def __str__(self) -> str:
        return f"{self.name} for {self.job_id}"
