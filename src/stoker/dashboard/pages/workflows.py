"""Workflows: the progress of each, and a drawing of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import Count, QuerySet

from stoker.dashboard.context import DashboardContext
from stoker.dashboard.graph import drawn
from stoker.dashboard.views import PageContent, PageRefused, page
from stoker.exceptions import WorkflowNotFound
from stoker.models import Step, Workflow
from stoker.models.step import GROUPS
from stoker.store.engines.sessions import explained
from stoker.values.ids import parse_job_id

ON_A_PAGE = 30
MOST_DRAWN = 600
"""Maximum number of steps to draw. In a larger workflow, members of groups are counted instead."""
NOT_BEGUN = (Step.State.PENDING, Step.State.HELD)


@page("stoker.view_workflow")
def show(visit: DashboardContext) -> PageContent:
    """Return a page of workflows, the newest first."""
    state = visit.request.GET.get("state", "").upper()
    if state and state not in Workflow.State:
        raise PageRefused(400, f"There is no state {state!r}.")
    after = visit.request.GET.get("after", "")
    with explained(visit.database):
        rows = _all(visit)
        if state:
            rows = rows.filter(state=state)
        if after:
            rows = rows.filter(pk__lt=_id_of(after))
        found = list(rows.order_by("-pk")[: ON_A_PAGE + 1])
        shown = found[:ON_A_PAGE]
        counts = _task_counts(visit, [row.pk for row in shown])
    context = {
        "rows": [{"is": row, **_progress(row, counts.get(row.pk, {}))} for row in shown],
        "states": visit.tabs(("", *Workflow.State.values), state),
        **visit.paging(str(shown[-1].pk) if len(found) > ON_A_PAGE else None),
    }
    return PageContent("workflows", context)


@page("stoker.view_workflow")
def show_one(visit: DashboardContext, workflow_id: UUID) -> PageContent:
    """Return one workflow with a drawing of its steps."""
    with explained(visit.database):
        row = _all(visit).filter(pk=workflow_id).first()
        if row is None:
            raise WorkflowNotFound(f"There is no workflow {workflow_id} (any more).")
        steps = _steps(visit).filter(workflow_id=workflow_id).defer("sealed", "value")
        read = list(steps.order_by("pk")[: MOST_DRAWN + 1])
        is_cut = len(read) > MOST_DRAWN
        counts = _group_counts(visit, read) if is_cut else {}
        tasks = _task_counts(visit, [workflow_id]).get(workflow_id, {})
        if is_cut:
            read = _with_outer(visit, workflow_id, read[:MOST_DRAWN])
    failed = [one for one in read if one.state == Step.State.FAILED and one.job_id is not None]
    context = {
        "row": row,
        "graph": drawn(read, counts),
        "is_cut": is_cut,
        "most": MOST_DRAWN,
        "failed": failed[:ON_A_PAGE],
        "steps": [one for one in read if one.job_id is not None and one.state not in NOT_BEGUN],
        **_progress(row, tasks),
    }
    return PageContent("workflow", context)


def _all(visit: DashboardContext) -> QuerySet[Workflow]:
    return Workflow.objects.using(visit.database).filter(backend=visit.alias)


def _steps(visit: DashboardContext) -> QuerySet[Step]:
    return Step.objects.using(visit.database).all()


def _id_of(text: str) -> UUID:
    workflow_id = parse_job_id(text)
    if workflow_id is None:
        raise PageRefused(400, f"{text!r} is not an id of a workflow.")
    return workflow_id


def _task_counts(
    visit: DashboardContext, workflow_ids: Sequence[UUID]
) -> dict[UUID, dict[str, int]]:
    """Return workflow -> state -> number of its tasks that have started. Runs one indexed query."""
    steps = _steps(visit).filter(workflow_id__in=workflow_ids, kind=Step.Kind.TASK)
    begun = [state for state in Step.State.values if state not in NOT_BEGUN]
    grouped = steps.filter(state__in=begun).order_by().values_list("workflow_id", "state")
    counts: dict[UUID, dict[str, int]] = {}
    for workflow_id, state, number in grouped.annotate(Count("pk")):
        counts.setdefault(workflow_id, {})[state] = number
    return counts


def _progress(row: Workflow, counts: dict[str, int]) -> dict[str, Any]:
    """Return the number of the workflow's tasks in each state."""
    states = Step.State
    # A task that added steps is STARTED until these end, but its own job is done.
    done = sum(counts.get(one, 0) for one in (states.SUCCESSFUL, states.STARTED, states.UNDOING))
    return {
        "done": done,
        "failed_count": counts.get(states.FAILED, 0),
        "under_way": counts.get(states.ENQUEUED, 0),
        "cancelled": counts.get(states.CANCELLED, 0),
        "waiting": max(0, row.tasks - sum(counts.values())),
    }


def _group_counts(visit: DashboardContext, read: Sequence[Step]) -> dict[UUID, dict[str, int]]:
    """Return group -> state -> number of its members. Runs one query."""
    groups = {one.pk for one in read if one.kind in GROUPS} | {one.workflow_id for one in read}
    members = _steps(visit).filter(parent_id__in=groups, role=Step.Role.STEP)
    counts: dict[UUID, dict[str, int]] = {}
    grouped = members.order_by().values_list("parent_id", "state").annotate(Count("pk"))
    for parent_id, state, number in grouped:
        counts.setdefault(parent_id, {})[state] = number
    return counts


def _with_outer(visit: DashboardContext, workflow_id: UUID, read: Sequence[Step]) -> list[Step]:
    """Return the given steps and all their parents, which may have been created after them."""
    known = {one.pk: one for one in read}
    missing = {one.parent_id for one in read if one.parent_id is not None} - set(known)
    while missing:
        found = _steps(visit).filter(pk__in=missing).defer("sealed", "value")
        known |= {one.pk: one for one in found}
        parents = {one.parent_id for one in known.values() if one.parent_id is not None}
        missing = (parents - set(known)) - missing
    return list(known.values())
