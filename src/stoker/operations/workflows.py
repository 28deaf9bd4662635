"""Operations on workflows: cancel, retry."""

from __future__ import annotations

from stoker.workflows.results import get_workflow

from .operation import Done, Operation, Operator


def _cancel(operator: Operator, workflow_id: str) -> Done:
    workflow = get_workflow(workflow_id, backend=operator.alias)
    if not workflow.cancel(operator.cancellation):
        sentence = f"The workflow {workflow.id} has ended already: {workflow.status}."
        return Done(sentence, is_good=False, value=workflow)
    sentence = f"The workflow {workflow.id} is cancelled: no step starts, running jobs must end."
    return Done(sentence, value=workflow)


def _retry(operator: Operator, workflow_id: str) -> Done:
    workflow = get_workflow(workflow_id, backend=operator.alias)
    count = workflow.retry(by=operator.by, because=operator.because)
    facts = {"sent": count}
    if not count:
        sentence = f"The workflow {workflow.id} has no step to retry: {workflow.status}."
        return Done(sentence, is_good=False, facts=facts, value=workflow)
    sentence = f"The workflow {workflow.id} continues: {count:,} jobs were enqueued."
    return Done(sentence, facts=facts, value=workflow)


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
    "there.",
)
OPERATIONS = (CANCEL, RETRY)
