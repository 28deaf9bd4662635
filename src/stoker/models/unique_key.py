"""Keys of which one job may be alive: a row per key, and its primary key is the rule.

Whoever wants a key looks, and then takes it by a statement that changes nothing if somebody was
quicker: an INSERT where there was no row, else an UPDATE that names the job which had the key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import models, transaction

from stoker.store.clock import database_now_us
from stoker.store.engines import engine_of
from stoker.store.statements import delete_by_key, with_keys
from stoker.store.written import as_uuid

from .dead_letter import UNCLOSED
from .job import Job, NewJob
from .requeue import Requeue

LAST_US = 2**63 - 1
PLACES = ("ready", "deferred", "blocked")
"""Where a job may wait, in the order of the columns of unique_look.sql."""


class Taking(NamedTuple):
    """A key on its way to a job."""

    key_id: UUID
    name: str
    job_id: UUID
    taken_us: int
    """Now, on the database's clock."""
    until_us: int
    over_us: int = LAST_US
    """Of a key that somebody has had: its ``until_us`` may not be later."""
    old_job_id: UUID | None = None
    """The job that was seen to have it; None = nobody had."""


class KeySeen(NamedTuple):
    """A key, and where its job was at that moment."""

    key_id: UUID
    job_id: UUID
    taken_us: int
    until_us: int
    status: str | None
    """How the job ended; "" = it is alive, None = it is gone."""
    waits: str | None
    """The table in which it waits: "ready", "deferred" or "blocked"."""
    attempts: int
    """Used so far, where it waits."""

    @property
    def is_alive(self) -> bool:
        return self.status == ""

    @property
    def waits_for_its_first_attempt(self) -> bool:
        return self.waits is not None and self.attempts == 0


class Condition(NamedTuple):
    """What must be so of the job from which a key is taken."""

    sql: str
    is_met: Callable[[KeySeen], bool]


JOB_HAS_ENDED = Condition(
    "NOT EXISTS (SELECT 1 FROM stoker_job AS job"
    " WHERE job.id = stoker_unique.job_id AND job.status IS NULL)",
    lambda key: not key.is_alive,
)
JOB_HAS_STARTED = Condition(
    " AND ".join(
        f"NOT EXISTS (SELECT 1 FROM {table} AS narrow"  # noqa: S608 - our own names
        " WHERE narrow.job_id = stoker_unique.job_id AND narrow.attempts = 0)"
        for table in ("stoker_ready", "stoker_deferred", "stoker_blocked")
    ),
    lambda key: not key.waits_for_its_first_attempt,
)
NO_MATTER_WHAT = Condition("0 = 0", lambda _: True)


class UniqueKeyQuerySet(models.QuerySet["UniqueKey"]):
    def look(self, key_ids: Collection[UUID]) -> tuple[int, dict[UUID, KeySeen]]:
        """See who has these keys.

        Returns:
            The database's time; and key -> what was seen, for those that somebody has had.
        """
        engine = engine_of(self.db)
        digits = [key_id.hex for key_id in key_ids]
        rows = engine.find_by_key("unique_look", digits, now=engine.now_sql)
        seen = [_seen(row[1:]) for row in rows if row[1] is not None]
        return int(rows[0][0]), {one.key_id: one for one in seen}

    def insert(self, takings: Sequence[Taking]) -> bool:
        """Take keys that nobody has had. Waits for others who are about to take one of them.

        Returns:
            Whether all of them are ours now; if not, one has to look which.
        """
        return engine_of(self.db).take_new_keys(takings)

    def take_over(self, takings: Sequence[Taking], condition: Condition) -> bool:
        """Take keys from the jobs that were seen to have them, unless somebody was quicker.

        Args:
            condition: checked once more when it comes to it.

        Returns:
            Whether all of them are ours now; if not, one has to look which.
        """
        return engine_of(self.db).take_over_keys(self, takings, condition)

    def take_and_add(
        self, taking: Taking, condition: Condition, job: NewJob, identity: str
    ) -> bool:
        """Take a key, and add the job that it is taken for, where one statement can do both.

        Args:
            identity: the logical job, whose dead letter it carries on if there is one.

        Returns:
            Whether it is done. If not, somebody was quicker, or it takes more than a statement.
        """
        letter = {
            "identity": identity,
            "unclosed": list(UNCLOSED),
            "successor": Requeue.By.SUCCESSOR.value,
        }
        return engine_of(self.db).take_key_and_insert(taking, condition, job, letter)

    def let_go(self, key_id: UUID, job_id: UUID) -> None:
        """This job, which has ended, has the key no longer, even if its period is not over."""
        self.filter(pk=key_id, job_id=job_id, until_us__gt=0).update(until_us=0)

    def hand_back(self, key_id: UUID, from_job_id: UUID, job_id: UUID) -> None:
        """That job, which was withdrawn, had the key from this one, which has ended."""
        self.filter(pk=key_id, job_id=from_job_id).update(job_id=job_id)

    def forget(self, after: UUID | None, limit: int) -> tuple[int, UUID | None]:
        """Delete keys that are not taken any more.

        Args:
            after: the last key that was looked at; None = begin.
            limit: how many keys to look at.

        Returns:
            How many were deleted, and the last key of these; None when there are no more.
        """
        later = self.order_by("pk")
        if after is not None:
            later = later.filter(pk__gt=after)
        rows = list(later.values_list("pk", "job_id", "until_us")[:limit])
        return self._forget(rows), rows[-1][0] if len(rows) == limit else None

    def forget_these(self, key_ids: Collection[UUID]) -> int:
        """Delete those of these keys that are not taken any more. Returns how many."""
        return self._forget(list(with_keys(self, key_ids).values_list("pk", "job_id", "until_us")))

    def _forget(self, rows: Sequence[tuple[UUID, UUID, int]]) -> int:
        job_ids = [job_id for _, job_id, _ in rows]
        alive = Job.objects.using(self.db).filter(status=None)
        alive_ids = set(with_keys(alive, job_ids).values_list("pk", flat=True))
        now_us = database_now_us(self.db) if rows else 0
        over = {
            key_id: job_id
            for key_id, job_id, until_us in rows
            if until_us <= now_us and job_id not in alive_ids
        }
        with transaction.atomic(using=self.db):
            return self._delete(over)

    def _delete(self, over: Mapping[UUID, UUID]) -> int:
        """Delete these keys where they still are that job's. One that is being taken is locked."""
        rows = engine_of(self.db).lockable(with_keys(self, over.keys()))
        still = [pk for pk, job_id in rows.values_list("pk", "job_id") if over[pk] == job_id]
        delete_by_key(self, still)
        return len(still)


class UniqueKey(models.Model):
    """Counts as taken while its job is alive, or its period is not over: there is nothing that
    could be left taken by a crash."""

    key_id = models.UUIDField(primary_key=True)
    """Made of scope and text of the key, see ``guards.keys``."""
    name = models.CharField(max_length=255)
    """For screens; the key is what counts."""
    job_id = models.UUIDField()
    """The last job that has taken it."""
    taken_us = models.BigIntegerField()
    """When that job was enqueued first, on the database's clock: a debounce counts from there."""
    until_us = models.BigIntegerField(default=0)
    """Taken until then in any case, on the database's clock."""

    objects = UniqueKeyQuerySet.as_manager()

    class Meta:
        verbose_name = "unique key"
        db_table = "stoker_unique"

    def __str__(self) -> str:
        return self.name


def _seen(row: Sequence[Any]) -> KeySeen:
    key_id, job_id, taken_us, until_us, status, *places = row
    found = [(name, used) for name, used in zip(PLACES, places, strict=True) if used is not None]
    waits, attempts = found[0] if found else (None, 0)
    return KeySeen(as_uuid(key_id), as_uuid(job_id), taken_us, until_us, status, waits, attempts)
