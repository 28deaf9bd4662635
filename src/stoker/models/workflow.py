"""Workflows: one row each. What they are made of stands in Step; whoever moves steps on has locked
this row, so that two who record ends at the same time see one after the other."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from django.db import models
from django.db.models import F
from django.db.models.functions import Now

from stoker.store.statements import lock_by_key


class WorkflowQuerySet(models.QuerySet["Workflow"]):
    def lock(self, ids: Collection[UUID]) -> dict[UUID, str]:
        """Lock these workflows, in the order of their ids. Returns the states."""
        return {row.id: row.state for row in lock_by_key(self, ids, "id", "state")}

    def end(self, workflow_id: UUID, state: str, reason: str = "") -> None:
        """It has come to its end."""
        one = self.filter(pk=workflow_id)
        one.update(state=state, finished_at=Now(), reason=reason[:255])

    def reopen(self, workflow_id: UUID) -> None:
        """It goes on after all."""
        one = self.filter(pk=workflow_id)
        one.update(state=Workflow.State.RUNNING, finished_at=None, reason="")

    def grow(self, workflow_id: UUID, tasks: int) -> None:
        """So many tasks were added to it."""
        self.filter(pk=workflow_id).update(tasks=F("tasks") + tasks)


class Workflow(models.Model):
    class State(models.TextChoices):
        RUNNING = "RUNNING"
        SUCCESSFUL = "SUCCESSFUL"
        FAILED = "FAILED"
        CANCELLED = "CANCELLED"

    id = models.UUIDField(primary_key=True)
    """Also that of its outermost step."""
    name = models.CharField(max_length=255, default="")
    backend = models.CharField(max_length=100)
    """The name under ``TASKS``."""
    state = models.CharField(max_length=10, choices=State.choices, default=State.RUNNING)
    tasks = models.IntegerField(default=0)
    """How many of its steps are tasks."""
    made_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)
    reason = models.CharField(max_length=255, default="")
    """Why it was cancelled."""

    has_values = models.BooleanField(default=True)
    """Whether its steps still have results that were kept for others."""

    objects = WorkflowQuerySet.as_manager()

    class Meta:
        verbose_name = "workflow"
        indexes = (
            models.Index(fields=["state", "finished_at"], name="stoker_workflow_ended"),
            models.Index(fields=["made_at", "id"], name="stoker_workflow_newest"),
        )

    def __str__(self) -> str:
        return self.name or str(self.pk)
