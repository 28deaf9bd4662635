"""Cancel and retry workflows."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace as changed
from datetime import datetime
from functools import partial
from typing import NamedTuple
from uuid import UUID

from django.db.models import Exists, OuterRef, Q

from stoker.brokers.adapters import broker_for
from stoker.compat import InvalidTask
from stoker.conf import Settings
from stoker.dead_letters.requeueing import LetterFate, Wish, requeue_together
from stoker.exceptions import StokerError, WorkflowNotFound
from stoker.jobs.cancel import cancel as cancel_job
from stoker.jobs.cancel import unstored_step
from stoker.jobs.package import sealer_for
from stoker.jobs.sealing import needs_of_step
from stoker.models import Cancellation, DeadLetter, Job, Requeue, Step, Workflow
from stoker.models.job import Message
from stoker.models.step import UNDER_WAY, StepQuerySet
from stoker.store.engines.sessions import explained
from stoker.store.statements import deciding, with_keys
from stoker.store.transactions import after_commit, is_in_transaction, repeat_if_aborted
from stoker.store.written import database_moment
from stoker.tasks.options import expires_at
from stoker.tasks.registry import task_of
from stoker.values.ids import following_job_id
from stoker.values.text import first_line_of

from .advance import Advance
from .follow import end_waiting, open_above, reopen

State = Step.State
ENDED_BADLY = (State.FAILED, State.CANCELLED)
AT_ONCE = 500
AT_A_TIME = 100
"""Maximum number of steps to retry in one transaction. Retrying 100 steps takes 0.1 to 0.2 s, and
the first of them are retried in the user's request."""
ON_A_PAGE = 1000
BLOCKING, STOPPED = "blocking", "next"
"""The parts of the cursor of steps to retry."""


def cancel(settings: Settings, workflow_id: UUID, reason: str) -> bool:
    """Cancel a workflow. Return False if it has ended already. See ``WorkflowResult.cancel``.

    Within a transaction its jobs are withdrawn when that commits: until then the workflow is
    locked, and a transaction that waits for this lock may hold their rows.
    """
    alias = settings.database
    steps = Step.objects.using(alias).filter(workflow_id=workflow_id)
    with explained(alias), deciding(alias):
        states = Workflow.objects.using(alias).lock([workflow_id])
        if workflow_id not in states:
            raise not_kept(workflow_id)
        if states[workflow_id] != Workflow.State.RUNNING:
            return False
        Workflow.objects.using(alias).end(workflow_id, Workflow.State.CANCELLED, reason)
        under_way = steps.filter(state__in=(State.STARTED, State.UNDOING))
        Step.objects.using(alias).become(
            list(under_way.values_list("pk", flat=True)), State.CANCELLED
        )
        because = reason or "its workflow was cancelled"
        jobs = steps.filter(state=State.ENQUEUED).exclude(job_id=None)
        # If this process dies, or its caller commits by hand, clusters and upkeep process these.
        job_ids = [job_id for job_id in jobs.values_list("job_id", flat=True) if job_id is not None]
        Cancellation.objects.using(alias).ask_all(job_ids, because)
    if is_in_transaction(alias):
        after_commit(alias, partial(_end_jobs, settings, job_ids, because))
    else:
        _end_jobs(settings, job_ids, because)
    return True


class StepOutcome(NamedTuple):
    """The outcome for one step to retry."""

    refusal: str = ""
    """Reason why the step was not retried; "" = it was retried."""
    job_id: UUID | None = None
    """The step's new job, if it is the requeue of a dead letter, which can be undone."""


def retry(settings: Settings, workflow_id: UUID, wish: Wish) -> int:
    """Retry the failed steps of a workflow. See ``WorkflowResult.retry``.

    The steps are retried in batches, each in its own transaction, which also reopens the steps
    above them. So if this process dies, everything that was retried continues.
    """
    alias = settings.database
    refusal = why_not(alias, workflow_id)
    if refusal:
        return 0
    begun_at, count = database_moment(alias), 0
    cursor: str | None = ""
    while cursor is not None:
        found, cursor = steps_to_retry(alias, workflow_id, cursor, begun_at)
        for first in range(0, len(found), AT_A_TIME):
            ids = [step_id for step_id, _ in found[first : first + AT_A_TIME]]
            outcomes, more = _retry_batch(settings, workflow_id, ids, wish)
            count += more + sum(not one.refusal for one in outcomes)
    return count


def why_not(alias: str, workflow_id: UUID) -> str:
    """Return why the steps of a workflow cannot be retried; "" = they can.

    Raises:
        WorkflowNotFound: it does not exist (any more).
    """
    _check_kept(alias, workflow_id)
    workflow = Workflow.objects.using(alias).filter(pk=workflow_id).first()
    if workflow is None:
        raise not_kept(workflow_id)
    if workflow.state in (Workflow.State.RUNNING, Workflow.State.SUCCESSFUL):
        return f"The workflow {workflow_id} has no step to retry: {workflow.state}."
    return ""


def _check_kept(alias: str, workflow_id: UUID) -> None:
    """Raise WorkflowNotFound if upkeep has begun to delete the workflow: see WorkflowSweep."""
    if not Step.objects.using(alias).filter(pk=workflow_id).exists():
        raise not_kept(workflow_id)


def not_kept(workflow_id: UUID) -> WorkflowNotFound:
    """Return the error for a workflow that does not exist, or that upkeep is deleting."""
    return WorkflowNotFound(f"There is no workflow {workflow_id} (any more).")


def retry_step(settings: Settings, workflow_id: UUID, step_id: UUID, wish: Wish) -> int:
    """Retry one failed or cancelled step. See ``WorkflowResult.retry``.

    The steps above it are reopened. Members of groups above it that have never started can start
    when others end.
    """
    alias = settings.database
    steps = Step.objects.using(alias).filter(workflow_id=workflow_id)
    step = steps.filter(Q(pk=step_id) | Q(job_id=step_id)).defer("sealed", "value").first()
    if step is None:
        raise ValueError(f"The workflow {workflow_id} has no step {step_id}.")
    refusal, more = _refusal(alias, step), 0
    if not refusal:
        ((refusal, _),), more = _retry_batch(settings, workflow_id, [step.pk], wish)
    if refusal:
        raise ValueError(f"The step was not retried: {refusal}.")
    return 1 + more


def _retry_batch(
    settings: Settings, workflow_id: UUID, step_ids: Sequence[UUID], wish: Wish
) -> tuple[list[StepOutcome], int]:
    """Retry steps in one transaction. Repeat it if it conflicts with another one."""
    alias = settings.database

    def retry() -> tuple[list[StepOutcome], int]:
        with deciding(alias):
            return retry_together(settings, workflow_id, step_ids, wish)

    return repeat_if_aborted(alias, retry)


def _refusal(alias: str, step: Step) -> str:
    """Return why this step cannot be retried alone; "" = it can."""
    stopped = stopped_containers(alias, step.workflow_id)
    if step.kind != Step.Kind.TASK:
        return f"it is a {step.kind}, not a task"
    if step.role != Step.Role.STEP:
        return "it is an undo or on_error step"
    if step.state not in ENDED_BADLY:
        return f"it is {step.state}, and only a failed or cancelled step can be retried"
    if _with_added(alias, [step]) and not stopped.filter(pk=step.pk).exists():
        return "steps that its job added have failed: retry those"
    above = _above(alias, [step])
    undone = Step.objects.using(alias).undone_among(
        [pk for pk, one in above.items() if one.has_undo]
    )
    return "steps of its chain were undone, and stay undone" if undone else ""


# -- which steps ----------------------------------------------------------------------------------


def steps_to_retry(
    alias: str, workflow_id: UUID, after: str, begun_at: datetime
) -> tuple[list[tuple[UUID, str]], str | None]:
    """Return a page of the steps that a retry of the workflow begins with, each with the cursor
    that points behind it, and the cursor of the next page; None = this is the last page.

    First the failed and cancelled tasks that block the workflow, then the chains and groups that
    were stopped between two steps.

    Args:
        after: the cursor; "" = the first page.
        begun_at: when the retry began, by the database's clock. Tasks that were requeued later are
            left out. The end of a job is measured by another clock.
    """
    part, _, last = after.partition(" ")
    if part != STOPPED:
        found, edge = _blocking(alias, workflow_id, last, begun_at)
        rest = STOPPED if edge is None else f"{BLOCKING} {edge}"
        return [(pk, f"{BLOCKING} {pk}") for pk in found], rest
    stopped = stopped_containers(alias, workflow_id)
    later = stopped.filter(pk__gt=UUID(last)) if last else stopped
    read = list(later.order_by("pk")[:ON_A_PAGE])
    found = [step.pk for step in _waited_for(alias, read)]
    is_last = len(read) < ON_A_PAGE
    return [
        (pk, f"{STOPPED} {pk}") for pk in found
    ], None if is_last else f"{STOPPED} {read[-1].pk}"


def _blocking(
    alias: str, workflow_id: UUID, last: str, begun_at: datetime
) -> tuple[list[UUID], UUID | None]:
    """Return failed and cancelled tasks that the workflow waits for, and the last one that was read
    if there may be more. Tasks that were requeued since ``begun_at``, by the database's clock, are
    left out; one that failed for the first time since then is not."""
    steps = Step.objects.using(alias).filter(workflow_id=workflow_id, kind=Step.Kind.TASK)
    ended = steps.filter(role=Step.Role.STEP, state__in=ENDED_BADLY, is_optional=False)
    later = ended.filter(pk__gt=UUID(last)) if last else ended
    names = ("parent_id", "job_id", "has_added", "has_undo")
    read = list(later.only(*names).order_by("pk")[:ON_A_PAGE])
    later_requeues = Requeue.objects.using(alias).filter(requeued_at__gt=begun_at)
    job_ids = [step.job_id for step in read if step.job_id is not None]
    newer: set[UUID] = set()
    if job_ids:
        newer.update(with_keys(later_requeues, job_ids).values_list("pk", flat=True))
    others = _with_added(alias, read)
    found = [
        step.pk
        for step in _waited_for(alias, read)
        if step.pk not in others and step.job_id not in newer
    ]
    return found, read[-1].pk if len(read) == ON_A_PAGE else None


def stopped_containers(alias: str, workflow_id: UUID) -> StepQuerySet:
    """Return the failed and cancelled chains and groups that no failed, cancelled or running step
    holds back. Optional ones are left out, unless they are a whole workflow."""
    steps = Step.objects.using(alias).defer("sealed", "value")
    below = steps.filter(parent_id=OuterRef("pk"), role=Step.Role.STEP).exclude(state=State.HELD)
    has_failed = Q(state__in=ENDED_BADLY, is_optional=False)
    ended = steps.filter(workflow_id=workflow_id, role=Step.Role.STEP, state__in=ENDED_BADLY)
    containers = ended.exclude(kind=Step.Kind.TASK, has_added=False)
    needed = containers.filter(Q(is_optional=False) | Q(parent_id=None))
    return needed.filter(Exists(below), ~Exists(below.filter(has_failed | Q(state__in=UNDER_WAY))))


def _waited_for(alias: str, read: Sequence[Step]) -> list[Step]:
    """Omit undone steps, callbacks, and steps of optional containers and of chains that continued
    without them."""
    above = _above(alias, read)
    chains = [one.pk for one in (*above.values(), *read) if one.has_undo]
    undone = Step.objects.using(alias).undone_among(chains)

    def is_waited_for(step: Step) -> bool:
        if step.pk in undone:
            return False
        while step.parent_id is not None:
            parent = above.get(step.parent_id)
            if parent is None:  # the workflow is being deleted
                return False
            step = parent
            is_left = step.is_optional and step.parent_id is not None
            has_gone_on = step.state not in (*ENDED_BADLY, State.STARTED)
            if is_left or has_gone_on or step.role != Step.Role.STEP or step.pk in undone:
                return False
        return True

    return list(filter(is_waited_for, read))


def _above(alias: str, steps: Sequence[Step]) -> dict[UUID, Step]:
    """Return the steps that contain the given ones by their ids, with one query for each level."""
    names = ("parent_id", "state", "role", "is_optional", "has_undo")
    rows = Step.objects.using(alias).only(*names)
    found: dict[UUID, Step] = {}
    level = steps
    while wanted := {one.parent_id for one in level if one.parent_id is not None} - found.keys():
        level = list(with_keys(rows, wanted))
        found |= {one.pk: one for one in level}
    return found


def _with_added(alias: str, steps: Collection[Step]) -> set[UUID]:
    """Return the steps that did not end with their jobs, because these have added steps."""
    adding = [step.pk for step in steps if step.has_added]
    if not adding:
        return set()
    added = Step.objects.using(alias).below(adding).exclude(state=State.HELD)
    return {pk for pk in added.values_list("parent_id", flat=True).distinct() if pk is not None}


# -- retry them -----------------------------------------------------------------------------------


def retry_together(
    settings: Settings, workflow_id: UUID, step_ids: Sequence[UUID], wish: Wish
) -> tuple[list[StepOutcome], int]:
    """Retry steps of a workflow, in the open transaction. There is one statement for each group
    that continues; the number of the others does not depend on how many steps they are.

    A failed or cancelled task gets a new job, and a chain or group that was stopped continues. The
    steps above them are reopened. Their members that have never started can start when others end.

    Returns:
        The outcomes in the order of the ids, and the number of members that start in addition.
    """
    alias = settings.database
    rows = Step.objects.using(alias).filter(workflow_id=workflow_id)
    steps = {one.pk: one for one in with_keys(rows.defer("sealed", "value"), step_ids)}
    holding = _with_added(alias, steps.values())
    holding |= {pk for pk, step in steps.items() if step.kind != Step.Kind.TASK}
    again = [step for pk, step in steps.items() if step.state in ENDED_BADLY and pk not in holding]
    outcomes = _enqueue_again(settings, again, wish)
    Workflow.objects.using(alias).lock([workflow_id])
    _check_kept(alias, workflow_id)
    stopped = stopped_containers(alias, workflow_id)
    resumed = list(with_keys(stopped, holding)) if holding else []
    open_above(alias, resumed)
    members = Advance(settings).resume(resumed)
    outcomes |= {step.pk: StepOutcome() for step in resumed}
    for step_id in step_ids:
        state = steps[step_id].state if step_id in steps else "gone"
        outcomes.setdefault(step_id, StepOutcome(f"it is {state}"))
    # A resumed group is not counted in addition to the members that it starts.
    counted = {one.parent_id for one in members}.intersection(one.pk for one in resumed)
    return [outcomes[step_id] for step_id in step_ids], len(members) - len(counted)


def _enqueue_again(
    settings: Settings, steps: Sequence[Step], wish: Wish
) -> dict[UUID, StepOutcome]:
    """Give these failed or cancelled tasks new jobs, and reopen the steps above them."""
    alias = settings.database
    tasks = {step.job_id: step.pk for step in steps if step.job_id is not None}
    unclosed = DeadLetter.objects.using(alias).unclosed().filter(job_id__in=tasks)
    letters = dict(unclosed.values_list("pk", "job_id")) if tasks else {}
    outcomes = {}
    for answer in requeue_together(settings, sorted(letters), wish) if letters else ():
        is_sent = answer.fate is LetterFate.REQUEUED
        refusal = "" if is_sent else answer.because or answer.fate.value
        job_id = answer.job_id if is_sent else None
        outcomes[tasks[letters[answer.dead_letter_id]]] = StepOutcome(refusal, job_id)
    others = tasks.keys() - set(letters.values())
    jobs = Job.objects.using(alias).in_bulk(list(others)) if others else {}
    messages: dict[UUID, Message] = {}
    for old in others:
        outcomes[tasks[old]] = StepOutcome("its job is not kept any more")
        if old in jobs:
            try:
                messages[old] = _same_job(settings, jobs[old])
            except (StokerError, InvalidTask) as error:
                outcomes[tasks[old]] = StepOutcome(first_line_of(error))
    reopened = reopen(alias, {old: message.job_id for old, message in messages.items()})
    for old in messages:
        refusal = "" if old in reopened else "another process has requeued it"
        outcomes[tasks[old]] = StepOutcome(refusal)
    broker_for(settings).deliver([messages[old] for old in messages if old in reopened])
    return outcomes


def _same_job(settings: Settings, job: Job) -> Message:
    """Return a new job like this one, which was cancelled or whose dead letter is closed. As in
    a requeue, the ``expires`` of the task counts from now."""
    package = sealer_for(settings).open(bytes(job.package))
    task, now, job_id = task_of(package), time.time(), following_job_id(job.pk)
    options = changed(package.options, expires_at=expires_at(task, now))
    data = sealer_for(settings).seal(changed(package, job_id=job_id, options=options))
    return Message(
        job_id=job_id,
        task=job.task,
        queue=job.queue,
        priority=job.priority,
        package=data,
        enqueued_at=now,
        needs=needs_of_step(task, package.args, package.kwargs, options.receives),
        stays_in_store=True,  # a part of this transaction, whatever the broker is
    )


def _end_jobs(settings: Settings, job_ids: Sequence[UUID], reason: str) -> None:
    """Cancel waiting jobs of steps in batches, and running jobs one by one.

    A retry may have given new jobs to some of the steps. These are left alone.
    """
    enqueued = Step.objects.using(settings.database).filter(state=State.ENQUEUED)
    for first in range(0, len(job_ids), AT_ONCE):
        part = job_ids[first : first + AT_ONCE]
        gone = end_waiting(settings, part, reason)
        for job_id, label in enqueued.of_jobs(part).values_list("job_id", "label"):
            if job_id is not None and job_id not in gone:
                cancel_job(settings, unstored_step(job_id, label), reason)
