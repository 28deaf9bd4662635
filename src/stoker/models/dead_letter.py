"""Dead letters: one row per logical job, however often it was requeued and failed again.

::

    open --requeue--> requeued --the job fails--> open, failure_count + 1
      |                  |------the job succeeds, or a newer one with its key--> resolved
      |                  |------undone before the job has started--> open, as before
      |                  '------the job is cancelled or gone--> open
      '--discard--> discarded

Resolved and discarded rows are closed. If the logical job fails again, a closed row starts anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from django.db import models
from django.db.models import F
from django.db.models.functions import Now

from stoker.store.engines import engine_of
from stoker.store.statements import lock_by_key, with_keys
from stoker.store.written import DatabaseNow, InsertedAt, MomentNow, database_now_us, microseconds
from stoker.values.text import stored_text

from .requeue import Requeue


class DeadLetterQuerySet(models.QuerySet["DeadLetter"]):
    def upsert(
        self, entries: Iterable[DeadLetter], cooldowns_us: Mapping[str, int] | None = None
    ) -> list[DeadLetter]:
        """Insert the dead letters. If a logical job has one already, update it with the newest
        failure.

        ``first_failed_at`` and the history of requeues are kept; each failure is counted once.

        Args:
            entries: failures, oldest first.
            cooldowns_us: identity -> delay before the automatic requeue.

        Returns:
            The stored rows.
        """
        merged = _each_identity_once(entries)
        if not merged:
            return []
        if cooldowns_us:
            now_us = database_now_us(self.db)
            for identity, delay_us in cooldowns_us.items():
                merged[identity].requeue_due_us = now_us + delay_us
        letters = [
            [getattr(merged[identity], name) for name in COLUMNS] for identity in sorted(merged)
        ]
        engine_of(self.db).upsert_letters(COLUMNS, letters, list(NEWEST))
        stored = {one.identity: one for one in self.filter(identity__in=[*merged])}
        return [stored[identity] for identity in merged if identity in stored]

    def unclosed(self) -> DeadLetterQuerySet:
        """Return the open and requeued dead letters."""
        return self.filter(state__in=UNCLOSED)

    def note_requeues(
        self, seen: Collection[DeadLetter], jobs: Mapping[UUID, UUID], by: str, because: str
    ) -> bool:
        """Record the requeues of dead letters. Return False, and record nothing, if one of them has
        changed since it was read.

        Args:
            jobs: failed job -> its new job.
        """
        if not self._lock_as_seen(seen):
            return False
        with_keys(self, [one.pk for one in seen]).update(
            state=DeadLetter.State.REQUEUED,
            requeued_count=F("requeued_count") + 1,
            last_requeued_at=MomentNow(),
            last_requeued_by=stored_text(by, 150),
            last_requeued_because=stored_text(because, 255),
            requeue_due_us=None,
        )
        successors = [DeadLetter(pk=one.pk, successor_id=jobs[one.job_id]) for one in seen]
        self.bulk_update(successors, ["successor_id"])
        return True

    def close(self, seen: DeadLetter, state: str, by: str, because: str) -> bool:
        """Close the dead letter. Return False if the row has changed since it was read."""
        changed = self._as_seen(seen).update(
            state=state,
            closed_at=MomentNow(),
            closed_by=stored_text(by, 150),
            closed_because=stored_text(because, 255),
            requeue_due_us=None,
        )
        return bool(changed)

    def reopen(self, seen: DeadLetter) -> bool:
        """Open the dead letter again, after its new job was cancelled or removed."""
        changed = self._as_seen(seen).update(state=DeadLetter.State.OPEN, successor_id=None)
        return bool(changed)

    def take_back(
        self,
        seen: Collection[DeadLetter],
        sent: Mapping[str, Requeue],
        cooldowns_us: Mapping[str, int],
    ) -> bool:
        """Open dead letters again, as if they had not been requeued. Return False, and change
        nothing, if one of them has changed since it was read.

        Args:
            sent: identity -> the requeue before the undone one, if there was one.
            cooldowns_us: identity -> delay before the automatic requeue, if there is one.
        """
        if not self._lock_as_seen(seen):
            return False
        with_keys(self, [one.pk for one in seen]).update(
            state=DeadLetter.State.OPEN,
            successor_id=None,
            requeued_count=F("requeued_count") - 1,
        )
        rows = []
        for one in seen:
            row = DeadLetter(pk=one.pk)
            if (before := sent.get(one.identity)) is not None:
                row.last_requeued_at = before.requeued_at
                row.last_requeued_by = before.by
                row.last_requeued_because = before.because
            if (delay_us := cooldowns_us.get(one.identity)) is not None:
                row.requeue_due_us = DatabaseNow() + delay_us
            rows.append(row)
        self.bulk_update(rows, LAST_REQUEUED)
        return True

    def put_off(self, seen: DeadLetter) -> bool:
        """Cancel the automatic requeue of this dead letter."""
        return bool(self._as_seen(seen).update(requeue_due_us=None))

    def postpone(self, seen: DeadLetter, seconds: float) -> bool:
        """Let the automatic requeue of this dead letter be due in some seconds."""
        due_us = DatabaseNow() + microseconds(seconds)
        return bool(self._as_seen(seen).update(requeue_due_us=due_us))

    def due(self) -> DeadLetterQuerySet:
        """Return the dead letters to requeue automatically, in the order of their due times."""
        due = self.filter(state=DeadLetter.State.OPEN, requeue_due_us__lte=DatabaseNow())
        return due.order_by("requeue_due_us")

    def _as_seen(self, seen: DeadLetter) -> DeadLetterQuerySet:
        return self.filter(pk=seen.pk, **{name: getattr(seen, name) for name in SEEN})

    def _lock_as_seen(self, seen: Collection[DeadLetter]) -> bool:
        """Lock dead letters. Return whether none of them has changed since it was read."""
        read = {one.pk: [getattr(one, name) for name in SEEN] for one in seen}
        locked = lock_by_key(self, read, "pk", *SEEN)
        return read == {row.pk: [getattr(row, name) for name in SEEN] for row in locked}


LAST_REQUEUED = ("last_requeued_at", "last_requeued_by", "last_requeued_because", "requeue_due_us")
SEEN = ("state", "job_id", "attempts", "successor_id")
"""The fields that are as they were read if nothing has happened to a dead letter."""


class DeadLetterState(models.TextChoices):
    OPEN = "open"
    REQUEUED = "requeued"
    RESOLVED = "resolved"
    DISCARDED = "discarded"


class DeadLetter(models.Model):
    class Reason(models.TextChoices):
        ERROR = "error"
        TIMEOUT = "timeout"
        CRASH = "crash"
        EXPIRED = "expired"
        UNREADABLE = "unreadable"
        UNKNOWN_TASK = "unknown_task"

    State = DeadLetterState

    id = models.UUIDField(primary_key=True)
    identity = models.CharField(max_length=255, unique=True)
    """The logical job: its unique key if it has one, else the id of the first job."""
    key = models.CharField(max_length=255, default="", db_default="")
    """Name of the unique key; "" = none."""
    state = models.CharField(max_length=9, choices=State.choices, default="open", db_default="open")
    job_id = models.UUIDField(db_index=True)
    """The last failed job."""
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=100)
    priority = models.SmallIntegerField(default=0)
    package = models.BinaryField()
    reason = models.CharField(max_length=12, choices=Reason.choices)
    exception_class = models.CharField(max_length=255, default="")
    message = models.TextField(default="")
    traceback = models.TextField(default="")
    fingerprint = models.CharField(max_length=64, default="", db_index=True)
    """Identifies the error: its class and where it was raised."""
    attempts = models.SmallIntegerField(default=0)
    """Attempts of the last failed job."""
    worker_id = models.CharField(max_length=128, default="")
    failure_count = models.IntegerField(default=1)
    """Number of consecutive jobs that failed for good."""
    enqueued_at = models.DateTimeField(null=True)
    """Time of the last failed job's enqueue."""
    first_failed_at = InsertedAt(db_default=Now())
    failed_at = InsertedAt(db_default=Now())
    requeued_count = models.IntegerField(default=0, db_default=0)
    last_requeued_at = models.DateTimeField(null=True)
    last_requeued_by = models.CharField(max_length=150, default="", db_default="")
    last_requeued_because = models.CharField(max_length=255, default="", db_default="")
    requeue_due_us = models.BigIntegerField(null=True)
    """Time of the automatic requeue on the database's clock; NULL = never."""
    successor_id = models.UUIDField(null=True)
    """The job of the requeue, in the state "requeued"."""
    closed_at = models.DateTimeField(null=True)
    closed_by = models.CharField(max_length=150, default="", db_default="")
    closed_because = models.CharField(max_length=255, default="", db_default="")

    objects = DeadLetterQuerySet.as_manager()

    class Meta:
        verbose_name = "dead letter"
        permissions = (
            ("requeue_deadletter", "Can send dead letters again"),
            ("discard_deadletter", "Can discard dead letters"),
            ("purge_deadletter", "Can delete closed dead letters for good"),
        )
        indexes = (
            models.Index(fields=["failed_at", "id"], name="stoker_dead_newest"),
            models.Index(fields=["task", "failed_at", "id"], name="stoker_dead_of_task"),
            models.Index(fields=["state", "failed_at"], name="stoker_dead_state"),
            models.Index(fields=["requeue_due_us"], name="stoker_dead_due"),
        )

    def __str__(self) -> str:
        return f"{self.task} {self.job_id}: {self.reason}"


UNCLOSED = (DeadLetter.State.OPEN, DeadLetter.State.REQUEUED)
CLOSED = (DeadLetter.State.RESOLVED, DeadLetter.State.DISCARDED)


def _each_identity_once(entries: Iterable[DeadLetter]) -> dict[str, DeadLetter]:
    """Merge failures of the same logical job: keep the last one, with the sum of the failure
    counts."""
    merged: dict[str, DeadLetter] = {}
    for entry in entries:
        earlier = merged.get(entry.identity)
        if earlier is not None:
            entry.failure_count += earlier.failure_count
            entry.first_failed_at = earlier.first_failed_at
        merged[entry.identity] = entry
    return merged


NEWEST = {
    "key": "varchar",
    "task": "varchar",
    "queue": "varchar",
    "priority": "smallint",
    "package": "bytea",
    "reason": "varchar",
    "exception_class": "varchar",
    "message": "text",
    "traceback": "text",
    "fingerprint": "varchar",
    "worker_id": "varchar",
    "enqueued_at": "timestamptz",
    "failed_at": "timestamptz",
    "requeue_due_us": "bigint",
}
"""Column -> its type on PostgreSQL, for the columns that a further failure overwrites."""
COLUMNS = {
    "id": "uuid",
    "identity": "varchar",
    "state": "varchar",
    "job_id": "uuid",
    "attempts": "smallint",
    "failure_count": "integer",
    "first_failed_at": "timestamptz",
    **NEWEST,
}
"""Column -> its type on PostgreSQL, for the columns of a failure. The other columns start with the
defaults of the table."""
