"""Decide the outcome of an exception: retry the job, and when, or end it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.db import InterfaceError, OperationalError

from stoker.brokers.contract import Delivery
from stoker.conf import Settings
from stoker.exceptions import (
    BadSignature,
    Cancel,
    NewerVersion,
    ResultNotKept,
    Retry,
    Snooze,
    TaskTimeout,
    UnknownTask,
    UnreadableHere,
    WorkflowNotFound,
    as_seconds,
)
from stoker.jobs.outcomes import Outcome, Verdict
from stoker.models import Cluster, Wait
from stoker.models.wait import NewWait
from stoker.store.transactions import may_pass
from stoker.store.written import MICROSECONDS, microseconds
from stoker.tasks.backoff import exponential
from stoker.tasks.options import LONGEST_DELAY_SECONDS, TaskOptions, error_classes
from stoker.tasks.registry import find_task
from stoker.values.text import stored_text

from . import outcomes
from .faults import MESSAGE_LIMIT, Fault, fault_of, plain_fault
from .package import JobOptions, Package, sealer_for

ErrorClasses = tuple[type[BaseException], ...]

logger = logging.getLogger("stoker")

UNREACHABLE_DELAY_SECONDS = 5.0
"""Delay in seconds before the next attempt of a job that could not be prepared, or recorded in its
own transaction, because the store or the broker was unreachable."""
CRASH_DELAY_CAP_SECONDS = 600.0
UNKNOWN_TASK_DELAYS_SECONDS = (2.0, 5.0, 15.0, 30.0, 60.0)
"""Delays of a job whose task is unknown here. They grow with the time since it was first unknown.
"""
UNKNOWN_TASK_WAIT = "for a newer cluster"
"""Name of the wait of a job whose task, or whose format, was unknown to a cluster."""
OTHER_KEY_WAIT = "for a cluster with its key"
"""Name of the wait of a job whose signature a cluster could not verify, while another one has
another SECRET_KEY."""


def decide(
    error: BaseException, options: TaskOptions, attempt: int, result: Any
) -> outcomes.Outcome:
    """Return the outcome of an attempt that raised.

    Args:
        error: the exception.
        options: the task's options in force.
        attempt: number of the attempt, from 1.
        result: the TaskResult to pass to the task's ``backoff``.
    """
    if isinstance(error, Cancel):
        return outcomes.Cancelled(stored_text(error.reason, MESSAGE_LIMIT))
    if isinstance(error, Snooze):
        snoozed_seconds = min(error.delay_seconds, LONGEST_DELAY_SECONDS)
        return outcomes.Snoozed(snoozed_seconds, stored_text(error.reason, MESSAGE_LIMIT))
    fault = fault_of(error)
    reason = "timeout" if isinstance(error, TaskTimeout) else "error"
    if is_out_of_attempts(options, attempt) or not _is_retryable(error, options):
        return outcomes.Failed(fault, reason)
    delay_seconds = _delay(error, options, result)
    if delay_seconds is None:
        return outcomes.Failed(fault, reason)
    return outcomes.Retried(fault, min(delay_seconds, LONGEST_DELAY_SECONDS), reason)


def is_out_of_attempts(
    options: JobOptions | TaskOptions | Settings, attempt: int, crashes: int = 0
) -> bool:
    """Return whether a job may not be retried after this attempt.

    Args:
        options: of the job or its task, or the settings.
        attempt: which attempt this was, from 1.
        crashes: number of attempts during which the worker died, including this one.
    """
    return attempt >= options.max_attempts or 0 < crashes >= options.max_crashes


def _is_retryable(error: BaseException, options: TaskOptions) -> bool:
    if isinstance(error, Retry):
        return True
    return _is_listed(error, options.retry_on, options.give_up_on)


def _is_listed(error: BaseException, retry_on: ErrorClasses, give_up_on: ErrorClasses) -> bool:
    """Return whether the options ``retry_on`` and ``give_up_on`` allow a retry after an error."""
    if isinstance(error, give_up_on):
        return False
    return not retry_on or isinstance(error, retry_on)


def _delay(error: BaseException, options: TaskOptions, result: Any) -> float | None:
    if isinstance(error, Retry) and error.delay_seconds is not None:
        return error.delay_seconds
    try:
        delay: float | timedelta | None = options.backoff(error, result)
        return None if delay is None else as_seconds(delay)
    except Exception:
        logger.exception("The backoff of a task raised; the default backoff is used instead.")
        return as_seconds(exponential()(error, result) or 0)


def crash_delay_seconds(times: int) -> float:
    """Return the delay in seconds after a crash. The task's own ``backoff`` needs an exception, and
    a crash has none."""
    return min(CRASH_DELAY_CAP_SECONDS, float(2 ** min(times, 20)))


def decide_killed(fault: Fault, options: JobOptions | Settings, attempt: int, task: Any) -> Outcome:
    """Return the outcome of an attempt whose worker was killed at the hard time-out.

    Args:
        fault: the kill, as it is recorded.
        options: of the job, or the settings if its package cannot be opened.
        attempt: which attempt this was, from 1.
        task: the task, whose ``retry_on`` and ``give_up_on`` apply to ``TaskTimeout``, as after the
            soft time-out. None = it is unknown here.
    """
    retry_on, give_up_on = (
        error_classes(name, getattr(task, name, None) or ()) for name in ("retry_on", "give_up_on")
    )
    is_last = is_out_of_attempts(options, attempt)
    is_last = is_last or not _is_listed(TaskTimeout(), retry_on, give_up_on)
    return _retry_unless(is_last, fault, "timeout", attempt)


def decide_crashed(
    seen: outcomes.Crashed,
    fault: Fault,
    options: JobOptions | Settings,
    attempt: int,
    crashes: int,
    has_not_begun: Callable[[], bool],
) -> Outcome:
    """Return the outcome of an attempt whose worker crashed.

    Args:
        seen: how the worker ended.
        fault: the same, as it is recorded.
        options: of the job, or the settings if its package cannot be opened.
        attempt: which attempt this was, from 1.
        crashes: number of attempts during which the worker died, including this one.
        has_not_begun: returns whether the task has ``at_most_once`` and has not been called. It is
            called only if needed, because it queries the store.
    """
    if not seen.has_begun and crashes < options.max_crashes:
        return outcomes.Snoozed(crash_delay_seconds(crashes), f"it had not begun: {seen.detail}")
    is_last = is_out_of_attempts(options, attempt, crashes)
    # A package that kills the process that opens it never begins. Its crashes still count.
    if is_last and crashes < options.max_crashes and has_not_begun():
        return outcomes.Snoozed(0.0, "its cluster is gone, and it had not begun")
    return _retry_unless(is_last, fault, "crash", crashes)


def import_task(path: str, seen: Outcome) -> Any:
    """Import the module of a failed job's task, so that its options are known in this process, too.
    Return the task, or None if it was not imported or is unknown.

    Import it only if a worker has imported it before without dying. Otherwise the import may be
    what failed: it would end or hang the monitor as well, again and again. Nothing is known about
    the worker of a cluster that is gone.
    """
    match seen:
        case outcomes.TimedOut() | outcomes.Failed(_, "error" | "timeout"):
            has_imported = True
        case outcomes.Crashed(_, exit_code, number, has_begun):
            has_imported = has_begun and (exit_code, number) != (None, None)
        case _:
            has_imported = False
    if has_imported:
        with suppress(UnknownTask):
            return find_task(path)
    return None


def _retry_unless(is_last: bool, fault: Fault, reason: str, times: int) -> Outcome:
    if is_last:
        return outcomes.Failed(fault, reason)
    return outcomes.Retried(fault, crash_delay_seconds(times), reason)


def unopened(settings: Settings, error: Exception, delivery: Delivery) -> Outcome:
    """Return the outcome for a job that this worker cannot open or whose task it does not know.

    If another cluster may be able to run it, as during a rolling deploy, the job is released within
    the grace period. The period begins when a cluster first could not run the job, because the job
    may have been deferred since long before the deploy.
    """
    reason = "unknown_task" if isinstance(error, UnknownTask) else "unreadable"
    try:
        wait = _wait_for_another(settings, error)
        seconds = _waited_seconds(settings, delivery, wait) if wait else 0.0
    except (OperationalError, InterfaceError):
        wait, seconds = UNKNOWN_TASK_WAIT, 0.0
    if wait and seconds < settings.unknown_task_grace_seconds:
        step = min(int(seconds // 30), len(UNKNOWN_TASK_DELAYS_SECONDS) - 1)
        return outcomes.Snoozed(UNKNOWN_TASK_DELAYS_SECONDS[step], str(error), wait)
    return outcomes.Failed(fault_of(error), reason)


def _wait_for_another(settings: Settings, error: Exception) -> str:
    """Return the name of the job's wait for another cluster; "" = no other can run it, either.

    Anyone can write a package with a wrong signature. Such a job waits only if there is a cluster
    whose key is unknown here, so that forged packages are dead letters at once.
    """
    if isinstance(error, UnknownTask | NewerVersion | UnreadableHere):
        return UNKNOWN_TASK_WAIT
    if not isinstance(error, BadSignature):
        return ""
    clusters = Cluster.objects.using(settings.database).alive_within(settings.lease_seconds)
    ours = clusters.filter(name=settings.cluster, info__alias=settings.alias)
    keys = {key for key in ours.values_list("info__key", flat=True) if key}
    return OTHER_KEY_WAIT if keys.difference(sealer_for(settings).key_ids) else ""


def _waited_seconds(settings: Settings, delivery: Delivery, wait: str) -> float:
    """Return for how long a job has waited for another cluster before this attempt; 0 = it has
    not."""
    waits = Wait.objects.using(settings.database).filter(
        job_id=delivery.job_id,
        attempts=delivery.attempt - 1,
        kind=Wait.Kind.PUT_BACK,
        name=wait,
    )
    began_us = waits.values_list("began_us", flat=True).first()
    return 0.0 if began_us is None else max(0.0, time.time() - began_us / MICROSECONDS)


def note_snoozes(alias: str, snoozed: Sequence[Verdict]) -> None:
    """Record the waits of jobs that were snoozed or released, in the open transaction. If a worker
    had found the job's task, an earlier wait for another cluster is over: the grace period begins
    anew if the job has to wait for one again."""
    waits = Wait.objects.using(alias)
    found = [
        one.lease.job_id
        for one in snoozed
        if one.attempted.task and _has_found_task(one.attempted.outcome)
    ]
    if found:
        waits.unname(found, (UNKNOWN_TASK_WAIT, OTHER_KEY_WAIT))
    waits.add(map(_wait_of, snoozed))


def _has_found_task(reported: Outcome) -> bool:
    """Return whether a worker that snoozed a job had found its task."""
    return isinstance(reported, outcomes.Snoozed) and not reported.wait


def _wait_of(verdict: Verdict) -> NewWait:
    """Return the wait of a job that was snoozed or released. It includes the time of the attempt,
    which does not count."""
    attempted, outcome = verdict.attempted, verdict.outcome
    assert isinstance(outcome, outcomes.Snoozed)
    began_at = attempted.finished_at
    if attempted.started_at is not None:
        began_at = min(attempted.started_at, began_at)
    seconds = attempted.finished_at - began_at + outcome.delay_seconds
    attempts = attempted.delivery.attempt - 1
    waited = (microseconds(began_at), microseconds(seconds))
    return NewWait(verdict.lease.job_id, attempts, Wait.Kind.PUT_BACK, outcome.wait, *waited)


def unprepared(error: Exception, package: Package, delivery: Delivery) -> Outcome:
    """Return the outcome for an attempt that failed before its task was called."""
    if may_pass(error):
        reason = "the database was not available, so the task was not called"
        return outcomes.Snoozed(UNREACHABLE_DELAY_SECONDS, reason)
    fault = fault_of(error)
    is_permanent = isinstance(error, ResultNotKept | WorkflowNotFound)
    if is_permanent or is_out_of_attempts(package.options, delivery.attempt):
        return outcomes.Failed(fault)
    return outcomes.Retried(fault, crash_delay_seconds(delivery.attempt))


def expired(late_seconds: float) -> Outcome:
    """Return the outcome for a job whose ``expires`` has passed."""
    fault = plain_fault(TimeoutError, f"the job expired {late_seconds:.1f} s before it could start")
    return outcomes.Failed(fault, "expired")
