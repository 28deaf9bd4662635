"""Jobs that a guard holds back. Each waits in the line of the key that refused it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from django.db import connections, models

from stoker.store.statements import (
    delete_by_key,
    delete_returning_guards,
    fetch,
    moves_rows_in_one_statement,
)

from .ready import Place, Ready, lock_line


class Line(NamedTuple):
    """Those of one queue who wait for one key."""

    key_id: UUID
    queue: str


class Called(NamedTuple):
    """What came of calling the first in the lines of some keys."""

    queues: set[str]
    """Of those who were called."""
    missed: set[UUID]
    """Keys in whose lines somebody is held by another transaction whose turn it is."""
    empty: set[UUID]
    """Keys for which nobody waits any more."""


class BlockedQuerySet(models.QuerySet["Blocked"]):
    def withdraw(self, job_ids: Sequence[UUID], *, waits: bool = True) -> dict[UUID, int]:
        """Remove these jobs, unless their turn has come. Returns those removed, each
        with the number of its needs.

        Args:
            job_ids: of the jobs.
            waits: False: leave those alone that somebody else holds.
        """
        return delete_returning_guards(self, job_ids, waits=waits)

    def first_of(self, key_id: UUID, queue: str) -> tuple[int, UUID] | None:
        """Rank and id of the first in this line."""
        line = self.filter(key_id=key_id, queue=queue).order_by("rank", "job_id")
        return line.values_list("rank", "job_id").first()

    def call(self, key_ids: Sequence[UUID], count: int) -> Called:
        """Move the first ``count`` of each queue from the lines of these keys to ready."""
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            wanted = {"key_ids": list(key_ids), "count": count}
            rows = fetch(connection, "blocked_call", wanted)
            moved = {Line(row[0], row[1]): row[2] for row in rows}
        else:
            moved = self._call_each(key_ids, count)
        short = [line for line, number in moved.items() if number < count]
        missed = {line for line in short if self._is_left(line)}
        empty = set(key_ids) - {line.key_id for line in moved.keys() - (set(short) - missed)}
        queues = {line.queue for line, number in moved.items() if number}
        return Called(queues, {line.key_id for line in missed}, empty)

    def call_one(self, job_id: UUID, key_id: UUID) -> Called:
        """Move this job from a key's line to ready, if it is there."""
        line = self.filter(key_id=key_id)
        places = self._lock_one(job_id, key_id)
        self._move(places)
        is_missed = not places and line.filter(pk=job_id).exists()
        is_empty = not (places or is_missed or line.exists())
        return Called(
            {place.queue for place in places},
            {key_id} if is_missed else set(),
            {key_id} if is_empty else set(),
        )

    def _call_each(self, key_ids: Sequence[UUID], count: int) -> dict[Line, int]:
        """Key by key. Returns how many of each line were moved."""
        moved: dict[Line, int] = {}
        places: list[Place] = []
        for key_id in key_ids:
            for queue in self._queues_of(key_id):
                first = lock_line(self, "stoker_blocked_line", count, key_id=key_id, queue=queue)
                moved[Line(key_id, queue)] = len(first)
                places += first
        self._move(places)
        return moved

    def _move(self, places: Sequence[Place]) -> None:
        delete_by_key(self, [place.job_id for place in places])
        Ready.objects.using(self.db).add(places)

    def _is_left(self, line: Line) -> bool:
        """Whether somebody is in this line of whom nobody was called."""
        return self.filter(key_id=line.key_id, queue=line.queue).exists()

    def _lock_one(self, job_id: UUID, key_id: UUID) -> list[Place]:
        """But for one that somebody else holds, to withdraw or to keep it."""
        row = self.filter(pk=job_id, key_id=key_id)
        if connections[self.db].features.has_select_for_update_skip_locked:
            row = row.select_for_update(skip_locked=True)
        return [Place(*values) for values in row.values_list(*Place._fields)]

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
