"""Tell signals, reporters and the log about recorded outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from stoker.compat import task_backends
from stoker.conf import Settings
from stoker.dead_letters.policy import tell_task
from stoker.models import DeadLetter, Job
from stoker.signals import call_project, dead_lettered, post_execute, tell
from stoker.store.transactions import after_commit
from stoker.workflows.hooks import About

from . import outcomes
from .batch import Batch, Verdict
from .failures import tell_failure
from .outcomes import Failed, Fault
from .received import result_about


def announce(settings: Settings, batch: Batch, entries: Sequence[DeadLetter]) -> None:
    """Send signals and log events for the outcomes of these attempts and for new dead letters."""
    for verdict in batch.verdicts(batch.decided):
        if isinstance(verdict.attempted.outcome, outcomes.Crashed | outcomes.TimedOut):
            tell_failure(settings, replace(verdict.attempted, outcome=verdict.outcome))
        if isinstance(verdict.outcome, outcomes.Snoozed):
            tell(
                "put_back",
                job_id=verdict.lease.job_id,
                task=verdict.attempted.task,
                attempt=verdict.attempted.delivery.attempt,
                seconds=verdict.outcome.delay_seconds,
                reason=verdict.outcome.reason,
            )
    if post_execute.receivers:
        _tell_those_who_listen(settings, batch.over().verdicts())
    if not entries:
        return
    sender = type(task_backends[settings.alias])
    for entry in entries:
        tell(
            "dead_lettered",
            job_id=entry.job_id,
            task=entry.task or "an unknown task",
            attempts=entry.attempts,
            reason=entry.reason,
        )
        send = partial(dead_lettered.send_robust, sender, dead_letter=entry)
        if dead_lettered.receivers:
            call_project("signal dead_lettered", send)
        tell_task(entry)


def _tell_those_who_listen(settings: Settings, over: Sequence[Verdict]) -> None:
    """Send ``post_execute`` for finished jobs, after the commit of an open transaction."""
    if over:
        send = partial(_send, settings, over)
        after_commit(settings.database, send)


def _send(settings: Settings, over: Sequence[Verdict]) -> None:
    for verdict in over:
        call_project("signal post_execute", partial(_send_one, settings, verdict))


def _send_one(settings: Settings, verdict: Verdict) -> None:
    sender = type(task_backends[settings.alias])
    result = result_about(settings, _about(settings, verdict))
    post_execute.send_robust(sender, task_result=result, outcome=verdict.outcome)


def _about(settings: Settings, verdict: Verdict) -> About:
    outcome, delivery = verdict.outcome, verdict.attempted.delivery
    status, value, fault = Job.Status.CANCELLED, None, Fault("", "", "")
    if isinstance(outcome, outcomes.Succeeded):
        status, value = Job.Status.SUCCESSFUL, outcome.value
    elif isinstance(outcome, Failed):
        status, fault = Job.Status.FAILED, outcome.fault
    task = _task_of(settings, verdict)
    told = (fault.exception_class, fault.message)
    return About(delivery.job_id, task, status.value, value, *told, delivery.attempt)


def _task_of(settings: Settings, verdict: Verdict) -> str:
    jobs = Job.objects.using(settings.database).filter(pk=verdict.lease.job_id)
    return jobs.values_list("task", flat=True).first() or ""
