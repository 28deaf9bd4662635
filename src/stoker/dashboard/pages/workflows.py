"""Workflows: how far each is, drawn step by step; cancelled, and sent on from where they failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import Count, QuerySet

from stoker.dashboard.graph import drawn
from stoker.dashboard.request_context import Visit
from stoker.dashboard.views import Done, Page, Refusal, action, page
from stoker.exceptions import StokerError, WorkflowNotFound
from stoker.jobs.states import explained
from stoker.models import Step, Workflow
from stoker.models.step import GROUPS
from stoker.values.ids import parse_job_id
from stoker.workflows.results import WorkflowResult

ON_A_PAGE = 30
MOST_DRAWN = 600
"""Steps: of a larger workflow the first are read, and its groups are counted."""
NOT_BEGUN = (Step.State.PENDING, Step.State.HELD)


@page("stoker.view_workflow")
def show(visit: Visit) -> Page:
    """A page of them, the newest first."""
    state = visit.request.GET.get("state", "").upper()
    if state and state not in Workflow.State:
        raise Refusal(400, f"There is no state {state!r}.")
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
        "states": [
            {
                "title": one.capitalize() if one else "All",
                "address": visit.at("workflows", state=one),
                "is_current": one == state,
            }
            for one in ("", *Workflow.State.values)
        ],
        "next": len(found) > ON_A_PAGE
        and visit.at("workflows", state=state, after=str(shown[-1].pk)),
        "first": after and visit.at("workflows", state=state),
    }
    return Page("workflows", context)


@page("stoker.view_workflow")
def show_one(visit: Visit, workflow_id: UUID) -> Page:
    """One, drawn."""
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
    return Page("workflow", context)


@action("stoker.change_workflow")
def cancel(visit: Visit) -> Done:
    """End it."""
    because = visit.request.POST.get("because", "").strip()
    reason = f"cancelled by {visit.by}" + (f": {because}" if because else "")
    if not _named(visit).cancel(reason[:255]):
        return Done("It had ended already.", is_bad=True)
    return Done("Cancelled: what has not begun never will, what runs is told to end.")


@action("stoker.change_workflow")
def retry(visit: Visit) -> Done:
    """Let it go on from where it failed."""
    because = visit.request.POST.get("because", "").strip()
    try:
        count = _named(visit).retry(by=visit.by, because=because)
    except WorkflowNotFound:
        raise
    except StokerError as error:
        return Done(f"Not sent on: {error}", is_bad=True)
    if not count:
        return Done("There is nothing to be sent again.", is_bad=True)
    return Done(f"It goes on: {count:,} of its jobs were sent again or begun.")


def _all(visit: Visit) -> QuerySet[Workflow]:
    return Workflow.objects.using(visit.database).filter(backend=visit.alias)


def _steps(visit: Visit) -> QuerySet[Step]:
    return Step.objects.using(visit.database).all()


def _named(visit: Visit) -> WorkflowResult:
    workflow_id = _id_of(visit.request.POST.get("workflow", ""))
    with explained(visit.database):
        row = _all(visit).filter(pk=workflow_id).first()
    if row is None:
        raise WorkflowNotFound(f"There is no workflow {workflow_id} (any more).")
    return WorkflowResult(row)


def _id_of(text: str) -> UUID:
    workflow_id = parse_job_id(text)
    if workflow_id is None:
        raise Refusal(400, "No workflow was named.")
    return workflow_id


def _task_counts(visit: Visit, workflow_ids: Sequence[UUID]) -> dict[UUID, dict[str, int]]:
    """Workflow -> state -> how many of its tasks. One query, by index; those whose turn has not
    come are not looked at."""
    steps = _steps(visit).filter(workflow_id__in=workflow_ids, kind=Step.Kind.TASK)
    begun = [state for state in Step.State.values if state not in NOT_BEGUN]
    grouped = steps.filter(state__in=begun).order_by().values_list("workflow_id", "state")
    counts: dict[UUID, dict[str, int]] = {}
    for workflow_id, state, number in grouped.annotate(Count("pk")):
        counts.setdefault(workflow_id, {})[state] = number
    return counts


def _progress(row: Workflow, counts: dict[str, int]) -> dict[str, Any]:
    """How far it is, in tasks."""
    states = Step.State
    # What has added steps goes on with them: its own job is done.
    done = sum(counts.get(one, 0) for one in (states.SUCCESSFUL, states.STARTED, states.UNDOING))
    return {
        "done": done,
        "failed_count": counts.get(states.FAILED, 0),
        "under_way": counts.get(states.ENQUEUED, 0),
        "cancelled": counts.get(states.CANCELLED, 0),
        "waiting": max(0, row.tasks - sum(counts.values())),
    }


def _group_counts(visit: Visit, read: Sequence[Step]) -> dict[UUID, dict[str, int]]:
    """Of the groups of a large workflow: how many members are in which state. One query."""
    groups = {one.pk for one in read if one.kind in GROUPS} | {one.workflow_id for one in read}
    members = _steps(visit).filter(parent_id__in=groups, role=Step.Role.STEP)
    counts: dict[UUID, dict[str, int]] = {}
    grouped = members.order_by().values_list("parent_id", "state").annotate(Count("pk"))
    for parent_id, state, number in grouped:
        counts.setdefault(parent_id, {})[state] = number
    return counts


def _with_outer(visit: Visit, workflow_id: UUID, read: Sequence[Step]) -> list[Step]:
    """These steps, and what holds them: their parents may have been made after them."""
    known = {one.pk: one for one in read}
    missing = {one.parent_id for one in read if one.parent_id is not None} - set(known)
    while missing:
        found = _steps(visit).filter(pk__in=missing).defer("sealed", "value")
        known |= {one.pk: one for one in found}
        parents = {one.parent_id for one in known.values() if one.parent_id is not None}
        missing = (parents - set(known)) - missing
    return list(known.values())
