"""Jobs that are blocked by a guard. Each waits in the line of the key that blocks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from django.db import models
from django.utils.functional import cached_property

from stoker.store.engines import engine_of
from stoker.store.statements import with_keys
from stoker.store.written import DatabaseNow

from .guard_key import GuardKey
from .ready import HotRow, Place


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
    def call(self, counts: Mapping[UUID, int]) -> Called:
        """Move the first jobs of the keys' lines to ready, up to the given number per key and
        queue."""
        lines = engine_of(self.db).call_first(self, counts) if counts else []
        going_on = {key for key, _, moved, missed in lines if missed or moved == counts[key]}
        return Called(
            {queue for _, queue, moved, _ in lines if moved},
            {key_id for key_id, _, _, missed in lines if missed},
            counts.keys() - going_on,
        )

    def call_these(self, jobs: Mapping[UUID, UUID | None]) -> Called:
        """Move one job of each key from the key's line to ready, if it waits there.

        Args:
            jobs: key -> the job.
        """
        if not jobs:
            return Called(set(), set(), set())
        engine = engine_of(self.db)
        firsts = [job_id for job_id in jobs.values() if job_id is not None]
        places = {
            key_id: place
            for key_id, *place in engine.lockable(with_keys(self, firsts)).values_list(
                "key_id", *Place._fields
            )
            if place[0] == jobs.get(key_id)
        }
        engine.add_waits_of_blocked([place[0] for place in places.values()])
        engine.move_to_ready(self, list(places.values()))
        rest = [key_id for key_id in jobs if key_id not in places]
        missed: set[UUID] = set()
        if rest and not engine.has_one_writer:
            there = with_keys(self, firsts).values_list("key_id", "pk")
            missed = {key_id for key_id, job_id in there if job_id == jobs.get(key_id)}
        lined = {key_id for key_id, _ in engine.lines_of(rest)}
        queues = {place[1] for place in places.values()}
        return Called(queues, missed, set(rest) - lined)


class Blocked(HotRow):
    key_id = models.UUIDField()
    """The key that blocks the job, and in whose line it waits. If several guards block it: the key
    of the first."""
    since_us = models.BigIntegerField(default=0, db_default=0)
    """Time when the job was blocked, in microseconds since 1970 on the database's clock; 0 =
    unknown."""

    objects = BlockedQuerySet.as_manager()

    class Meta:
        verbose_name = "blocked job"
        indexes = (
            models.Index(fields=["key_id", "queue", "rank", "job_id"], name="stoker_blocked_line"),
        )

    def __str__(self) -> str:
        return f"{self.queue} {self.job_id} waits for {self.key_id}"

    @cached_property
    def key(self) -> GuardKey | None:
        """Return the key that blocks the job, read once, with the time on the database's clock as
        ``now_us``. None = the key was just removed."""
        keys = GuardKey.objects.using(str(self._state.db)).annotate(now_us=DatabaseNow())
        return keys.filter(pk=self.key_id).first()
