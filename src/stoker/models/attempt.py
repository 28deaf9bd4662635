"""Unsuccessful attempts with their errors."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import models

from stoker.store.engines import engine_of
from stoker.store.statements import INSERT_BYTES, INSERTED_AT_ONCE
from stoker.store.written import parts_of


class AttemptKind(models.TextChoices):
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    CANCELLED = "cancelled"


class AttemptQuerySet(models.QuerySet["Attempt"]):
    def record(self, attempts: Sequence[Attempt]) -> None:
        """Insert attempts. Skip those that are recorded already. Tracebacks may be long, so one
        statement for all might be larger than MariaDB and MySQL accept.

        Raises:
            IntegrityError: on PostgreSQL: the sequence of the ids is behind.
        """
        unique = ["job_id", "number"]
        for part in parts_of(attempts, INSERTED_AT_ONCE, INSERT_BYTES, _text_bytes):
            engine_of(self.db).insert_models(
                self, part, ignore_conflicts=True, unique_fields=unique
            )


class Attempt(models.Model):
    """An attempt that failed, was cancelled, timed out or crashed. A success is stored in Job."""

    Kind = AttemptKind

    id = models.BigAutoField(primary_key=True)
    job_id = models.UUIDField()
    number = models.SmallIntegerField()
    kind = models.CharField(max_length=10, choices=Kind.choices)
    worker_id = models.CharField(max_length=128, default="")
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField()
    retry_at = models.DateTimeField(null=True)
    """Due time of the next attempt. NULL: there is none, or an older Stoker has written the row."""
    exception_class = models.CharField(max_length=255, default="")
    message = models.TextField(default="")
    traceback = models.TextField(default="")
    exit_code = models.SmallIntegerField(null=True)
    signal = models.SmallIntegerField(null=True)

    objects = AttemptQuerySet.as_manager()

    class Meta:
        verbose_name = "attempt"
        constraints = (
            models.UniqueConstraint(fields=["job_id", "number"], name="stoker_attempt_once"),
        )

    def __str__(self) -> str:
        return f"{self.job_id} attempt {self.number}: {self.kind}"


def _text_bytes(attempt: Attempt) -> int:
    return len(attempt.message.encode()) + len(attempt.traceback.encode())
