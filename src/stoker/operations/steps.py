"""The operations on steps of workflows: retry, also many at once, and undo."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from django.db.models import Q

from stoker.dead_letters.service import Fate, undo_requeue
from stoker.models import DeadLetter, Requeue, Step
from stoker.values.ids import parse_job_id
from stoker.values.text import plural
from stoker.workflows.results import WorkflowResult, get_workflow

from . import dead_letters
from .operation import Done, Operation, Operator


def _retry(operator: Operator, step_id: str, workflow: str) -> Done:
    """Retry one step.

    Args:
        workflow: the id of its workflow.
    """
    flow = get_workflow(workflow, backend=operator.alias)
    step = _step_of(operator, step_id, flow)
    try:
        count = flow.retry(by=operator.by, because=operator.because, step=step_id)
    except ValueError as error:
        return Done(str(error), is_good=False, facts={"sent": 0}, value=flow)
    assert step is not None
    undo = {"step": str(step.pk), "workflow": flow.id} if _letter_of(operator, step) else {}
    more = f", and {plural(count - 1, 'step')} that had not started" if count > 1 else ""
    sentence = f"The step is retried{more}. The workflow continues from there."
    if undo:
        sentence += " This can be undone until its job begins."
    return Done(sentence, undo=undo, facts={"sent": count}, value=flow)


def _undo(operator: Operator, step_id: str, workflow: str) -> Done:
    """Undo the retry of one step, if its job has not begun.

    Args:
        workflow: the id of its workflow.
    """
    flow = get_workflow(workflow, backend=operator.alias)
    step = _step_of(operator, step_id, flow)
    letter_id = None if step is None else _letter_of(operator, step)
    if letter_id is None:
        sentence = "Nothing was done: this step has no retry to undo."
        return Done(sentence, is_good=False, value=flow)
    answer = undo_requeue(letter_id, **operator.signed)
    flow.refresh()
    if answer.fate is Fate.TAKEN_BACK:
        return Done("The retry is undone: the step has failed again.", value=flow)
    because = (answer.because or answer.fate.value).rstrip(".")
    return Done(f"Nothing was done: {because}.", is_good=False, value=flow)


def undo_together(operator: Operator, jobs: Mapping[UUID, UUID]) -> dict[UUID, str]:
    """Undo retries of steps in one transaction, except those whose jobs have begun.

    Args:
        jobs: step -> the job that it was retried as.

    Returns:
        Step -> why its retry was not undone; "" = it was.
    """
    alias = operator.settings.database
    rows = Step.objects.using(alias).filter(pk__in=list(jobs)).values_list("pk", "job_id")
    step_of = {job_id: pk for pk, job_id in rows if job_id is not None and job_id == jobs[pk]}
    refusals = dict.fromkeys(jobs, "it was retried again")
    sent = Requeue.objects.using(alias).filter(pk__in=list(step_of))
    identities = list(sent.values_list("identity", flat=True))
    found = DeadLetter.objects.using(alias).filter(identity__in=identities)
    letters = {
        pk: job_id for pk, job_id in found.values_list("pk", "successor_id") if job_id in step_of
    }
    refusals |= dict.fromkeys(step_of.values(), "its job has ended, or it was requeued again")
    undone = dead_letters.undo_together(operator, letters)
    return refusals | {step_of[letters[pk]]: refusal for pk, refusal in undone.items()}


def _step_of(operator: Operator, step_id: str, workflow: WorkflowResult) -> Step | None:
    """Return the step with this id, or whose newest job has it."""
    wanted = parse_job_id(step_id) or UUID(int=0)
    steps = Step.objects.using(operator.settings.database).filter(workflow_id=workflow.id)
    return steps.filter(Q(pk=wanted) | Q(job_id=wanted)).only("pk").first()


def _letter_of(operator: Operator, step: Step) -> UUID | None:
    """Return the dead letter that the step's newest job continues."""
    database = operator.settings.database
    steps = Step.objects.using(database).filter(pk=step.pk)
    sent = Requeue.objects.using(database).filter(pk__in=steps.values("job_id")).first()
    if sent is None:
        return None
    letters = DeadLetter.objects.using(database).filter(identity=sent.identity)
    return letters.filter(successor_id=sent.pk).values_list("pk", flat=True).first()


RETRY = Operation(
    "retry",
    "step",
    "stoker.change_workflow",
    _retry,
    label="Retry this step",
    undo="undo",
    things="steps",
    done="retried",
    takes=("workflow",),
)
UNDO = Operation(
    "undo",
    "step",
    "stoker.change_workflow",
    _undo,
    label="Undo the retry",
    takes=("workflow",),
)
OPERATIONS = (RETRY, UNDO)
