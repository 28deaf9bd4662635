"""Reopen: the job of a step is sent again, and its workflow goes on when it succeeds."""

from __future__ import annotations

from uuid import UUID

from stoker.ids import is_step
from stoker.models import Step, Workflow

State = Step.State


def reopen(alias: str, old_job_id: UUID, new_job_id: UUID) -> bool:
    """A new job carries on the old one's step, in the open transaction, which locks nothing more
    after this. What had ended because of it is under way again, unless it was undone.

    Returns:
        Whether there is such a step, and no other job carries it on.
    """
    if not is_step(old_job_id):
        return False
    steps = Step.objects.using(alias)
    workflow_id = steps.of_jobs([old_job_id]).values_list("workflow_id", flat=True).first()
    if workflow_id is None:
        return False
    Workflow.objects.using(alias).lock([workflow_id])
    step = steps.of_jobs([old_job_id]).defer("sealed", "value").first()
    if step is None or step.state not in (State.FAILED, State.CANCELLED):
        return False
    steps.disown([old_job_id])
    steps.filter(pk=step.pk).update(state=State.ENQUEUED, job_id=new_job_id, cause=None)
    open_above(alias, step)
    return True


def give_back(alias: str, job_id: UUID, failed_job_id: UUID) -> None:
    """The step of a job that was withdrawn is that of the job again which had failed, in a workflow
    that is locked."""
    steps = Step.objects.using(alias)
    for step in steps.of_jobs([job_id]).only("workflow_id"):
        steps.filter(pk=step.pk).update(job_id=failed_job_id)
        steps.filter(workflow_id=step.workflow_id, cause=job_id).update(cause=failed_job_id)


def open_above(alias: str, step: Step, *, is_next: bool = False) -> None:
    """This step has its turn again, in a workflow that is locked: what holds it is under way.

    Args:
        is_next: it has never had its turn, and so is waited for though it be optional.
    """
    steps = Step.objects.using(alias)
    while step.parent_id is not None and (is_next or not step.is_optional):
        parent = steps.defer("sealed", "value").get(pk=step.parent_id)
        is_undone = parent.has_undo and _is_undone(alias, parent)
        if parent.state not in (State.FAILED, State.CANCELLED) or is_undone:
            return
        steps.filter(pk=parent.pk).update(state=State.STARTED, cause=None)
        if step.role != Step.Role.STEP:
            return
        step = parent
    if step.parent_id is None:
        Workflow.objects.using(alias).reopen(step.workflow_id)


def _is_undone(alias: str, chain: Step) -> bool:
    members = Step.objects.using(alias).below([chain.pk]).filter(has_undo=True)
    undos = Step.objects.using(alias).filter(
        parent_id__in=members.values("pk"), role=Step.Role.UNDO
    )
    return undos.exclude(state=State.PENDING).exists()
