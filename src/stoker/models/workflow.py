"""Workflows: one row each. Their steps are rows of ``Step``.

Steps are advanced under the lock of this row, so that concurrent ends are processed one after the
other.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from django.db import models
from django.db.models import F
from django.db.models.functions import Now

from stoker.store.engines import engine_of
from stoker.store.statements import lock_by_key, update_by_key
from stoker.store.written import InsertedAt, MomentNow


class WorkflowQuerySet(models.QuerySet["Workflow"]):
    def lock(self, ids: Collection[UUID]) -> dict[UUID, str]:
        """Lock these workflows in the order of their ids. Return their states."""
        states = {row.id: row.state for row in lock_by_key(self, ids, "id", "state")}
        if states and engine_of(self.db).locks_by_changing:
            update_by_key(self, list(states), state=F("state"))
        return states

    def end(self, workflow_id: UUID, state: str, reason: str = "") -> None:
        """Record how a workflow ended."""
        one = self.filter(pk=workflow_id)
        one.update(state=state, finished_at=MomentNow(), reason=reason[:255])

    def reopen(self, ids: Collection[UUID]) -> None:
        """Set workflows to running again."""
        update_by_key(self, ids, state=Workflow.State.RUNNING, finished_at=None, reason="")

    def grow(self, workflow_id: UUID, tasks: int) -> None:
        """Increase the number of tasks."""
        self.filter(pk=workflow_id).update(tasks=F("tasks") + tasks)


class WorkflowState(models.TextChoices):
    RUNNING = "RUNNING"
    SUCCESSFUL = "SUCCESSFUL"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Workflow(models.Model):
    State = WorkflowState

    id = models.UUIDField(primary_key=True)
    """The root step has the same id."""
    name = models.CharField(max_length=255, default="")
    backend = models.CharField(max_length=100)
    """Alias in ``TASKS``."""
    state = models.CharField(max_length=10, choices=State.choices, default=State.RUNNING)
    tasks = models.IntegerField(default=0)
    """Number of steps that are tasks."""
    made_at = InsertedAt(db_default=Now())
    finished_at = models.DateTimeField(null=True)
    reason = models.CharField(max_length=255, default="")
    """Reason of the cancellation."""

    has_values = models.BooleanField(default=True)
    """Whether its steps still hold results for other steps."""

    objects = WorkflowQuerySet.as_manager()

    class Meta:
        verbose_name = "workflow"
        indexes = (
            models.Index(fields=["state", "finished_at"], name="stoker_workflow_ended"),
            models.Index(fields=["made_at", "id"], name="stoker_workflow_newest"),
        )

    def __str__(self) -> str:
        return self.name or str(self.pk)
