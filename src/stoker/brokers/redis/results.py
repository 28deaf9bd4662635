"""Results that Redis keeps: one value per job.

A value is the lease id and ``;``, a header, a line of JSON, the package, and the return value.
``lua/finish.lua`` compares the lease id.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from uuid import UUID

from stoker.brokers.contract import LeaseId
from stoker.models import Job
from stoker.models.job import JobColumns
from stoker.setting_values import Retention
from stoker.store.written import microseconds, moment

MOST_RESULTS = 1_000_000
"""The largest number of results if ``successful_count`` does not set it."""
FOREVER_SECONDS = 100 * 365 * 86400.0
HEADER = struct.Struct(">II")
"""Length of the JSON and of the package."""


def limits(kept: Retention, *, are_kept: bool) -> tuple[int, int]:
    """Return for how many microseconds results are kept (-1: not at all), and how many."""
    seconds = kept.successful_seconds
    keep_us = microseconds(FOREVER_SECONDS if seconds is None else seconds)
    return keep_us if are_kept else -1, kept.successful_count or MOST_RESULTS


def encoded(jobs: JobColumns, lease_ids: Sequence[LeaseId]) -> list[bytes]:
    """Return the result of each job as Redis keeps it."""
    details = zip(
        jobs.tasks,
        jobs.queues,
        jobs.priorities,
        jobs.enqueued_at,
        jobs.attempts,
        jobs.worker_ids,
        jobs.started_at,
        jobs.finished_at,
        strict=True,
    )
    found = []
    for lease_id, detail, package, value in zip(
        lease_ids, details, jobs.packages, jobs.values, strict=True
    ):
        line = json.dumps(detail).encode()
        header = HEADER.pack(len(line), len(package))
        found.append(b"".join((f"{lease_id};".encode(), header, line, package, value or b"")))
    return found


def decoded(job_id: UUID, data: bytes) -> Job:
    """Return the job of a value that ``encoded`` made. It is not saved.

    Raises:
        ValueError: another program wrote the value.
    """
    try:
        _, _, rest = data.partition(b";")
        of_line, of_package = HEADER.unpack_from(rest)
        package_at = HEADER.size + of_line
        value_at = package_at + of_package
        line = json.loads(rest[HEADER.size : package_at])
        task, queue, priority, enqueued_at, attempts, worker_id, started_at, finished_at = line
        return Job(
            pk=job_id,
            task=task,
            queue=queue,
            priority=priority,
            package=rest[package_at:value_at],
            enqueued_at=moment(enqueued_at or 0.0),
            status=Job.Status.SUCCESSFUL,
            attempts=attempts,
            worker_id=worker_id,
            started_at=None if started_at is None else moment(started_at),
            finished_at=moment(finished_at),
            value=rest[value_at:],
        )
    except (struct.error, TypeError) as error:
        raise ValueError(f"The result of job {job_id} in Redis is damaged: {error}") from error
