"""Unique keys: one row per key, whose primary key guarantees uniqueness.

A key is read first, and then taken by a statement that changes nothing if another transaction was
faster: an INSERT if there was no row, else an UPDATE that names the previous job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import models, transaction

from stoker.store.engines import engine_of
from stoker.store.statements import delete_by_key, with_keys
from stoker.store.written import as_uuid, database_now_us

from .dead_letter import UNCLOSED
from .job import Job, Message
from .requeue import Requeue

LAST_US = 2**63 - 1
PLACES = ("ready", "deferred", "blocked")
"""Tables where a job may wait, in the order of the columns of unique_look.sql."""


class Taking(NamedTuple):
    """A key to take for a job."""

    key_id: UUID
    name: str
    job_id: UUID
    taken_us: int
    """Current time on the database's clock."""
    until_us: int
    over_us: int = LAST_US
    """Upper bound of ``until_us`` in the existing row."""
    old_job_id: UUID | None = None
    """The job that had the key when it was read; None = no row existed."""


class KeySeen(NamedTuple):
    """A key and the state of its job when it was read."""

    key_id: UUID
    job_id: UUID
    taken_us: int
    until_us: int
    status: str | None
    """Status of the job; "" = it has not ended, None = it does not exist."""
    waits: str | None
    """Table where the job waits: "ready", "deferred" or "blocked"."""
    attempts: int
    """Number of attempts so far, if the job waits."""

    @property
    def is_alive(self) -> bool:
        return self.status == ""

    @property
    def waits_for_its_first_attempt(self) -> bool:
        return self.waits is not None and self.attempts == 0


class Condition(NamedTuple):
    """The condition that the previous job must meet so that its key may be taken."""

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
        """Read the given keys.

        Returns:
            The database's time, and key -> state for existing keys.
        """
        engine = engine_of(self.db)
        digits = [key_id.hex for key_id in key_ids]
        rows = engine.find_by_key("unique_look", digits, now=engine.now_sql)
        seen = [_seen(row[1:]) for row in rows if row[1] is not None]
        return int(rows[0][0]), {one.key_id: one for one in seen}

    def insert(self, takings: Sequence[Taking]) -> bool:
        """Take keys that have no row. Waits for transactions that are inserting one of them.

        Returns:
            Whether all keys were taken. If not, the caller must read them again.
        """
        return engine_of(self.db).take_new_keys(takings)

    def take_over(self, takings: Sequence[Taking], condition: Condition) -> bool:
        """Take keys from their jobs, if they have not changed since they were read.

        Args:
            condition: checked by the statement that takes the keys.

        Returns:
            Whether all keys were taken. If not, the caller must read them again.
        """
        return engine_of(self.db).take_over_keys(self, takings, condition)

    def take_and_add(
        self, taking: Taking, condition: Condition, job: Message, identity: str
    ) -> bool:
        """Take a key and insert its job in one statement, if that is possible.

        Args:
            identity: logical job whose dead letter the new job continues, if there is one.

        Returns:
            Whether both were done. If not, another transaction was faster, or several statements
            are needed.
        """
        letter = {
            "identity": identity,
            "unclosed": list(UNCLOSED),
            "successor": Requeue.By.SUCCESSOR.value,
        }
        return engine_of(self.db).take_key_and_insert(taking, condition, job, letter)

    def release(self, key_id: UUID, job_id: UUID) -> None:
        """Release the key of an ended job, even if its period is not over."""
        self.filter(pk=key_id, job_id=job_id, until_us__gt=0).update(until_us=0)

    def return_to(self, key_id: UUID, from_job_id: UUID, job_id: UUID) -> None:
        """Return the key of a withdrawn job to the ended job that had it before."""
        self.filter(pk=key_id, job_id=from_job_id).update(job_id=job_id)

    def forget(self, after: UUID | None, limit: int) -> tuple[int, UUID | None]:
        """Delete keys that are free.

        Args:
            after: the last key of the previous page; None = the first page.
            limit: maximum number of keys to read.

        Returns:
            The number of deleted keys, and the last key of this page; None after the last page.
        """
        later = self.order_by("pk")
        if after is not None:
            later = later.filter(pk__gt=after)
        rows = list(later.values_list("pk", "job_id", "until_us")[:limit])
        return self._forget(rows), rows[-1][0] if len(rows) == limit else None

    def forget_these(self, key_ids: Collection[UUID]) -> int:
        """Delete the given keys that are free. Return their number."""
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
        """Delete the keys that still belong to the given jobs. Keys that are being taken are locked
        and skipped."""
        rows = engine_of(self.db).lockable(with_keys(self, over.keys()))
        still = [pk for pk, job_id in rows.values_list("pk", "job_id") if over[pk] == job_id]
        delete_by_key(self, still)
        return len(still)


class UniqueKey(models.Model):
    """A unique key. It is taken while its job has not ended or its period lasts, so a crash cannot
    leave it taken for ever."""

    key_id = models.UUIDField(primary_key=True)
    """Hash of scope and text of the key, see ``guards.keys``."""
    name = models.CharField(max_length=255)
    """Readable form of the key, for screens."""
    job_id = models.UUIDField()
    """The last job that has taken the key."""
    taken_us = models.BigIntegerField()
    """Time of that job's first enqueue, on the database's clock. Postponing counts from there."""
    until_us = models.BigIntegerField(default=0)
    """The key stays taken until then, on the database's clock."""

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
