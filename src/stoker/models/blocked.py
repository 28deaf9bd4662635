"""Jobs that are blocked by a guard. Each waits in the line of the key that blocks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from django.db import models

from stoker.store.engines import engine_of

from .ready import Place


class BlockedLine(NamedTuple):
    """The jobs of one queue that wait for one key."""

    key_id: UUID
    queue: str


class Called(NamedTuple):
    """The outcome of making the first jobs of some lines ready."""

    queues: set[str]
    """The queues of jobs that became ready."""
    missed: set[UUID]
    """Keys whose next job is locked by another transaction."""
    empty: set[UUID]
    """Keys that block no job any more."""


class BlockedQuerySet(models.QuerySet["Blocked"]):
    def first_of(self, key_id: UUID, queue: str) -> tuple[int, UUID] | None:
        """Return rank and id of the first job in this line."""
        line = self.filter(key_id=key_id, queue=queue).order_by("rank", "job_id")
        return line.values_list("rank", "job_id").first()

    def call(self, key_ids: Sequence[UUID], count: int) -> Called:
        """Move the first ``count`` jobs of each queue from the keys' lines to ready."""
        called = engine_of(self.db).call_first(self, key_ids, count)
        moved = {BlockedLine(*line): number for line, number in called.items()}
        short = [line for line, number in moved.items() if number < count]
        missed = {line for line in short if self._is_left(line)}
        empty = set(key_ids) - {line.key_id for line in moved.keys() - (set(short) - missed)}
        queues = {line.queue for line, number in moved.items() if number}
        return Called(queues, {line.key_id for line in missed}, empty)

    def call_one(self, job_id: UUID, key_id: UUID) -> Called:
        """Move this job from a key's line to ready, if it waits there."""
        line = self.filter(key_id=key_id)
        engine = engine_of(self.db)
        row = engine.lockable(self.filter(pk=job_id, key_id=key_id))
        places = list(row.values_list(*Place._fields))
        engine.move_to_ready(self, places)
        is_missed = not places and line.filter(pk=job_id).exists()
        is_empty = not (places or is_missed or line.exists())
        return Called(
            {place[1] for place in places},
            {key_id} if is_missed else set(),
            {key_id} if is_empty else set(),
        )

    def _is_left(self, line: BlockedLine) -> bool:
        """Return whether the line still contains a job."""
        return self.filter(key_id=line.key_id, queue=line.queue).exists()


class Blocked(models.Model):
    job_id = models.UUIDField(primary_key=True)
    key_id = models.UUIDField()
    """The key whose line the job is in: that of the first guard that blocks it."""
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
