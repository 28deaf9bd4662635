"""What becomes of a job that is claimed and cannot be run."""

from __future__ import annotations

import time

from django.db import InterfaceError, OperationalError

from stoker.brokers.base import Delivery
from stoker.conf import Settings
from stoker.exceptions import NewerVersion, UnknownTask
from stoker.package import Package

from . import outcomes
from .faults import fault_of, plain_fault
from .outcomes import Outcome
from .retries import crash_delay_seconds

UNKNOWN_TASK_DELAYS_SECONDS = (2.0, 5.0, 15.0, 30.0, 60.0)
"""How long a job whose task is not known here is put back for, the longer the older it is."""

UNREAD_DELAY_SECONDS = 5.0
"""How long a job is put back for that could not be prepared, as the store was out of reach."""


def unopened(
    settings: Settings, error: Exception, enqueued_at: float | None, delivery: Delivery
) -> Outcome:
    """Of a job that this worker can't open or doesn't know. During a rolling deploy another cluster
    may: within the grace period it is put back."""
    reason = "unknown_task" if isinstance(error, UnknownTask) else "unreadable"
    if isinstance(error, UnknownTask | NewerVersion):
        since = enqueued_at or _moment_of(delivery)
        age_seconds = max(0.0, time.time() - since)
        if age_seconds < settings.unknown_task_grace_seconds:
            step = min(int(age_seconds // 30), len(UNKNOWN_TASK_DELAYS_SECONDS) - 1)
            return outcomes.Snoozed(UNKNOWN_TASK_DELAYS_SECONDS[step], str(error))
    return outcomes.Failed(fault_of(error), reason)


def unprepared(error: Exception, package: Package, delivery: Delivery) -> Outcome:
    """Of a job whose attempt failed before its task was called."""
    if isinstance(error, OperationalError | InterfaceError):
        return outcomes.Snoozed(UNREAD_DELAY_SECONDS, "what it is given could not be read")
    fault = fault_of(error)
    if delivery.attempt >= package.options.max_attempts:
        return outcomes.Failed(fault)
    return outcomes.Retry(fault, crash_delay_seconds(delivery.attempt))


def expired(late_seconds: float) -> Outcome:
    """Of a job that was to be started earlier or not at all."""
    fault = plain_fault(TimeoutError, f"the job expired {late_seconds:.1f} s before it could start")
    return outcomes.Failed(fault, "expired")


def _moment_of(delivery: Delivery) -> float:
    """When the job was made, in seconds since 1970: the first 48 bits of its id (RFC 9562)."""
    return (delivery.job_id.int >> 80) / 1000
