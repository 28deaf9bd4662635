"""Workflows: list, show, cancel, retry."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Literal
from uuid import UUID

from django.http import HttpRequest
from pydantic import Field

from stoker.api.access import Routes, operator_of, perform
from stoker.api.filters import LONGEST_PAGE, NO_REASON, ReasonBody
from stoker.api.problems import CallRefused
from stoker.api.shapes import Shape
from stoker.api.values import Backend, cursor_of, mark_of, settings_of
from stoker.models.workflow import WorkflowState
from stoker.operations.operation import Operation
from stoker.operations.workflows import CANCEL, RETRY
from stoker.workflows.results import (
    WorkflowProgress,
    WorkflowResult,
    WorkflowStep,
    get_workflow,
    list_workflows,
)

MOST_STEPS = 1000
routes = Routes(tags=["workflows"])
State = Literal[*WorkflowState.values]  # type: ignore[valid-type] # as the model has them


class WorkflowShape(Shape):
    """One workflow: a chain, group, chord or map."""

    id: UUID
    name: str
    state: str
    """RUNNING, SUCCESSFUL, FAILED or CANCELLED."""
    made_at: datetime
    finished_at: datetime | None
    reason: str
    """Reason of the failure or cancellation."""
    progress: WorkflowProgress


class WorkflowPage(Shape):
    """A page of workflows, the newest first."""

    workflows: list[WorkflowShape]
    next: str | None
    """Pass it as `after` to get the next page; null on the last page."""


class WorkflowStory(Shape):
    """One workflow with its steps."""

    workflow: WorkflowShape
    steps: list[WorkflowStep]
    """At most 1000 steps, sorted by creation."""
    has_more: bool
    """Whether there are more steps."""


@routes.show("/workflows", "stoker.view_workflow", WorkflowPage)
def get_workflows(
    request: HttpRequest,
    state: State | None = None,
    limit: Annotated[int, Field(ge=1, le=LONGEST_PAGE)] = 50,
    after: Annotated[str, Field(max_length=2000)] | None = None,
    backend: Backend = None,
) -> Any:
    """List a page of workflows, the newest first."""
    settings, mark = settings_of(backend), mark_of(after)
    try:
        found = list_workflows(settings, state, mark, limit + 1)
    except ValueError as error:
        raise CallRefused(422, f"after: {error}.") from error
    shown = found[:limit]
    rest = shown[-1].id if len(found) > limit else None
    return WorkflowPage(workflows=[shape_of(one) for one in shown], next=cursor_of(rest))


@routes.show("/workflows/{workflow_id}", "stoker.view_workflow", WorkflowStory)
def show_workflow(request: HttpRequest, workflow_id: UUID, backend: Backend = None) -> Any:
    """Show a workflow with its steps and their jobs."""
    return story_of(str(workflow_id), settings_of(backend).alias)


@routes.change("/workflows/{workflow_id}/cancel", CANCEL, WorkflowStory, may_conflict=True)
def cancel_workflow(
    request: HttpRequest, workflow_id: UUID, body: ReasonBody = NO_REASON, backend: Backend = None
) -> Any:
    """Cancel a workflow: no further step starts, and running jobs are asked to end. 409: it has
    ended."""
    return _changed(request, CANCEL, workflow_id, body, backend)


@routes.change("/workflows/{workflow_id}/retry", RETRY, WorkflowStory, may_conflict=True)
def retry_workflow(
    request: HttpRequest, workflow_id: UUID, body: ReasonBody = NO_REASON, backend: Backend = None
) -> Any:
    """Continue a workflow from the steps that failed. 409: it has no step to retry."""
    return _changed(request, RETRY, workflow_id, body, backend)


def _changed(
    request: HttpRequest,
    operation: Operation,
    workflow_id: UUID,
    body: ReasonBody,
    backend: str | None,
) -> WorkflowStory:
    operator = operator_of(request, backend, body.because)
    perform(operation, operator, str(workflow_id))
    return story_of(str(workflow_id), operator.alias)


def story_of(workflow_id: str, alias: str) -> WorkflowStory:
    workflow = get_workflow(workflow_id, backend=alias)
    steps = list(islice(workflow.steps(), MOST_STEPS + 1))
    return WorkflowStory(
        workflow=shape_of(workflow), steps=steps[:MOST_STEPS], has_more=len(steps) > MOST_STEPS
    )


def shape_of(workflow: WorkflowResult) -> WorkflowShape:
    return WorkflowShape(
        id=UUID(workflow.id),
        name=workflow.name,
        state=workflow.status,
        made_at=workflow.made_at,
        finished_at=workflow.finished_at,
        reason=workflow.reason,
        progress=workflow.progress(),
    )
