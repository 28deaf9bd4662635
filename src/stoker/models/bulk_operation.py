"""The operations that operators have performed. An operation on many jobs or dead letters continues
in the background."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from stoker.store.written import InsertedAt


class BulkOperation(models.Model):
    """One operation on all targets that match filters, or on selected targets. An operation on a
    single target is stored as a row that has already ended."""

    class State(models.TextChoices):
        RUNNING = "running"
        PAUSED = "paused"
        STOPPED = "stopped"
        DONE = "done"

    id = models.UUIDField(primary_key=True)
    """An id that sorts by time, like the ids of jobs."""
    backend = models.CharField(max_length=100)
    operation = models.CharField(max_length=50)
    """Name of the operation, such as ``requeue-letter``."""
    filters = models.JSONField(default=dict)
    """The filters that find the targets, as a form sends them, or ``{"ids": [...]}``. For an
    operation on one target ``{"target": "mail"}``."""
    options = models.JSONField(default=dict)
    by = models.CharField(max_length=150, default="")
    because = models.CharField(max_length=255, default="")
    state = models.CharField(max_length=7, choices=State.choices, default=State.RUNNING)
    cursor = models.CharField(max_length=200, default="")
    """Position of the last processed target. A process continues only if no other process has moved
    it."""
    matched = models.IntegerField(default=0)
    """Number of targets that were found when the operation was started."""
    is_counted = models.BooleanField(default=True)
    """Whether ``matched`` is the number of all targets. False: there may be more."""
    done = models.IntegerField(default=0)
    refused = models.IntegerField(default=0)
    started_at = InsertedAt(db_default=Now())
    ended_at = models.DateTimeField(null=True)
    undoes = models.UUIDField(null=True, unique=True)
    """The bulk operation that this one undoes."""

    class Meta:
        verbose_name = "bulk operation"
        indexes = (models.Index(fields=["state", "id"], name="stoker_bulk_state"),)

    def __str__(self) -> str:
        return f"{self.operation} {self.pk}: {self.state}"


class BulkItem(models.Model):
    """The outcome for one target of a bulk operation. It is written in the same transaction as the
    change of the target."""

    id = models.BigAutoField(primary_key=True)
    bulk_id = models.UUIDField()
    target = models.UUIDField()
    refusal = models.CharField(max_length=255, default="")
    """Why the target was not changed; "" = it was changed."""
    before = models.JSONField(default=dict)
    """The previous values, which an undo restores."""

    class Meta:
        verbose_name = "target of a bulk operation"
        constraints = (
            models.UniqueConstraint(fields=["bulk_id", "target"], name="stoker_bulk_once"),
        )

    def __str__(self) -> str:
        return f"{self.target}: {self.refusal or 'done'}"
