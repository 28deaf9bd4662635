"""Deliveries and outcomes as plain tuples, for the sockets between the cluster's processes.

::

    pusher -> worker     ("jobs", [job, ...])             job = (number, job id, lease id, package,
                         ("recorded", [number, ...])             queue, priority, attempt, crashes,
                         ("unrecorded", [number, ...])           fence, refused, permit,
                                                                 run after)
    worker -> pusher     ("hello", [(job, report or None), ...])
                         ("reports", [report, ...])       report = (number, started, finished,
                         ("skipped", [number, ...])                 worker id, outcome, task,
                         ("leaving",)                               enqueued)
    pusher -> monitor    ("reports", [(report, job without package), ...])
                                                          with it, where the store has none
                         ("counted", the same)            outcomes that workers have recorded
    monitor -> pusher    ("recorded", [number, ...])

A permit is the latest start of a job with a rate, in nanoseconds on the lease clock, which all
processes of a host share; 0 = while its lease lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from stoker.brokers.contract import Delivery
from stoker.jobs.outcomes import (
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
from stoker.models.job import Successes
from stoker.values.ids import id_of, is_unmarked

from .board import lease_clock_ns

Job = tuple[int, bytes, int | str, bytes, str, int, int, int, int, str, int, float | None]
Report = tuple[int, float | None, float, str, tuple[Any, ...], str, float | None]
Reported = tuple[Report, Job]
RECORDED = ("recorded",)
"""Replaces an outcome in a report if it needs no recording any more."""


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
        delivery.run_after,
    )


def pack_for_monitor(job: Job) -> Job:
    """Remove the package, unless the job comes from outside the store and has no row yet. Its lease
    id is a string then."""
    return job if isinstance(job[2], str) else (*job[:3], b"", *job[4:])


permit_of: Callable[[Job], int] = itemgetter(10)


def is_over(permit_ns: int) -> bool:
    return 0 < permit_ns <= lease_clock_ns()


def open_job(job: Job) -> Delivery:
    # By position: names take longer, and there is one for each job, here and in the monitor.
    return Delivery(id_of(int.from_bytes(job[1])), *job[2:9], 0.0, job[9], job[11])


def pack_outcome(outcome: Outcome) -> tuple[Any, ...]:
    if isinstance(outcome, Succeeded):  # nearly always
        return ("succeeded", outcome.value)
    match outcome:
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
    if kind == "succeeded":  # nearly always
        return Succeeded(*values)
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
        attempted.task,
        attempted.enqueued_at,
    )


def is_recorded(report: Report) -> bool:
    """Whether the worker has recorded it, in the transaction of the task."""
    return report[4] == RECORDED


def open_report(report: Report, job: Job) -> Attempted:
    _, started_at, finished_at, worker_id, packed, task, enqueued_at = report
    # Only what succeeds is recorded by the worker itself.
    outcome = Succeeded(b"") if is_recorded(report) else open_outcome(packed)
    return Attempted(
        open_job(job),
        outcome,
        worker_id,
        started_at,
        finished_at,
        task=task,
        enqueued_at=enqueued_at,
    )


def parted(reported: Sequence[Reported]) -> list[list[Reported]]:
    """Split reports into successes without consequences and the others, which are recorded
    differently."""
    plain: list[Reported] = []
    rest: list[Reported] = []
    for one in reported:
        report, job = one
        is_plain = report[4][0] == "succeeded" and is_unmarked(job[1])
        (plain if is_plain else rest).append(one)
    return [part for part in (plain, rest) if part]


def open_successes(reported: Sequence[Reported]) -> Successes | None:
    """Return these reports as columns if all are successes of jobs with a row in the store; else
    None."""
    reports, jobs = zip(*reported, strict=True)
    _, started_at, finished_at, worker_ids, outcomes, tasks, enqueued_at = zip(
        *reports, strict=True
    )
    if {outcome[0] for outcome in outcomes} != {"succeeded"} or not all(tasks):
        return None
    columns = tuple(zip(*jobs, strict=True))
    job_ids, lease_ids, packages, queues, attempts = (columns[at] for at in (1, 2, 3, 4, 6))
    if any(packages) or None in started_at or None in enqueued_at or len(set(job_ids)) < len(jobs):
        return None
    ids = [job_id.hex() for job_id in job_ids]
    values = [outcome[1] for outcome in outcomes]
    ends = (attempts, worker_ids, started_at, finished_at, values)
    return Successes(ids, lease_ids, *ends, queues, tasks, enqueued_at, columns[11])


def as_failed(reported: Reported, failed: Failed) -> Reported:
    """Return the report with this failure as its outcome."""
    report, job = reported
    return (*report[:4], pack_outcome(failed), *report[5:]), job


def _pack_fault(fault: Fault) -> tuple[str, str, str, str]:
    return (fault.exception_class, fault.message, fault.traceback, fault.location)
