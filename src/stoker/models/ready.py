"""Jobs that may run now. Claims read only this table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from django.db import connections, models

from stoker.store.engines import engine_of
from stoker.store.written import Written, as_uuid


class Place(NamedTuple):
    """The columns that all hot tables have."""

    job_id: UUID
    queue: str
    rank: int
    attempts: int = 0
    crashes: int = 0
    guards: int = 0


class ReadyQuerySet(models.QuerySet["Ready"]):
    def add(self, places: Iterable[Place]) -> None:
        """Insert these rows."""
        written = Written(connections[self.db])
        rows = [(written.id(place.job_id), *place[1:]) for place in places]
        engine_of(self.db).insert_rows("stoker_ready", Place._fields, rows)

    def lock_first(self, queues: Iterable[str], limit: int) -> list[Place]:
        """Lock the first jobs of each queue, skipping rows that other transactions have locked."""
        engine, lines = engine_of(self.db), [(queue, limit) for queue in queues]
        rows = engine.lock_lines(self, Place._fields, "stoker_ready_line", ("queue",), lines)
        return [Place(as_uuid(row[0]), *row[1:]) for row in rows]

    def queues(self) -> list[str]:
        """Return the names of queues with ready jobs, with one index look-up per queue."""
        return [name for (name,) in engine_of(self.db).fetch("ready_queues", {})]


class HotRow(models.Model):
    """A job in one of the hot tables, with the columns of ``Place``."""

    job_id = models.UUIDField(primary_key=True)
    queue = models.CharField(max_length=100)
    rank = models.SmallIntegerField(default=0)
    """The negated priority, so that one ascending index gives the order of claims."""
    attempts = models.SmallIntegerField(default=0)
    """Number of attempts so far; a claim adds one."""
    crashes = models.SmallIntegerField(default=0)
    guards = models.SmallIntegerField(default=0, db_default=0)
    """Number of needs: see ``Need``."""

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.queue} {self.job_id}"


class Ready(HotRow):
    objects = ReadyQuerySet.as_manager()

    class Meta:
        verbose_name = "ready job"
        indexes = (models.Index(fields=["queue", "rank", "job_id"], name="stoker_ready_line"),)
