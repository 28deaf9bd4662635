"""Cancel and retry workflows."""

from __future__ import annotations

import time
from dataclasses import replace as changed
from uuid import UUID

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.dead_letters.requeueing import LetterFate, Wish, requeue
from stoker.exceptions import WorkflowNotFound
from stoker.jobs.cancel import cancel as cancel_job
from stoker.jobs.cancel import unstored_step
from stoker.jobs.package import sealer_for
from stoker.jobs.sealing import needs_of_step
from stoker.models import Cancellation, DeadLetter, Job, Step, Workflow
from stoker.models.job import Message
from stoker.models.step import GROUPS, OPEN
from stoker.store.engines.sessions import explained
from stoker.store.statements import deciding
from stoker.tasks.registry import task_of
from stoker.values.ids import following_job_id

from .advance import Advance
from .follow import end_waiting, open_above, reopen

State = Step.State
AT_ONCE = 500


def cancel(settings: Settings, workflow_id: UUID, reason: str) -> bool:
    """Cancel a workflow. Return False if it has ended already. See ``WorkflowResult.cancel``."""
    alias = settings.database
    steps = Step.objects.using(alias).filter(workflow_id=workflow_id)
    with explained(alias), deciding(alias):
        states = Workflow.objects.using(alias).lock([workflow_id])
        if workflow_id not in states:
            raise WorkflowNotFound(f"There is no workflow {workflow_id} (any more).")
        if states[workflow_id] != Workflow.State.RUNNING:
            return False
        Workflow.objects.using(alias).end(workflow_id, Workflow.State.CANCELLED, reason)
        under_way = steps.filter(state__in=(State.STARTED, State.UNDOING))
        Step.objects.using(alias).become(
            list(under_way.values_list("pk", flat=True)), State.CANCELLED
        )
        because = reason or "its workflow was cancelled"
        jobs = steps.filter(state=State.ENQUEUED).exclude(job_id=None)
        # If this process dies, clusters and upkeep process the requests.
        job_ids = [job_id for job_id in jobs.values_list("job_id", flat=True) if job_id is not None]
        Cancellation.objects.using(alias).ask_all(job_ids, because)
    _end_jobs(settings, workflow_id, because)
    return True


def retry(settings: Settings, workflow_id: UUID, by: str, because: str) -> int:
    """Retry the failed steps of a workflow. See ``WorkflowResult.retry``.

    Each failed job is requeued in its own transaction, which also reopens the steps above it. So if
    this process dies, everything that was requeued continues.
    """
    alias = settings.database
    workflow = Workflow.objects.using(alias).filter(pk=workflow_id).first()
    if workflow is None:
        raise WorkflowNotFound(f"There is no workflow {workflow_id} (any more).")
    if workflow.state in (Workflow.State.RUNNING, Workflow.State.SUCCESSFUL):
        return 0
    count = 0
    for step in _to_redo(alias, workflow_id):
        count += _redo(settings, step, Wish(by=by, because=because))
    with deciding(alias):
        Workflow.objects.using(alias).lock([workflow_id])
        count += _resume(settings, workflow_id)
    return count


def _to_redo(alias: str, workflow_id: UUID) -> list[Step]:
    """Return the failed or cancelled tasks that block the workflow.

    Undone and optional steps, callbacks, and steps of chains that went on without them are left
    out.
    """
    steps = Step.objects.using(alias).filter(workflow_id=workflow_id, role=Step.Role.STEP)
    ended = (State.FAILED, State.CANCELLED)
    found: list[Step] = []
    level = list(steps.filter(pk=workflow_id, state__in=ended).exclude(kind=Step.Kind.TASK))
    undone = set(
        Step.objects.using(alias)
        .filter(workflow_id=workflow_id, role=Step.Role.UNDO)
        .exclude(state=State.PENDING)
        .values_list("parent_id", flat=True)
    )
    of_undone = steps.filter(pk__in=filter(None, undone))
    undone_chains = set(of_undone.values_list("parent_id", flat=True))
    while level:
        open_ones = [step.pk for step in level if step.pk not in undone_chains]
        below = steps.filter(parent_id__in=open_ones, state__in=ended, is_optional=False)
        rows = list(below.defer("sealed", "value").order_by("parent_id", "position"))
        found += [
            step for step in rows if step.kind == Step.Kind.TASK and not _has_below(alias, step)
        ]
        level = [step for step in rows if step.kind != Step.Kind.TASK or _has_below(alias, step)]
    return found


def _has_below(alias: str, step: Step) -> bool:
    """Return whether the step ended because steps that its job had added failed."""
    if not step.has_added:
        return False
    added = Step.objects.using(alias).below([step.pk])
    return added.exclude(state=State.HELD).exists()


def _redo(settings: Settings, step: Step, wish: Wish) -> int:
    """Requeue the job of one step. Return the number of enqueued jobs: 0 or 1."""
    alias = settings.database
    assert step.job_id is not None
    letter = DeadLetter.objects.using(alias).unclosed().filter(job_id=step.job_id).first()
    if letter is not None:
        return int(requeue(settings, letter.pk, wish).fate is LetterFate.REQUEUED)
    job = Job.objects.using(alias).filter(pk=step.job_id).first()
    if job is None:
        return 0
    package = sealer_for(settings).open(bytes(job.package))
    job_id = following_job_id(job.pk)
    data = sealer_for(settings).seal(changed(package, job_id=job_id))
    options = package.options
    message = Message(
        job_id=job_id,
        task=job.task,
        queue=job.queue,
        priority=job.priority,
        package=data,
        enqueued_at=time.time(),
        needs=needs_of_step(task_of(package), package.args, package.kwargs, options.receives),
        stays_in_store=True,  # a part of this transaction, whatever the broker is
    )
    with deciding(alias):
        if not reopen(alias, job.pk, job_id):
            return 0  # another process has requeued it
        broker_for(settings).deliver([message])
    return 1


def _resume(settings: Settings, workflow_id: UUID) -> int:
    """Start the steps that never started: the next steps of cancelled chains, and members of
    unfinished groups. Return their number."""
    alias = settings.database
    steps = Step.objects.using(alias).filter(workflow_id=workflow_id)
    turns = _next_in_chains(alias, workflow_id)
    for step in turns:
        open_above(alias, step, is_next=True)
    groups = steps.filter(kind__in=GROUPS, state=State.STARTED)
    for group in groups.defer("sealed", "value"):
        members = Step.objects.using(alias).below([group.pk])
        if not members.filter(state=State.PENDING).exists():
            continue
        busy = members.filter(state__in=(State.ENQUEUED, State.STARTED)).count()
        turns += Advance(settings).room_of(group, busy)
    Advance(settings).begin(turns)
    return len(turns)


def _next_in_chains(alias: str, workflow_id: UUID) -> list[Step]:
    """Return the steps to start in chains that were cancelled between two steps."""
    steps = Step.objects.using(alias)
    chains = steps.filter(workflow_id=workflow_id, state=State.CANCELLED)
    found = []
    chains = chains.exclude(kind__in=GROUPS).exclude(kind=Step.Kind.TASK, has_added=False)
    for chain in chains.defer("sealed", "value"):
        members = steps.below([chain.pk])
        begun = members.exclude(state__in=(State.PENDING, State.HELD)).order_by("-position")
        last = begun.defer("sealed", "value").first()
        if last is None or not (last.state == State.SUCCESSFUL or last.is_optional):
            continue
        following = members.filter(position=last.position + 1, state=State.PENDING).first()
        if following is not None and last.state not in OPEN:
            found.append(following)
    return found


def _end_jobs(settings: Settings, workflow_id: UUID, reason: str) -> None:
    """Cancel waiting jobs in batches, and running jobs one by one."""
    alias = settings.database
    enqueued = Step.objects.using(alias).filter(workflow_id=workflow_id, state=State.ENQUEUED)
    after: UUID | None = None
    while True:
        later = enqueued if after is None else enqueued.filter(pk__gt=after)
        part = list(later.order_by("pk").values_list("pk", "job_id", "label")[:AT_ONCE])
        if not part:
            return
        after = part[-1][0]
        job_ids = [job_id for _, job_id, _ in part if job_id is not None]
        gone = end_waiting(settings, job_ids, reason)
        for _, job_id, label in part:
            if job_id is not None and job_id not in gone:
                unstored = unstored_step(job_id, label)
                cancel_job(settings, unstored, reason)
