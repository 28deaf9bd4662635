"""Enqueue: a workflow is made, and whoever listens is told of the jobs that it begins with."""

from __future__ import annotations

from uuid import UUID

from stoker.compat import task_backends, task_signals
from stoker.conf import Settings
from stoker.lifecycle.running import DJANGOS_OWN
from stoker.models import Step
from stoker.nodes import Node
from stoker.results import fetch_many

from .making import make
from .results import WorkflowResult, get_workflow


def enqueue(settings: Settings, node: Node, name: str) -> WorkflowResult:
    """Make a workflow of a node. See ``Node.enqueue``."""
    workflow_id = make(settings, node, name)
    _announce(settings, workflow_id)
    return get_workflow(workflow_id, backend=settings.alias)


def _announce(settings: Settings, workflow_id: UUID) -> None:
    """Send Django's signal for the jobs that may start at once, if anybody listens."""
    signal = task_signals.task_enqueued
    if all(receiver[0][0] in DJANGOS_OWN for receiver in signal.receivers):
        return
    steps = Step.objects.using(settings.database).filter(
        workflow_id=workflow_id, kind=Step.Kind.TASK, state=Step.State.ENQUEUED
    )
    job_ids = [one for one in steps.values_list("job_id", flat=True) if one is not None]
    sender = type(task_backends[settings.alias])
    for result in fetch_many(settings, job_ids):
        signal.send_robust(sender, task_result=result)
