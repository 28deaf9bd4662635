"""Consequences of ended jobs: advance workflows, call hooks, reopen steps."""

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
from stoker.models.job import JobColumns
from stoker.store.engines import engine_of
from stoker.store.statements import deciding
from stoker.store.transactions import after_commit
from stoker.values.ids import is_linked, is_step

from .advance import REASON, Advance
from .deliver import Ended
from .hooks import call_hooks

State = Step.State


def reopen(alias: str, old_job_id: UUID, new_job_id: UUID) -> bool:
    """Let a new job continue the step of a failed job, in the open transaction.

    Steps that ended because of the failure run again, unless they were undone. The transaction must
    not lock anything else after this.

    Returns:
        Whether the step exists and no other job continues it.
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


def reassign(alias: str, job_id: UUID, failed_job_id: UUID) -> None:
    """Assign a step back to the failed job after its new job was withdrawn, in a locked
    workflow."""
    steps = Step.objects.using(alias)
    for step in steps.of_jobs([job_id]).only("workflow_id"):
        steps.filter(pk=step.pk).update(job_id=failed_job_id)
        steps.filter(workflow_id=step.workflow_id, cause=job_id).update(cause=failed_job_id)


def open_above(alias: str, step: Step, *, is_next: bool = False) -> None:
    """Reopen the parents of a step that starts again, in a locked workflow.

    Args:
        is_next: the step has never started, so its parents wait for it even if it is optional.
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
"""Maximum number of waiting jobs that this process withdraws itself after a group has failed.
Upkeep withdraws the rest, and clusters stop the running ones."""


def follow(settings: Settings, ended: Collection[Ended]) -> None:
    """Process the consequences of ended jobs, in the open transaction that records them.

    It is idempotent, and does nothing for jobs whose ids have no marks.
    """
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
    """Open a transaction in which the given jobs can be recorded as ended.

    If they are steps of workflows, it sees what the previous holder of the workflow's lock has
    written.
    """
    if not connections[alias].in_atomic_block and any(map(is_step, job_ids)):
        return deciding(alias)
    return transaction.atomic(using=alias)


def end_waiting(settings: Settings, job_ids: Collection[UUID], reason: str) -> set[UUID]:
    """Cancel the jobs that wait in the store. Return their ids.

    The caller must not hold locks: everywhere, jobs are withdrawn before workflows are locked.
    """
    broker = broker_for(settings).store
    if broker is None:
        return set()  # there is no row of such a job to say how it ended
    with transaction_for(settings.database, job_ids):
        gone = broker.withdraw(list(job_ids))
        record_cancelled(settings, gone, reason)
    return gone


def record_cancelled(settings: Settings, job_ids: Collection[UUID], reason: str) -> None:
    """Record that these jobs were withdrawn, and process the consequences, in the open
    transaction."""
    if not job_ids:
        return
    endings = _endings(settings.database, job_ids, reason)
    engine_of(settings.database).finish_jobs(endings)()
    attempts = zip(job_ids, endings.attempts, strict=True)
    status = Job.Status.CANCELLED
    follow(settings, [Ended(one, status, count, None, "", reason) for one, count in attempts])


def record_taken_back(settings: Settings, job_id: UUID, failed_job_id: UUID, reason: str) -> None:
    """Record that the requeue of a failed job was withdrawn before it ran, in the open transaction.

    The workflow returns to the state after the failure. Hooks are not called again.
    """
    alias = settings.database
    engine_of(alias).finish_jobs(_endings(alias, [job_id], reason))()
    if not is_step(job_id):
        return
    stopped = Advance(settings).record({job_id: Ended(job_id, Job.Status.FAILED, 0)})
    reassign(alias, job_id, failed_job_id)
    if stopped:
        withdraw = partial(end_waiting, settings, stopped[:AT_ONCE], REASON)
        transaction.on_commit(withdraw, using=alias, robust=True)


def _endings(alias: str, job_ids: Collection[UUID], reason: str) -> JobColumns:
    """Return the cancelled jobs as columns, in the order of ``job_ids``."""
    failures = Attempt.objects.using(alias).filter(job_id__in=job_ids).order_by()
    last = dict(failures.values_list("job_id").annotate(last=Max("number")))
    count = len(job_ids)
    return JobColumns(
        job_ids=[job_id.hex for job_id in job_ids],
        statuses=[Job.Status.CANCELLED.value] * count,
        attempts=[last.get(job_id, 0) for job_id in job_ids],
        worker_ids=[""] * count,
        started_at=[None] * count,
        finished_at=[time.time()] * count,
        values=[None] * count,
        reasons=[reason[:255]] * count,
    )
