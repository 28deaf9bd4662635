"""Jobs that a guard holds back. Each waits in the line of the key that refused it."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db import connections, models

from .ready import Place, Ready
from .statements import (
    delete_by_key,
    delete_returning_guards,
    fetch,
    moves_rows_in_one_statement,
)


class BlockedQuerySet(models.QuerySet["Blocked"]):
    def withdraw(self, job_ids: Sequence[UUID]) -> dict[UUID, int]:
        """Remove these jobs, unless their turn has come. Returns those removed, each
        with the number of its needs."""
        return delete_returning_guards(self, job_ids)

    def first_of(self, key_id: UUID, queue: str) -> tuple[int, UUID] | None:
        """Rank and id of the first in this line."""
        line = self.filter(key_id=key_id, queue=queue).order_by("rank", "job_id")
        return line.values_list("rank", "job_id").first()

    def call(self, key_ids: Sequence[UUID], count: int) -> set[tuple[UUID, str]]:
        """Move the first ``count`` of each queue from the lines of these keys to ready.

        Returns:
            Key and queue of those that were moved.
        """
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            wanted = {"key_ids": list(key_ids), "count": count}
            return {(row[0], row[1]) for row in fetch(connection, "blocked_call", wanted)}
        found: list[tuple[UUID, Place]] = []
        for key_id in key_ids:
            for queue in self._queues_of(key_id):
                line = self.filter(key_id=key_id, queue=queue).order_by("rank", "job_id")
                found += [(key_id, place) for place in self._locked(line, count)]
        return self._move(found)

    def call_one(self, job_id: UUID, key_id: UUID) -> set[tuple[UUID, str]]:
        """Move this job from a key's line to ready, if it is there. Returns: as ``call``."""
        places = self._locked(self.filter(pk=job_id, key_id=key_id), 1)
        return self._move([(key_id, place) for place in places])

    def _move(self, called: Sequence[tuple[UUID, Place]]) -> set[tuple[UUID, str]]:
        places = [place for _, place in called]
        delete_by_key(self, [place.job_id for place in places])
        Ready.objects.using(self.db).add(places)
        return {(key_id, place.queue) for key_id, place in called}

    def _locked(self, rows: models.QuerySet[Blocked], limit: int) -> list[Place]:
        """Whoever locks one of them withdraws it, or looks after its key next."""
        if connections[self.db].features.has_select_for_update_skip_locked:
            rows = rows.select_for_update(skip_locked=True)
        return [Place(*row) for row in rows.values_list(*Place._fields)[:limit]]

    def _queues_of(self, key_id: UUID) -> list[str]:
        """A handful of index look-ups."""
        found: list[str] = []
        while True:
            line = self.filter(key_id=key_id)
            later = line.filter(queue__gt=found[-1]) if found else line
            name = later.order_by("queue").values_list("queue", flat=True).first()
            if name is None:
                return found
            found.append(name)


class Blocked(models.Model):
    job_id = models.UUIDField(primary_key=True)
    key_id = models.UUIDField()
    """Whose line it waits in: one key at a time, that of the first guard which refused it."""
    queue = models.CharField(max_length=100)
    rank = models.SmallIntegerField(default=0)
    attempts = models.SmallIntegerField(default=0)
    crashes = models.SmallIntegerField(default=0)
    guards = models.SmallIntegerField(default=0, db_default=0)

    objects = BlockedQuerySet.as_manager()

    class Meta:
        verbose_name = "blocked job"
        indexes = (
            models.Index(fields=["key_id", "queue", "rank", "job_id"], name="stoker_blocked_line"),
        )

    def __str__(self) -> str:
        return f"{self.queue} {self.job_id} waits for {self.key_id}"
