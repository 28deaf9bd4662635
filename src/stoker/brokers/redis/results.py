"""Results that Redis keeps: one value per job.

A value is the lease id and ``;``, a header, the names, the package, and the return value.
``lua/finish.lua`` compares the lease id.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from uuid import UUID

from stoker.brokers.contract import LeaseId
from stoker.models import Job
from stoker.models.job import JobColumns
from stoker.setting_values import Retention
from stoker.store.written import microseconds, moment

MOST_RESULTS = 1_000_000
"""The largest number of results if ``successful_count`` does not set it."""
LOAD_BYTES = 16 << 20
"""The server takes a larger command in more time than a call has, or refuses it."""
FOREVER_SECONDS = 100 * 365 * 86400.0
HEADER = struct.Struct(">hhdddII")
"""Priority, attempts, times of enqueue, start and end (NaN = unknown), and the lengths of the names
and the package."""
NUL = "\0"
"""Separates the names of task, queue and worker, because no name contains it."""


def limits(kept: Retention, *, are_kept: bool) -> tuple[int, int]:
    """Return how long results are kept, in microseconds (-1 = not at all), and how many at most."""
    seconds = kept.successful_seconds
    keep_us = microseconds(FOREVER_SECONDS if seconds is None else seconds)
    return keep_us if are_kept else -1, kept.successful_count or MOST_RESULTS


def encoded(jobs: JobColumns, lease_ids: Sequence[LeaseId]) -> list[bytes]:
    """Return the result of each job as Redis keeps it."""
    named = zip(jobs.tasks, jobs.queues, jobs.worker_ids, strict=True)
    names = [NUL.join(some).encode() for some in named]
    headers = map(
        HEADER.pack,
        jobs.priorities,
        jobs.attempts,
        [moment or 0.0 for moment in jobs.enqueued_at],
        [math.nan if moment is None else moment for moment in jobs.started_at],
        jobs.finished_at,
        map(len, names),
        map(len, jobs.packages),
    )
    heads = [f"{lease_id};".encode() for lease_id in lease_ids]
    values = [value or b"" for value in jobs.values]
    rows = zip(heads, headers, names, jobs.packages, values, strict=True)
    return list(map(b"".join, rows))


def result_loads(results: Sequence[bytes], jobs: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the stop of each load of jobs whose results fit in one command. Without
    results, that is all jobs."""
    start, load_bytes = 0, 0
    for place, result in enumerate(results):
        load_bytes += len(result)
        if load_bytes > LOAD_BYTES and place > start:
            yield start, place
            start, load_bytes = place, len(result)
    if start < jobs:
        yield start, jobs


def decoded(job_id: UUID, data: bytes) -> Job:
    """Return the job of a value that ``encoded`` made. It is not saved.

    Raises:
        ValueError: another program wrote the value.
    """
    try:
        at = data.index(b";") + 1
        priority, attempts, *times, of_names, of_package = HEADER.unpack_from(data, at)
        names_at = at + HEADER.size
        package_at = names_at + of_names
        value_at = package_at + of_package
        task, queue, worker_id = data[names_at:package_at].decode().split(NUL)
        enqueued_at, started_at, finished_at = times
        return Job(
            pk=job_id,
            task=task,
            queue=queue,
            priority=priority,
            package=data[package_at:value_at],
            enqueued_at=moment(enqueued_at),
            status=Job.Status.SUCCESSFUL,
            attempts=attempts,
            worker_id=worker_id,
            started_at=None if math.isnan(started_at) else moment(started_at),
            finished_at=moment(finished_at),
            value=data[value_at:],
        )
    except (struct.error, OverflowError) as error:
        raise ValueError(f"The result of job {job_id} in Redis is damaged: {error}") from error
