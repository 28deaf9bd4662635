"""Dead letters: one entry per logical job, however often it was sent again and failed again."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import models
from django.db.models import F
from django.db.models.functions import Now


class DeadLetterQuerySet(models.QuerySet["DeadLetter"]):
    def upsert(self, entries: Sequence[DeadLetter]) -> None:
        """Add these entries; where the logical job has one, the newest failure replaces the older
        and is counted. ``first_failed_at`` and the requeue history stay."""
        for entry in entries:
            newest = {name: getattr(entry, name) for name in NEWEST_FIELDS}
            changed = self.filter(identity=entry.identity).update(
                **newest, failure_count=F("failure_count") + 1
            )
            if not changed:
                self._insert_or_count(entry, newest)

    def _insert_or_count(self, entry: DeadLetter, newest: dict[str, object]) -> None:
        """Another process may add the same logical job between our look and our insert."""
        added = self.bulk_create([entry], ignore_conflicts=True)
        present = self.filter(identity=entry.identity, pk=added[0].pk).exists()
        if not present:
            self.filter(identity=entry.identity).update(
                **newest, failure_count=F("failure_count") + 1
            )


class DeadLetter(models.Model):
    class Reason(models.TextChoices):
        ERROR = "error"
        TIMEOUT = "timeout"
        CRASH = "crash"
        EXPIRED = "expired"
        UNREADABLE = "unreadable"
        UNKNOWN_TASK = "unknown_task"

    id = models.UUIDField(primary_key=True)
    identity = models.CharField(max_length=255, unique=True)
    """The logical job: its unique key where it has one, else the id of the first job."""
    job_id = models.UUIDField(db_index=True)
    """The job that failed last."""
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=100)
    priority = models.SmallIntegerField(default=0)
    package = models.BinaryField()
    reason = models.CharField(max_length=12, choices=Reason.choices)
    exception_class = models.CharField(max_length=255, default="")
    message = models.TextField(default="")
    traceback = models.TextField(default="")
    fingerprint = models.CharField(max_length=64, default="", db_index=True)
    attempts = models.SmallIntegerField(default=0)
    worker_id = models.CharField(max_length=128, default="")
    failure_count = models.IntegerField(default=1)
    first_failed_at = models.DateTimeField(db_default=Now())
    failed_at = models.DateTimeField(db_default=Now(), db_index=True)

    objects = DeadLetterQuerySet.as_manager()

    class Meta:
        verbose_name = "dead letter"

    def __str__(self) -> str:
        return f"{self.task} {self.job_id}: {self.reason}"


NEWEST_FIELDS = (
    "job_id", "queue", "priority", "package", "reason", "exception_class", "message",
    "traceback", "fingerprint", "attempts", "worker_id", "failed_at",
)  # fmt: skip
"""What a further failure of the same logical job replaces."""
