"""Decide the outcome of an exception: retry the job, and when, or end it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.db import InterfaceError, OperationalError

from stoker.brokers.contract import Delivery
from stoker.conf import Settings
from stoker.exceptions import (
    Cancel,
    NewerVersion,
    ResultNotKept,
    Retry,
    Snooze,
    TaskTimeout,
    UnknownTask,
    WorkflowNotFound,
    as_seconds,
)
from stoker.jobs.outcomes import Outcome
from stoker.models import Wait
from stoker.store.transactions import may_pass
from stoker.store.written import MICROSECONDS
from stoker.tasks.backoff import exponential
from stoker.tasks.options import TaskOptions
from stoker.tasks.registry import find_task
from stoker.values.text import stored_text

from . import outcomes
from .faults import MESSAGE_LIMIT, Fault, fault_of, plain_fault
from .package import JobOptions, Package

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
        return outcomes.Snoozed(error.delay_seconds, stored_text(error.reason, MESSAGE_LIMIT))
    fault = fault_of(error)
    reason = "timeout" if isinstance(error, TaskTimeout) else "error"
    if is_out_of_attempts(options, attempt) or not _is_retryable(error, options):
        return outcomes.Failed(fault, reason)
    delay_seconds = _delay(error, options, result)
    if delay_seconds is None:
        return outcomes.Failed(fault, reason)
    return outcomes.Retried(fault, delay_seconds, reason)


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
    if options.give_up_on and isinstance(error, options.give_up_on):
        return False
    return not options.retry_on or isinstance(error, options.retry_on)


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


def decide_unseen(
    seen: outcomes.Crashed | outcomes.TimedOut,
    fault: Fault,
    options: JobOptions | Settings,
    attempt: int,
    crashes: int,
    has_not_begun: Callable[[], bool],
) -> Outcome:
    """Return the outcome of an attempt whose worker crashed or was killed.

    Args:
        seen: how the worker ended.
        fault: the same, as it is recorded.
        options: of the job, or the settings if its package cannot be opened.
        attempt: which attempt this was, from 1.
        crashes: number of attempts during which the worker died, including this one.
        has_not_begun: returns whether the task has ``at_most_once`` and has not been called. It is
            called only if needed, because it queries the store.
    """
    if isinstance(seen, outcomes.TimedOut):
        is_last = is_out_of_attempts(options, attempt)
        return _retry_unless(is_last, fault, "timeout", attempt)
    if not seen.has_begun and crashes < options.max_crashes:
        return outcomes.Snoozed(crash_delay_seconds(crashes), f"it had not begun: {seen.detail}")
    is_last = is_out_of_attempts(options, attempt, crashes)
    # A package that kills the process that opens it never begins. Its crashes still count.
    if is_last and crashes < options.max_crashes and has_not_begun():
        return outcomes.Snoozed(0.0, "its cluster is gone, and it had not begun")
    return _retry_unless(is_last, fault, "crash", crashes)


def import_task(path: str, seen: Outcome) -> None:
    """Import the module of a failed job's task, so that its options are known in this process, too.

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
            find_task(path)


def _retry_unless(is_last: bool, fault: Fault, reason: str, times: int) -> Outcome:
    if is_last:
        return outcomes.Failed(fault, reason)
    return outcomes.Retried(fault, crash_delay_seconds(times), reason)


def unopened(settings: Settings, error: Exception, delivery: Delivery) -> Outcome:
    """Return the outcome for a job that this worker cannot open or whose task it does not know.

    During a rolling deploy another cluster may know the task, so within the grace period the job is
    released. The period begins when a cluster first did not know the task, because the job may have
    been deferred since long before the deploy.
    """
    reason = "unknown_task" if isinstance(error, UnknownTask) else "unreadable"
    if isinstance(error, UnknownTask | NewerVersion):
        seconds = _unknown_seconds(settings, delivery)
        if seconds < settings.unknown_task_grace_seconds:
            step = min(int(seconds // 30), len(UNKNOWN_TASK_DELAYS_SECONDS) - 1)
            delay_seconds = UNKNOWN_TASK_DELAYS_SECONDS[step]
            return outcomes.Snoozed(delay_seconds, str(error), UNKNOWN_TASK_WAIT)
    return outcomes.Failed(fault_of(error), reason)


def _unknown_seconds(settings: Settings, delivery: Delivery) -> float:
    """Return for how long the task of a job has been unknown before this attempt; 0 = it was not,
    or the store cannot be reached."""
    waits = Wait.objects.using(settings.database).filter(
        job_id=delivery.job_id,
        attempts=delivery.attempt - 1,
        kind=Wait.Kind.PUT_BACK,
        name=UNKNOWN_TASK_WAIT,
    )
    try:
        began_us = waits.values_list("began_us", flat=True).first()
    except (OperationalError, InterfaceError):
        return 0.0
    return 0.0 if began_us is None else max(0.0, time.time() - began_us / MICROSECONDS)


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
