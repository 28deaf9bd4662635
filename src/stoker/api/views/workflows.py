"""Workflows: list, show with their steps, cancel, retry."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Literal
from uuid import UUID

from django.http import HttpRequest
from pydantic import Field

from stoker.api.access import Routes, operator_of, perform
from stoker.api.filters import NO_REASON, PageLimit, ReasonBody
from stoker.api.shapes import Shape
from stoker.api.values import Backend, cursor_of, mark_of, settings_of
from stoker.inspect.steps import SHOWN, timed_steps
from stoker.models.workflow import WorkflowState
from stoker.operations import steps
from stoker.operations.workflows import CANCEL, RETRY, find, workflow_as_plain
from stoker.workflows.results import (
    WorkflowProgress,
    WorkflowResult,
    WorkflowStep,
    count_tasks,
    get_workflow,
)

MOST_STEPS = 1000
VIEW = "stoker.view_workflow"
routes = Routes(tags=["workflows"])
State = Literal[*WorkflowState.values]  # type: ignore[valid-type] # as the model has them
StepState = Literal[*SHOWN]  # type: ignore[valid-type] # as they are listed


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
    is_cut: bool
    """Whether only a part of the workflows was searched. The next page searches older ones."""


class WorkflowStory(Shape):
    """One workflow with its steps."""

    workflow: WorkflowShape
    steps: list[WorkflowStep]
    """At most 1000 steps, sorted by creation."""
    has_more: bool
    """Whether there are more steps: `GET /workflows/{id}/steps` pages through all tasks."""


class RetriedWorkflow(WorkflowStory):
    """A workflow that was retried, with its steps."""

    bulk_id: UUID | None
    """The bulk operation that retries the steps, see `GET /bulk/{id}`. For a large workflow it
    continues in the background. Null: only one step was retried."""


class EarlierJobShape(Shape):
    """A job of a step before it was retried."""

    job_id: UUID
    status: str
    """SUCCESSFUL, FAILED or CANCELLED."""
    enqueued_at: datetime
    finished_at: datetime


class TimedStepShape(Shape):
    """A task of a workflow, with the times of its newest job."""

    id: UUID
    parent_id: UUID | None
    role: str
    """`step`, `undo` or `error`."""
    state: str
    label: str
    """Dotted path of the task."""
    job_id: UUID | None
    """Null: it has not begun."""
    enqueued_at: datetime | None
    started_at: datetime | None
    """Start of the first attempt."""
    finished_at: datetime | None
    attempts: int
    wait_seconds: float | None
    """Time before and between the attempts."""
    run_seconds: float | None
    """Duration of all attempts."""
    is_running: bool
    dead_letter_id: UUID | None
    can_retry: bool
    """Whether the step has failed or was cancelled, so that it can be retried alone."""
    earlier: list[EarlierJobShape]
    """The step's jobs before the newest one, the newest first: at most 3."""


class TimedSteps(Shape):
    """A page of the tasks of a workflow, failed ones first."""

    steps: list[TimedStepShape]
    counts: dict[str, int]
    """State -> number of tasks of the whole workflow."""
    next: str | None
    """Pass it as `after` to get the next page; null on the last page."""


class RetryBody(ReasonBody):
    """The body of a request to retry a workflow."""

    step: UUID | None = None
    """Id of the only step to retry, or of its job; None = all steps that failed."""


class StepBody(ReasonBody):
    """The body of a request to undo the retry of a step."""

    step: UUID
    """Id of the step, or of its newest job."""


ALL_STEPS = RetryBody()


@routes.show("/workflows", VIEW, WorkflowPage)
def get_workflows(
    request: HttpRequest,
    state: State | None = None,
    q: Annotated[str, Field(max_length=255)] = "",
    limit: PageLimit = 50,
    after: Annotated[str, Field(max_length=2000)] | None = None,
    backend: Backend = None,
) -> Any:
    """List a page of workflows, the newest first. `q` is a part of the name or of the reason, or
    the id of the workflow or of one of its jobs. With a filter a page searches 10,000 workflows."""
    settings, mark = settings_of(backend), mark_of(after) or ""
    found = find(settings, limit, mark, state=state or "", text=q.strip())
    progress = count_tasks(settings, found.rows)
    shown = [workflow_as_plain(WorkflowResult(row), progress[row.pk]) for row in found.rows]
    return {"workflows": shown, "next": cursor_of(found.next), "is_cut": found.is_cut}


@routes.show("/workflows/{workflow_id}", VIEW, WorkflowStory)
def show_workflow(request: HttpRequest, workflow_id: UUID, backend: Backend = None) -> Any:
    """Show a workflow with its steps and their jobs."""
    return story_of(str(workflow_id), settings_of(backend).alias)


@routes.show("/workflows/{workflow_id}/steps", VIEW, TimedSteps)
def list_steps(
    request: HttpRequest,
    workflow_id: UUID,
    state: StepState | None = None,
    limit: PageLimit = 50,
    after: Annotated[str, Field(max_length=2000)] | None = None,
    backend: Backend = None,
) -> Any:
    """List a page of the tasks of a workflow with their times: failed, cancelled, under way,
    successful, pending."""
    settings, mark = settings_of(backend), mark_of(after) or ""
    get_workflow(str(workflow_id), backend=settings.alias)
    page = timed_steps(settings, workflow_id, state or "", mark, limit)
    return {"steps": page.steps, "counts": page.counts, "next": cursor_of(page.next)}


@routes.change("/workflows/{workflow_id}/cancel", CANCEL, WorkflowStory, may_conflict=True)
def cancel_workflow(
    request: HttpRequest, workflow_id: UUID, body: ReasonBody = NO_REASON, backend: Backend = None
) -> Any:
    """Cancel a workflow: no further step starts, and running jobs are asked to end. 409: it has
    ended."""
    operator = operator_of(request, backend, body.because)
    perform(CANCEL, operator, str(workflow_id))
    return _answer(request, str(workflow_id), operator.alias)


@routes.change("/workflows/{workflow_id}/retry", RETRY, RetriedWorkflow, may_conflict=True)
def retry_workflow(
    request: HttpRequest, workflow_id: UUID, body: RetryBody = ALL_STEPS, backend: Backend = None
) -> Any:
    """Continue a workflow from the steps that failed, or from one of them. The steps of a large
    workflow are retried in the background. 409: it has no such step to retry."""
    operator, name = operator_of(request, backend, body.because), str(workflow_id)
    if body.step is None:
        bulk_id = perform(RETRY, operator, name).value.pk
    else:
        bulk_id = None
        perform(steps.RETRY, operator, str(body.step), workflow=name)
    answer = _answer(request, name, operator.alias)
    return RetriedWorkflow(**answer.model_dump(), bulk_id=bulk_id)


@routes.change(
    "/workflows/{workflow_id}/undo-retry",
    steps.UNDO,
    WorkflowStory,
    may_conflict=True,
    example={"step": "01a1ff39-c590-7a51-9c35-2f4b8b3a7c10", "because": "not mended yet"},
)
def undo_retry_of_step(
    request: HttpRequest, workflow_id: UUID, body: StepBody, backend: Backend = None
) -> Any:
    """Undo the retry of one step: its new job is cancelled, and the step has failed again. 409: the
    job has begun, or there is no retry to undo."""
    operator = operator_of(request, backend, body.because)
    perform(steps.UNDO, operator, str(body.step), workflow=str(workflow_id))
    return _answer(request, str(workflow_id), operator.alias)


def _answer(request: HttpRequest, workflow_id: str, alias: str) -> WorkflowStory:
    """Return the workflow after an operation, without its name, reason and steps for users without
    the permission to see workflows."""
    story = story_of(workflow_id, alias)
    if request.auth.has_perm(VIEW):  # type: ignore[attr-defined] # ninja sets it
        return story
    shape = story.workflow.model_copy(update={"name": "", "reason": ""})
    return WorkflowStory(workflow=shape, steps=[], has_more=False)


def story_of(workflow_id: str, alias: str) -> WorkflowStory:
    workflow = get_workflow(workflow_id, backend=alias)
    steps = list(islice(workflow.steps(), MOST_STEPS + 1))
    shape = WorkflowShape(**workflow_as_plain(workflow))
    return WorkflowStory(workflow=shape, steps=steps[:MOST_STEPS], has_more=len(steps) > MOST_STEPS)
