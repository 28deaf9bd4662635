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
processes of a host share; 0 = while its lease lasts. On the way to the monitor its place is taken
by the moment until which the lease is known to be valid, on the same clock; 0 = not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from stoker.brokers.contract import Delivery
from stoker.cluster.board import lease_clock_ns
from stoker.jobs.outcomes import Attempted, Batch, Failed, open_outcome, pack_outcome
from stoker.values.ids import id_of

Job = tuple[int, bytes, int | str, bytes, str, int, int, int, int, str, int, float | None]
Report = tuple[int, float | None, float, str, tuple[Any, ...], str, float | None]
Reported = tuple[Report, Job]
RECORDED = ("recorded",)
"""Replaces an outcome in a report if it needs no recording any more."""
SUCCEEDED = ("succeeded", b"")


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


def pack_for_monitor(job: Job, valid_until_ns: int = 0) -> Job:
    """Remove the package, unless the job comes from outside the store and has no row yet. Its lease
    id is a string then. In place of the permit stands how long its lease is valid.

    Args:
        job: as the worker got it.
        valid_until_ns: until when its lease is known to be valid, on the lease clock; 0 = unknown.
    """
    package = job[3] if isinstance(job[2], str) else b""
    return (*job[:3], package, *job[4:10], valid_until_ns, job[11])


permit_of: Callable[[Job], int] = itemgetter(10)


def is_over(permit_ns: int) -> bool:
    return 0 < permit_ns <= lease_clock_ns()


def open_job(job: Job) -> Delivery:
    # By position: names take longer, and there is one for each job, here and in the monitor.
    return Delivery(id_of(int.from_bytes(job[1])), *job[2:9], 0.0, job[9], job[11])


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


def open_batch(reported: Sequence[Reported]) -> Batch:
    """Return these reports as columns."""
    reports, jobs = zip(*reported, strict=True)
    _, started_at, finished_at, worker_ids, outcomes, tasks, enqueued_at = zip(
        *reports, strict=True
    )
    columns = tuple(zip(*jobs, strict=True))
    _, job_ids, lease_ids, packages, queues, priorities, attempts, crashes, _, refused = columns[
        :10
    ]
    seen = {}
    if {outcome[0] for outcome in outcomes} == {"succeeded"}:  # nearly always
        values = [outcome[1] for outcome in outcomes]
    else:  # only what succeeds is recorded by the worker itself
        packed = [SUCCEEDED if one == RECORDED else one for one in outcomes]
        seen = {at: open_outcome(one) for at, one in enumerate(packed) if one[0] != "succeeded"}
        values = [one[1] if one[0] == "succeeded" else None for one in packed]
    return Batch(
        job_ids=[job_id.hex() for job_id in job_ids],
        lease_ids=lease_ids,
        packages=packages,
        queues=queues,
        priorities=priorities,
        attempts=attempts,
        crashes=crashes,
        refused=refused,
        run_after=columns[11],
        worker_ids=worker_ids,
        started_at=started_at,
        finished_at=finished_at,
        tasks=tasks,
        enqueued_at=enqueued_at,
        values=values,
        valid_until_ns=columns[10],
        seen=seen,
    )


def open_report(report: Report, job: Job) -> Attempted:
    """Return one report as an attempt."""
    return open_batch([(report, job)]).attempted(0)


def as_failed(reported: Reported, failed: Failed) -> Reported:
    """Return the report with this failure as its outcome."""
    report, job = reported
    return (*report[:4], pack_outcome(failed), *report[5:]), job
