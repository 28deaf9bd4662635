"""Deliveries and outcomes as plain tuples, for the sockets between the cluster's processes.

::

    pusher -> worker     ("jobs", [job, ...])             job = (number, permit, fields of the
                         ("recorded", [number, ...])             delivery)
                         ("unrecorded", [number, ...])
    worker -> pusher     ("hello", [(job, report or None), ...])
                         ("reports", [report, ...])       report = (number, started, finished,
                         ("skipped", [number, ...])                 worker id, outcome, task,
                         ("leaving",)                               enqueued)
                         ("logs", [chunk, ...])           chunk = (job id, attempt, lines)
    pusher -> monitor    ("reports", [(report, job without package), ...])
                                                          with it, where the store has none
                         ("last_reports", the same)       no worker has a job that is not reported
                         ("counted", the same)            outcomes that workers have recorded
                         ("logs", [chunk, ...])           as from the workers
    monitor -> pusher    ("recorded", [number, ...])

A job has the fields of its ``Delivery`` in their order, with its id as bytes and without its turn,
which only the pusher needs. The permit is the latest start of a job with a rate, in nanoseconds on
the lease clock, which all processes of a host share; 0 = it may start while its lease lasts. A job
for the monitor has in its place the time until which its lease is certainly valid, on the same
clock; 0 = unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from stoker.brokers.contract import Delivery, LeaseId
from stoker.cluster.board import lease_clock_ns
from stoker.jobs.outcomes import Attempted, Batch, Failed, open_outcome, pack_outcome
from stoker.store.engines import LARGE_BYTES
from stoker.values.ids import id_of

Job = tuple[int, int, bytes, LeaseId, bytes, str, int, int, int, int, float, str, float | None]
Report = tuple[int, float | None, float, str, tuple[Any, ...], str, float | None]
Reported = tuple[Report, Job]
RECORDED = ("recorded",)
"""Stands for the outcome in a report whose outcome the worker has already recorded."""
SUCCEEDED = ("succeeded", b"")
_new = tuple.__new__


def pack_job(number: int, delivery: Delivery, permit_ns: int = 0) -> Job:
    # By position, because names are slower and this runs for each job.
    return (number, permit_ns, delivery[0].int.to_bytes(16), *delivery[1:-1])


def pack_for_monitor(number: int, delivery: Delivery, valid_until_ns: int = 0) -> Job:
    """Pack a job for the monitor. Leave out its package if the store has a row for the job.
    Otherwise the job comes from a broker outside the store, and its lease id is a string."""
    job_id, lease_id = delivery[0].int.to_bytes(16), delivery[1]
    package = delivery[2] if isinstance(lease_id, str) else b""
    return (number, valid_until_ns, job_id, lease_id, package, *delivery[3:-1])


permit_of: Callable[[Job], int] = itemgetter(1)
id_bytes_of: Callable[[Job], bytes] = itemgetter(2)
lease_id_of: Callable[[Job], LeaseId] = itemgetter(3)
attempt_of: Callable[[Job], int] = itemgetter(7)


def is_over(permit_ns: int) -> bool:
    return 0 < permit_ns <= lease_clock_ns()


def open_job(job: Job) -> Delivery:
    # Faster than the constructor, which would only take the fields one by one.
    return _new(Delivery, (id_of(int.from_bytes(job[2])), *job[3:], None))


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
    """Return whether the worker has recorded the outcome itself, in the transaction of the task."""
    return report[4] == RECORDED


def outcome_bytes(report: Report) -> int:
    """Return the length of the value, the texts of the error, or the reason in a report."""
    (value,) = report[4][1:2] or (b"",)
    if isinstance(value, tuple):
        return sum(map(len, value))
    return len(value) if isinstance(value, bytes | str) else 0


def open_batch(reported: Sequence[Reported]) -> Batch:
    """Convert reports to a batch, which stores each field as a column."""
    reports, jobs = zip(*reported, strict=True)
    _, started_at, finished_at, worker_ids, outcomes, tasks, enqueued_at = zip(
        *reports, strict=True
    )
    _, valid_until_ns, job_ids, lease_ids, packages, queues, *rest = zip(*jobs, strict=True)
    priorities, attempts, crashes, _, _, refused, run_after = rest
    seen = {}
    if {outcome[0] for outcome in outcomes} == {"succeeded"}:  # nearly always
        values = [outcome[1] for outcome in outcomes]
    else:  # workers record only successes themselves
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
        run_after=run_after,
        worker_ids=worker_ids,
        started_at=started_at,
        finished_at=finished_at,
        tasks=tasks,
        enqueued_at=enqueued_at,
        values=values,
        valid_until_ns=valid_until_ns,
        seen=seen,
    )


def open_report(report: Report, job: Job) -> Attempted:
    """Return one report as an attempt."""
    return open_batch([(report, job)]).attempted(0)


def is_large(reported: Reported) -> bool:
    """Return whether the outcome has a value that the store or a broker may refuse for its size."""
    return len(getattr(open_report(*reported).outcome, "value", b"")) >= LARGE_BYTES


def as_failed(reported: Reported, failed: Failed) -> Reported:
    """Return the report with this failure as its outcome."""
    report, job = reported
    return (*report[:4], pack_outcome(failed), *report[5:]), job


def in_ascii(reported: Reported) -> Reported:
    """Return the report with escapes for all other characters in the texts of its outcome."""
    report, job = reported
    return (*report[:4], _ascii(report[4]), *report[5:]), job


def _ascii(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_ascii, value))
    return value.encode("ascii", "backslashreplace").decode() if isinstance(value, str) else value
