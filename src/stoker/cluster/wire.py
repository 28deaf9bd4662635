"""Deliveries and outcomes as plain tuples, for the sockets between the cluster's processes.

::

    pusher -> worker     ("jobs", [job, ...])             job = (number, job id, lease id, package,
                         ("recorded", [number, ...])             queue, priority, attempt, crashes,
                                                                 fence, refused, permit)
    worker -> pusher     ("hello", [(job, report or None), ...])
                         ("reports", [report, ...])       report = (number, started, finished,
                         ("skipped", [number, ...])                 worker id, outcome)
                         ("leaving",)
    pusher -> monitor    ("reports", [(report, job without package), ...])
                                                          with it, where the store has none
    monitor -> pusher    ("recorded", [number, ...])

A permit is when a job of a rate can be started at the latest: nanoseconds of this host's monotonic
clock, which all of its processes share; 0 = whenever its lease lasts.
"""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from stoker.brokers.base import Delivery
from stoker.lifecycle.outcomes import (
    KINDS,
    Attempted,
    Crashed,
    Failed,
    Fault,
    Outcome,
    Retry,
    Snoozed,
    Succeeded,
    TimedOut,
)

Job = tuple[int, bytes, int | str, bytes, str, int, int, int, int, str, int]
Report = tuple[int, float | None, float, str, tuple[Any, ...]]
RECORDED = ("recorded",)
"""Stands in a report for an outcome that needs no recording any more."""


def pack_job(
    number: int, delivery: Delivery, permit_ns: int = 0, *, with_package: bool = True
) -> Job:
    return (
        number,
        delivery.job_id.bytes,
        delivery.lease_id,
        delivery.package if with_package else b"",
        delivery.queue,
        delivery.priority,
        delivery.attempt,
        delivery.crashes,
        delivery.fence,
        delivery.refused,
        permit_ns,
    )


def pack_for_monitor(number: int, delivery: Delivery) -> Job:
    """Without the package, unless the job has no row yet: it comes from outside the store then, and
    its lease's id is a string."""
    return pack_job(number, delivery, with_package=isinstance(delivery.lease_id, str))


def permit_of(job: Job) -> int:
    return job[10]


def is_over(permit_ns: int) -> bool:
    return 0 < permit_ns <= time.monotonic_ns()


def open_job(job: Job) -> Delivery:
    _, job_id, lease_id, package, queue, priority, attempt, crashes, fence, refused, _ = job
    return Delivery(
        UUID(bytes=job_id),
        lease_id,
        package,
        queue,
        priority,
        attempt,
        crashes,
        fence,
        refused=refused,
    )


def pack_outcome(outcome: Outcome) -> tuple[Any, ...]:
    match outcome:
        case Succeeded(value):
            return ("succeeded", value)
        case Failed(fault, reason):
            return ("failed", _pack_fault(fault), reason)
        case Retry(fault, delay_seconds, reason):
            return ("retry", _pack_fault(fault), delay_seconds, reason)
        case Snoozed(delay_seconds, reason):
            return ("snoozed", delay_seconds, reason)
        case Crashed(detail, exit_code, signal):
            return ("crashed", detail, exit_code, signal)
        case TimedOut(detail, signal):
            return ("timed_out", detail, signal)
    return ("cancelled", outcome.reason)


def open_outcome(packed: tuple[Any, ...]) -> Outcome:
    kind, *values = packed
    if kind in ("failed", "retry"):
        values[0] = Fault(*values[0])
    outcome: Outcome = KINDS[kind](*values)
    return outcome


def pack_report(number: int, attempted: Attempted) -> Report:
    return (
        number,
        attempted.started_at,
        attempted.finished_at,
        attempted.worker_id,
        RECORDED if attempted.is_recorded else pack_outcome(attempted.outcome),
    )


def is_recorded(report: Report) -> bool:
    """Whether the worker has recorded it, in the transaction of the task."""
    return report[4] == RECORDED


def open_report(report: Report, job: Job) -> Attempted:
    _, started_at, finished_at, worker_id, outcome = report
    return Attempted(open_job(job), open_outcome(outcome), worker_id, started_at, finished_at)


def _pack_fault(fault: Fault) -> tuple[str, str, str, str]:
    return (fault.exception_class, fault.message, fault.traceback, fault.location)
