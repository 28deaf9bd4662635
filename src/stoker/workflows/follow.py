"""Do what follows from the end of jobs: workflows, hooks, cancelled and reopened steps."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Max

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.models import Attempt, Job, Step, Workflow
from stoker.models.job import Ending
from stoker.store.transactions import after_commit, deciding
from stoker.values.ids import is_linked, is_step

from .advance import REASON, Advance
from .deliver import Ended
from .hooks import call_hooks

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


AT_ONCE = 100
"""How many jobs are withdrawn by the process that has seen a group fail. Upkeep sees to the rest,
and the clusters to those that run."""


def follow(settings: Settings, ended: Collection[Ended]) -> None:
    """Carry on from these ends, in the open transaction that records them. What has been carried
    on from before is left alone. For jobs without marks in their ids there is nothing to do."""
    linked = [one for one in ended if is_linked(one.job_id)]
    if linked:
        call_hooks(settings, linked)
    steps = {one.job_id: one for one in ended if is_step(one.job_id)}
    if not steps:
        return
    stopped = Advance(settings).record(steps)
    if stopped:  # nothing may be withdrawn while a workflow is locked
        withdraw = partial(end_waiting, settings, stopped[:AT_ONCE], REASON)
        after_commit(settings.database, withdraw)


def transaction_for(alias: str, job_ids: Iterable[UUID]) -> AbstractContextManager[Any]:
    """One in which these jobs may come to their end: who has locked a workflow has to see what the
    last who did has written."""
    if not connections[alias].in_atomic_block and any(map(is_step, job_ids)):
        return deciding(alias)
    return transaction.atomic(using=alias)


def end_waiting(settings: Settings, job_ids: Collection[UUID], reason: str) -> set[UUID]:
    """Cancel those of these jobs that wait in the store. Returns which they were.

    Nothing is locked when it begins: what is withdrawn comes before the workflows, as everywhere.
    """
    broker = broker_for(settings).inside
    if broker is None:
        return set()  # there is no row of such a job to say how it ended
    with transaction_for(settings.database, job_ids):
        gone = broker.withdraw(list(job_ids))
        record_cancelled(settings, gone, reason)
    return gone


def record_cancelled(settings: Settings, job_ids: Collection[UUID], reason: str) -> None:
    """These have been withdrawn, in the open transaction: write that down, and go on from it."""
    if not job_ids:
        return
    endings = _endings(settings.database, job_ids, reason)
    Job.objects.using(settings.database).finish(endings)
    status = Job.Status.CANCELLED
    follow(settings, [Ended(one.job_id, status, one.attempts, None, "", reason) for one in endings])


def record_taken_back(settings: Settings, job_id: UUID, failed_job_id: UUID, reason: str) -> None:
    """This job, which carried on one that had failed, has been withdrawn untried, in the open
    transaction. Its workflow is as that failure left it; nobody's hooks are called once more."""
    alias = settings.database
    Job.objects.using(alias).finish(_endings(alias, [job_id], reason))
    if not is_step(job_id):
        return
    stopped = Advance(settings).record({job_id: Ended(job_id, Job.Status.FAILED, 0)})
    give_back(alias, job_id, failed_job_id)
    if stopped:
        withdraw = partial(end_waiting, settings, stopped[:AT_ONCE], REASON)
        transaction.on_commit(withdraw, using=alias, robust=True)


def _endings(alias: str, job_ids: Collection[UUID], reason: str) -> list[Ending]:
    failures = Attempt.objects.using(alias).filter(job_id__in=job_ids).order_by()
    last = dict(failures.values_list("job_id").annotate(last=Max("number")))
    return [
        Ending(
            job_id=job_id,
            status=Job.Status.CANCELLED.value,
            attempts=last.get(job_id, 0),
            worker_id="",
            started_at=None,
            finished_at=time.time(),
            reason=reason,
        )
        for job_id in job_ids
    ]
