"""Needs of jobs: the keys under which a job needs a place before it may start."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from django.db import connections, models

from stoker.store.engines import engine_of
from stoker.store.statements import delete_by_key
from stoker.store.written import Written, as_uuid
from stoker.values.ids import id_of


class NewNeed(NamedTuple):
    """One guard of a job that is enqueued."""

    key_id: UUID
    kind: str
    """A value of ``Need.Kind``."""
    name: str
    """Readable form of the key, for screens."""
    places: int = 1
    """Number of jobs that may run at once; for a rate, starts per period."""
    weight: int = 1
    """Number of starts of a rate that this job counts as."""
    period_us: int = 0
    burst: int = 0
    """Size of a token bucket; 0 = a sliding window."""
    on_busy: str = "wait"
    """"wait", "skip" or "retry"."""
    retry_us: int = 0
    """Delay for ``on_busy="retry"``."""
    halts: bool = False
    """Whether the job's failure halts the sequence."""


COLUMNS = ("id", "job_id", *NewNeed._fields)


class StatedNeed(NamedTuple):
    """A stored need: see ``Need``."""

    pk: UUID
    job_id: UUID
    key_id: UUID
    kind: str
    name: str
    places: int
    weight: int
    period_us: int
    burst: int
    on_busy: str
    retry_us: int
    halts: bool
    holds: UUID | None
    fence: int


def need_ids(job_id: UUID, guards: int) -> list[UUID]:
    """Return the ids of a job's needs: its own id and the following ones.

    They are found by primary key, are adjacent in the index, and cannot be inserted twice.
    """
    if guards == 1:  # nearly always
        return [job_id]
    first = job_id.int
    return [id_of(number) for number in range(first, first + guards)]


class NeedQuerySet(models.QuerySet["Need"]):
    def add(self, needs: Iterable[tuple[UUID, Sequence[NewNeed]]]) -> None:
        """Insert the needs of the jobs."""
        written = Written(connections[self.db])
        rows = [
            (written.id(need_id), written.id(job_id), written.id(need.key_id), *need[1:])
            for job_id, needed in needs
            for need_id, need in zip(need_ids(job_id, len(needed)), needed, strict=True)
        ]
        engine_of(self.db).insert_rows("stoker_need", COLUMNS, rows)

    def of_jobs(self, guards: Mapping[UUID, int]) -> dict[UUID, list[StatedNeed]]:
        """Return job id -> its needs, in their original order.

        Args:
            guards: job id -> number of its needs.
        """
        found: dict[UUID, list[StatedNeed]] = {job_id: [] for job_id in guards}
        if not guards:
            return found
        ids = [one for job_id, count in guards.items() for one in need_ids(job_id, count)]
        for row in engine_of(self.db).find_needs(ids):
            if row[1] in found:
                found[row[1]].append(StatedNeed._make(row))
        return found

    def holders(self, key_ids: Collection[UUID]) -> dict[UUID, set[UUID]]:
        """Return key -> the jobs that hold a place. The keys are locked."""
        rows = engine_of(self.db).find_each("need_holders", key_ids, "stoker_need_holders")
        found: dict[UUID, set[UUID]] = {key_id: set() for key_id in key_ids}
        for key_id, job_id in rows:
            found[as_uuid(key_id)].add(as_uuid(job_id))
        return found

    def remove(self, need_ids: Collection[UUID]) -> None:
        """Delete needs of ended jobs. The keys are locked."""
        delete_by_key(self, need_ids)

    def firsts(self, key_ids: Collection[UUID]) -> dict[UUID, UUID | None]:
        """Return key -> the oldest job that has a need with this key."""
        if not key_ids:
            return {}
        rows = engine_of(self.db).find_each("need_firsts", key_ids, "stoker_need_order")
        return {as_uuid(key_id): first and as_uuid(first) for key_id, first in rows}


class NeedKind(models.TextChoices):
    LOCK = "lock"
    LIMIT = "limit"
    RATE = "rate"
    SEQUENCE = "sequence"


class Need(models.Model):
    """A guard of a job. It exists as long as the job, and holds a place while the job is claimed;
    in a sequence, until the job has ended."""

    Kind = NeedKind

    id = models.UUIDField(primary_key=True)
    """See ``need_ids``."""
    job_id = models.UUIDField()
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
    holds = models.UUIDField(null=True)
    """The key while the need holds a place, else NULL. So an index contains only the holders."""
    fence = models.BigIntegerField(default=0, db_default=0)
    """Fencing number of the last attempt that held the place."""

    objects = NeedQuerySet.as_manager()

    class Meta:
        verbose_name = "need"
        indexes = (
            models.Index(fields=["holds"], name="stoker_need_holders"),
            models.Index(fields=["key_id", "job_id"], name="stoker_need_order"),
        )

    def __str__(self) -> str:
        return f"{self.name} for {self.job_id}"
