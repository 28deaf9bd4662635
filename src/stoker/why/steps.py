"""Of a step of a workflow whose turn has not come: what comes before it."""

from __future__ import annotations

from typing import Any

from stoker.models import Step, Workflow
from stoker.models.step import GROUPS, OPEN

from .answer import Answer, Kind
from .asked import Asked

SHOWN = 10
LEAVES = 200
"""Of what is under way before it, as many steps are looked at."""


def answer_step(asked: Asked, step: Step) -> Answer:
    asked.task = asked.task or step.label
    workflow = Workflow.objects.using(asked.alias).filter(pk=step.workflow_id).first()
    facts: dict[str, Any] = {
        "workflow": str(step.workflow_id),
        "workflow_state": workflow.state if workflow is not None else None,
    }
    name = f"the workflow {str(workflow) if workflow is not None else step.workflow_id}"
    if workflow is None or workflow.state != Workflow.State.RUNNING:
        state = workflow.state.lower() if workflow is not None else "gone"
        return asked.answer(
            Kind.WORKFLOW,
            f"It is a step of {name}, which is {state}: its turn never comes.",
            f"`manage.py stoker workflows retry {step.workflow_id}` lets a failed one go on.",
            waits_for=[],
            **facts,
        )
    waits_for = _before(asked, step)
    named = ", ".join(f"{one['task']} ({one['state'].lower()})" for one in waits_for[:3])
    more = " and others" if len(waits_for) > 3 else ""
    return asked.answer(
        Kind.WORKFLOW,
        f"It is a step of {name}, and its turn comes after {named or 'other steps'}{more}.",
        waits_for=waits_for,
        **facts,
    )


def _before(asked: Asked, step: Step) -> list[dict[str, Any]]:
    """The tasks under way in its workflow that must end before it: those below the nearest step
    that stands before it and has not ended."""
    steps = Step.objects.using(asked.alias).defer("sealed", "value")
    node = step
    while node.parent_id is not None:
        parent = steps.get(pk=node.parent_id)
        under_way = steps.below([parent.pk]).filter(state__in=OPEN)
        if parent.kind not in GROUPS:
            under_way = under_way.filter(position__lt=node.position)
        elif parent.has_more and node.state == Step.State.PENDING:
            under_way = under_way.exclude(state=Step.State.PENDING)
        else:
            under_way = under_way.none()
        tasks = _tasks_of(asked, list(under_way.exclude(pk=node.pk)[:LEAVES]))
        if tasks:
            return tasks[:SHOWN]
        node = parent
    return []


def _tasks_of(asked: Asked, found: list[Step]) -> list[dict[str, Any]]:
    """The tasks among these steps and below them that are under way."""
    steps = Step.objects.using(asked.alias).defer("sealed", "value")
    tasks: list[Step] = []
    while found and len(tasks) < SHOWN:
        tasks += [one for one in found if one.kind == Step.Kind.TASK and not one.has_added]
        held = [one.pk for one in found if one.kind != Step.Kind.TASK or one.has_added]
        found = list(steps.below(held).filter(state__in=OPEN)[:LEAVES]) if held else []
    tasks.sort(key=lambda one: one.state == Step.State.PENDING)
    return [
        {
            "task": one.label,
            "job_id": None if one.job_id is None else str(one.job_id),
            "state": one.state,
        }
        for one in tasks
    ]
