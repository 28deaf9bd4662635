"""Jobs that may run now. A claim reads this table and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from django.db import connections, models

from stoker.store.engines import engine_of
from stoker.store.statements import delete_returning_guards
from stoker.store.written import Written, as_uuid


class Place(NamedTuple):
    """One row of a narrow table, as far as they are all the same."""

    job_id: UUID
    queue: str
    rank: int
    attempts: int = 0
    crashes: int = 0
    guards: int = 0


class ReadyQuerySet(models.QuerySet["Ready"]):
    def withdraw(self, job_ids: Sequence[UUID], *, waits: bool = True) -> dict[UUID, int]:
        """Remove these jobs, if no claim was quicker. Returns those removed, each
        with the number of its needs.

        Args:
            job_ids: of the jobs.
            waits: False: leave those alone that somebody else holds.
        """
        return delete_returning_guards(self, job_ids, waits=waits)

    def add(self, places: Iterable[Place]) -> None:
        """Let jobs wait here."""
        written = Written(connections[self.db])
        rows = [(written.id(place.job_id), *place[1:]) for place in places]
        engine_of(self.db).insert_rows("stoker_ready", Place._fields, rows)

    def lock_first(self, queue: str, limit: int) -> list[Place]:
        """The first jobs of a queue, locked; but for those that others have locked."""
        engine = engine_of(self.db)
        rows = engine.lock_line(self, Place._fields, limit, "stoker_ready_line", queue=queue)
        return [Place(as_uuid(row[0]), *row[1:]) for row in rows]

    def queues(self) -> list[str]:
        """The names of the queues that have a job here; a handful of index look-ups."""
        return [name for (name,) in engine_of(self.db).fetch("ready_queues", {})]


class Ready(models.Model):
    job_id = models.UUIDField(primary_key=True)
    queue = models.CharField(max_length=100)
    rank = models.SmallIntegerField(default=0)
    """The priority negated, so that one ascending index serves the claim."""
    attempts = models.SmallIntegerField(default=0)
    """Attempts used so far; a claim adds one."""
    crashes = models.SmallIntegerField(default=0)
    guards = models.SmallIntegerField(default=0, db_default=0)
    """How many needs it has: see ``Need``."""

    objects = ReadyQuerySet.as_manager()

    class Meta:
        verbose_name = "ready job"
        indexes = (models.Index(fields=["queue", "rank", "job_id"], name="stoker_ready_line"),)

    def __str__(self) -> str:
        return f"{self.queue} {self.job_id}"
