"""Operations of operators: those on many jobs or dead letters go on in the background."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class BulkOperation(models.Model):
    """One operation on all targets that filters find, or on some that were ticked. An operation on
    one target is a row that is done from the start."""

    class State(models.TextChoices):
        RUNNING = "running"
        PAUSED = "paused"
        STOPPED = "stopped"
        DONE = "done"

    id = models.UUIDField(primary_key=True)
    """Sorts by time, as the ids of jobs do."""
    backend = models.CharField(max_length=100)
    operation = models.CharField(max_length=50)
    """Name of the operation, such as ``requeue-letter``."""
    filters = models.JSONField(default=dict)
    """What finds the targets, as a form gives it; or ``{"ids": [...]}``. For an operation
    on one target ``{"target": "mail"}``."""
    options = models.JSONField(default=dict)
    by = models.CharField(max_length=150, default="")
    because = models.CharField(max_length=255, default="")
    state = models.CharField(max_length=7, choices=State.choices, default=State.RUNNING)
    cursor = models.CharField(max_length=200, default="")
    """How far it has come; only one process can move it on from here."""
    matched = models.IntegerField(default=0)
    """How many targets were found when it was started."""
    is_counted = models.BooleanField(default=True)
    """Whether ``matched`` is all of them. False: there may be more."""
    done = models.IntegerField(default=0)
    refused = models.IntegerField(default=0)
    started_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)
    undoes = models.UUIDField(null=True, unique=True)
    """The bulk operation that this one undoes."""

    class Meta:
        verbose_name = "bulk operation"
        indexes = (models.Index(fields=["state", "id"], name="stoker_bulk_state"),)

    def __str__(self) -> str:
        return f"{self.operation} {self.pk}: {self.state}"


class BulkItem(models.Model):
    """One target of a bulk operation: written with what was done to it, in one transaction."""

    id = models.BigAutoField(primary_key=True)
    bulk_id = models.UUIDField()
    target = models.UUIDField()
    refusal = models.CharField(max_length=255, default="")
    """Why nothing was changed; "" = it was."""
    before = models.JSONField(default=dict)
    """What the undo needs."""

    class Meta:
        verbose_name = "target of a bulk operation"
        constraints = (
            models.UniqueConstraint(fields=["bulk_id", "target"], name="stoker_bulk_once"),
        )

    def __str__(self) -> str:
        return f"{self.target}: {self.refusal or 'done'}"
