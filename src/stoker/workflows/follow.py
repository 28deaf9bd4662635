"""Consequences of ended jobs: advance workflows, call hooks, reopen steps."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from stoker.store.statements import deciding, update_by_key, with_keys
from stoker.store.transactions import after_commit, repeat_if_aborted
from stoker.values.ids import is_linked, is_step

from .advance import REASON, Advance
from .deliver import Ended
from .hooks import call_hooks

State = Step.State


class WorkflowCancelled(Exception):
    """A job must not be requeued, because its workflow was cancelled."""


def reopen(alias: str, jobs: Mapping[UUID, UUID], *, revives: bool = True) -> set[UUID]:
    """Let new jobs continue the steps of failed jobs, in the open transaction.

    Steps that ended because of the failures run again, unless they were undone. The transaction
    must not lock anything else after this.

    Args:
        jobs: failed job -> its new job.
        revives: whether cancelled workflows are reopened, too.

    Returns:
        The failed jobs whose steps exist and are not continued by other jobs.

    Raises:
        WorkflowCancelled: a workflow was cancelled, and ``revives`` is False.
    """
    steps = Step.objects.using(alias)
    ours = [job_id for job_id in jobs if is_step(job_id)]
    workflow_ids = set(steps.of_jobs(ours).values_list("workflow_id", flat=True)) if ours else set()
    if not workflow_ids:
        return set()
    states = Workflow.objects.using(alias).lock(workflow_ids)
    if not revives and Workflow.State.CANCELLED in states.values():
        raise WorkflowCancelled("its workflow was cancelled")
    ended = steps.of_jobs(ours).filter(state__in=(State.FAILED, State.CANCELLED))
    found = {step.job_id: step for step in ended.defer("sealed", "value") if step.job_id}
    if not found:
        return set()
    steps.disown(found)
    update_by_key(steps, [step.pk for step in found.values()], state=State.ENQUEUED, cause=None)
    newest = [Step(pk=step.pk, job_id=jobs[old]) for old, step in found.items()]
    steps.bulk_update(newest, ["job_id"])
    open_above(alias, list(found.values()))
    return set(found)


def reassign(alias: str, jobs: Mapping[UUID, UUID]) -> None:
    """Assign steps back to the failed jobs after their new jobs were withdrawn, in locked
    workflows.

    Args:
        jobs: new job -> the failed job that it continued.
    """
    steps = Step.objects.using(alias)
    rows = list(steps.of_jobs(jobs).only("workflow_id", "job_id"))
    workflow_ids = {step.workflow_id for step in rows}
    caused = steps.filter(workflow_id__in=workflow_ids, cause__in=list(jobs)).only("cause")
    ends = [Step(pk=step.pk, cause=jobs[step.cause]) for step in caused if step.cause is not None]
    again = [Step(pk=step.pk, job_id=jobs[step.job_id]) for step in rows if step.job_id is not None]
    steps.bulk_update(again, ["job_id"])
    steps.bulk_update(ends, ["cause"])


def open_above(alias: str, steps: Sequence[Step]) -> None:
    """Reopen the parents of steps that start again, in locked workflows, with two or three queries
    for each level."""
    rows, level = Step.objects.using(alias), steps
    while level:
        roots = {step.workflow_id for step in level if step.parent_id is None}
        Workflow.objects.using(alias).reopen(roots)
        # Nothing waits for an undo or on_error step.
        waiting = {
            step.parent_id
            for step in level
            if step.parent_id is not None and step.role == Step.Role.STEP and not step.is_optional
        }
        if not waiting:
            return
        parents = with_keys(rows.defer("sealed", "value"), waiting)
        ended = list(parents.filter(state__in=(State.FAILED, State.CANCELLED)))
        undone = rows.undone_among([step.pk for step in ended if step.has_undo])
        level = [step for step in ended if step.pk not in undone]
        update_by_key(rows, [step.pk for step in level], state=State.STARTED, cause=None)


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
    _withdraw_later(settings, Advance(settings).record(steps))


def _withdraw_later(settings: Settings, stopped: Sequence[UUID]) -> None:
    """Cancel these jobs after the commit, because nothing may be withdrawn while a workflow is
    locked."""
    if stopped:
        withdraw = partial(end_waiting, settings, stopped[:AT_ONCE], REASON)
        after_commit(settings.database, withdraw)


def transaction_for(alias: str, job_ids: Iterable[UUID]) -> AbstractContextManager[Any]:
    """Open a transaction in which the given jobs can be recorded as ended.

    A transaction that records steps waits for the lock of their workflow, and must then see what
    the previous holder of that lock has committed. So it is opened with ``deciding``.
    """
    if not connections[alias].in_atomic_block and any(map(is_step, job_ids)):
        return deciding(alias)
    return transaction.atomic(using=alias)


def end_waiting(settings: Settings, job_ids: Collection[UUID], reason: str) -> set[UUID]:
    """Cancel the jobs that wait in the store. Return their ids.

    The caller must not hold locks, because all code withdraws jobs before it locks workflows.
    """
    broker = broker_for(settings).store
    if broker is None:
        return set()  # there is no row of such a job to say how it ended

    def end() -> set[UUID]:
        with transaction_for(settings.database, job_ids):
            gone = broker.withdraw(list(job_ids))
            record_cancelled(settings, gone, reason)
        return gone

    return repeat_if_aborted(settings.database, end)


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


def record_taken_back(settings: Settings, jobs: Mapping[UUID, UUID], reason: str) -> None:
    """Record that requeues of failed jobs were withdrawn before they ran, in the open transaction.

    Their workflows return to the state after the failures. Hooks are not called again.

    Args:
        jobs: new job -> the failed job that it continued.
    """
    alias = settings.database
    engine_of(alias).finish_jobs(_endings(alias, list(jobs), reason))()
    ours = {job_id: failed for job_id, failed in jobs.items() if is_step(job_id)}
    if not ours:
        return
    stopped = Advance(settings).record(
        {job_id: Ended(job_id, Job.Status.FAILED, 0) for job_id in ours}
    )
    reassign(alias, ours)
    _withdraw_later(settings, stopped)


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
