"""Rows of workflows for all interfaces, and the operations on workflows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db.models import Q

from stoker.conf import Settings
from stoker.inspect.scan import ScannedPage, scan
from stoker.inspect.steps import TimedStep
from stoker.models import BulkOperation, Step, Workflow
from stoker.store.engines.sessions import explained
from stoker.tasks.arguments import ShownCall
from stoker.values.ids import parse_job_id
from stoker.workflows.results import WorkflowProgress, WorkflowResult, get_workflow

from . import bulk, steps
from .details import opened_call
from .operation import Done, Operation, Operator

SCANNED = 10_000
"""Maximum number of workflows that a page with a filter reads."""


def find(
    settings: Settings, limit: int, after: str = "", *, state: str = "", text: str = ""
) -> ScannedPage:
    """Return a page of workflows, the newest first.

    Args:
        after: ``ScannedPage.next`` of the previous page.
        state: RUNNING, SUCCESSFUL, FAILED or CANCELLED; "" = all.
        text: part of the name or the reason, or the id of the workflow or of one of its jobs.

    Raises:
        ValueError: ``after`` is invalid.
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    rows = Workflow.objects.using(settings.database).filter(backend=settings.alias)
    condition, wanted = Q(), parse_job_id(text)
    with explained(settings.database):
        if wanted is not None:
            steps_of_job = Step.objects.using(settings.database).filter(job_id=wanted)
            ids = steps_of_job.values_list("workflow_id", flat=True)[:1]
            rows = rows.filter(pk__in=[wanted, *ids])
        elif text:
            condition &= Q(name__icontains=text) | Q(reason__icontains=text)
        if state:
            condition &= Q(state=state)
        return scan(rows, condition, limit, after, most=SCANNED, newest_first=True)


def workflow_as_plain(
    workflow: WorkflowResult, progress: WorkflowProgress | None = None
) -> dict[str, Any]:
    """Return a workflow for JSON.

    Args:
        progress: None = count its tasks.
    """
    return {
        "id": workflow.id,
        "name": workflow.name,
        "state": workflow.status,
        "made_at": workflow.made_at,
        "finished_at": workflow.finished_at,
        "reason": workflow.reason,
        "progress": progress or workflow.progress(),
    }


def calls_of_steps(
    settings: Settings, steps: Iterable[TimedStep], *, reveal: bool = False
) -> dict[UUID, ShownCall | None]:
    """Return step -> arguments. Steps with large calls are left out.

    The arguments of a step that has not begun do not contain the results that it will receive.

    Args:
        reveal: Hide no secrets.
    """
    return {
        one.id: opened_call(settings, one.package, reveal=reveal)
        for one in steps
        if one.package is not None
    }


# -- operations -----------------------------------------------------------------------------------


def _cancel(operator: Operator, workflow_id: str) -> Done:
    workflow = get_workflow(workflow_id, backend=operator.alias)
    if not workflow.cancel(operator.cancellation):
        sentence = f"The workflow {workflow.id} has ended already: {workflow.status}."
        return Done(sentence, is_good=False, value=workflow)
    sentence = (
        f"The workflow {workflow.id} is cancelled: no further step starts, and running jobs are "
        "asked to end."
    )
    return Done(sentence, value=workflow)


def _retry(operator: Operator, workflow_id: str) -> Done:
    """Retry the steps that failed, as a bulk operation. A small one is done when this returns."""
    workflow = get_workflow(workflow_id, backend=operator.alias)
    done = bulk.perform(operator, steps.RETRY, {"workflow": workflow.id}, least=1)
    row: BulkOperation | None = done.value
    if row is None:
        sentence = f"The workflow {workflow.id} has no step to retry: {workflow.status}."
        return Done(sentence, is_good=False, facts={"sent": 0})
    facts = {"sent": row.done}
    if row.state == BulkOperation.State.DONE and not row.done:
        return Done(done.sentence, is_good=False, facts=facts, value=row)
    sentence = f"The workflow {workflow.id} continues: {done.sentence}"
    # The row of the bulk operation is its entry in the history.
    return Done(sentence, undo=done.undo, facts=facts, value=row, count=0)


CANCEL = Operation(
    "cancel",
    "workflow",
    "stoker.change_workflow",
    _cancel,
    question="Cancel this workflow? No further step starts; running jobs are asked to end.",
    is_grave=True,
)
RETRY = Operation(
    "retry",
    "workflow",
    "stoker.change_workflow",
    _retry,
    question="Retry this workflow? The jobs that failed are enqueued again, and it continues from "
    "there. A large workflow is retried in the background.",
    undo="retry",
)
OPERATIONS = (CANCEL, RETRY)
