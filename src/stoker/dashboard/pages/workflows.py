"""Workflows: the progress of each, a timeline of its tasks, and a drawing of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Count, Q
from django.utils import timezone

from stoker.dashboard.context import DashboardContext
from stoker.dashboard.gantt import gantt_of
from stoker.dashboard.graph import MOST_MEMBERS, drawn
from stoker.dashboard.views import PageContent, PageRefused, page
from stoker.inspect.steps import SHOWN, timed_steps
from stoker.models import Step, Workflow
from stoker.models.step import GROUPS, StepQuerySet
from stoker.operations import steps as operations_on_steps
from stoker.operations.details import REVEAL
from stoker.operations.workflows import calls_of_steps, find
from stoker.store.engines.sessions import explained
from stoker.workflows.control import not_kept
from stoker.workflows.results import WorkflowProgress, count_tasks, progress_of

ON_A_PAGE = 30
LONGEST_TEXT = 255
MOST_DRAWN = 120
"""About how many steps are drawn. The others are only in the timeline."""
MOST_LEVELS = 3
"""How many levels of a large workflow are drawn below the outermost step."""
VIEW_ARGUMENTS = "stoker.view_job"


@page("stoker.view_workflow")
def show(visit: DashboardContext) -> PageContent:
    """Return a page of workflows, the newest first."""
    given = visit.request.GET
    state, text = given.get("state", "").upper(), given.get("q", "").strip()[:LONGEST_TEXT]
    if state and state not in Workflow.State:
        raise PageRefused(400, f"There is no state {state!r}.")
    found = find(visit.settings, ON_A_PAGE, given.get("after", ""), state=state, text=text)
    progress = count_tasks(visit.settings, found.rows)
    context = {
        "rows": [{"is": row, **_progress(progress[row.pk])} for row in found.rows],
        "state": state.lower(),
        "text": text,
        "states": visit.tabs(("", *Workflow.State.values), state),
        "is_cut": found.is_cut,
        **visit.paging(found.next),
    }
    return PageContent("workflows", context)


@page("stoker.view_workflow")
def show_one(visit: DashboardContext, workflow_id: UUID) -> PageContent:
    """Return one workflow with a timeline of its tasks and a drawing of its steps."""
    given = visit.request.GET
    state = given.get("state", "").upper()
    with explained(visit.database):
        every = Workflow.objects.using(visit.database).filter(backend=visit.alias)
        row = every.filter(pk=workflow_id).first()
        if row is None:
            raise not_kept(workflow_id)
        read, counts = _steps_to_draw(visit, row)
    found = timed_steps(visit.settings, workflow_id, state, given.get("after", ""), ON_A_PAGE)
    calls = {}
    if visit.may(VIEW_ARGUMENTS):
        calls = calls_of_steps(visit.settings, found.steps, reveal=visit.may(REVEAL))
    gantt = gantt_of(row, found.steps, timezone.now())
    context = {
        "row": row,
        "graph": drawn(read, counts),
        "is_cut": len(read) > MOST_DRAWN,
        "most": MOST_DRAWN,
        "gantt": gantt,
        "gantt_rows": [{"is": one, "call": calls.get(one.step.id)} for one in gantt.rows],
        "states": _state_tabs(visit, found.counts, state),
        "retry_step": operations_on_steps.RETRY,
        "may_change": visit.may(operations_on_steps.RETRY.permission),
        "can_retry": any(one.can_retry for one in found.steps),
        **visit.paging(found.next),
        **_progress(progress_of(row, found.counts)),
    }
    return PageContent("workflow", context)


def _state_tabs(
    visit: DashboardContext, counts: Mapping[str, int], current: str
) -> list[dict[str, Any]]:
    """Return links to the steps in each state that some step has."""
    numbers = {
        state: f"{counts.get(state, 0):,}" for state in SHOWN if state in counts or state == current
    }
    return visit.tabs(("", *numbers), current, {"": f"{sum(counts.values()):,}", **numbers})


def _steps(visit: DashboardContext) -> StepQuerySet:
    return Step.objects.using(visit.database).all()


def _progress(progress: WorkflowProgress) -> dict[str, Any]:
    """Return the number of the workflow's tasks in each state."""
    return {
        "done": progress.successful,
        "failed_count": progress.failed,
        "under_way": progress.enqueued,
        "cancelled": progress.cancelled,
        "waiting": progress.waiting,
    }


def _steps_to_draw(
    visit: DashboardContext, workflow: Workflow
) -> tuple[list[Step], dict[UUID, dict[str, int]]]:
    """Return the steps to draw, and the numbers of members of groups that are drawn partly: group
    -> state -> number.

    A small workflow is read with one query. A large one is read from the outermost step inwards,
    with one query for each level, and of a large group only the members to draw.
    """
    steps = _steps(visit).defer("sealed", "value")
    if workflow.tasks <= MOST_DRAWN:
        read = list(steps.filter(workflow_id=workflow.pk)[: MOST_DRAWN + 1])
        if len(read) <= MOST_DRAWN:
            return read, {}
    outermost = Q(parent_id=workflow.pk, position__lt=MOST_MEMBERS)
    level = list(steps.filter(Q(pk=workflow.pk) | outermost))
    read = [one for one in level if one.pk == workflow.pk]
    if any(one.size > MOST_MEMBERS for one in read):
        read, level = [], read
    else:
        level = [one for one in level if one.pk != workflow.pk]
    large: list[UUID] = []
    for _ in range(MOST_LEVELS):
        read += level
        parents = [one.pk for one in level if _may_have_children(one)]
        if not parents or len(read) > MOST_DRAWN:
            break
        crowded = [one.pk for one in level if one.kind in GROUPS and one.size > MOST_MEMBERS]
        first = Q(parent_id__in=crowded, position__lt=MOST_MEMBERS)
        others = Q(parent_id__in=set(parents) - set(crowded))
        below = steps.filter(first | others if crowded else others)
        level = list(below.order_by("parent_id", "position")[: MOST_DRAWN + 1])
        if crowded:
            failed = steps.below(crowded).filter(state=Step.State.FAILED)
            level += failed.exclude(position__lt=MOST_MEMBERS).order_by("position")[:MOST_DRAWN]
        large += crowded
    return read, _member_counts(visit, large)


def _may_have_children(step: Step) -> bool:
    return step.kind != Step.Kind.TASK or step.has_undo or step.has_error or step.has_added


def _member_counts(visit: DashboardContext, groups: Sequence[UUID]) -> dict[UUID, dict[str, int]]:
    """Return group -> state -> number of its members."""
    counts: dict[UUID, dict[str, int]] = {}
    if groups:
        grouped = _steps(visit).below(groups).order_by().values_list("parent_id", "state")
        for parent_id, state, number in grouped.annotate(Count("pk")):
            counts.setdefault(parent_id, {})[state] = number
    return counts
