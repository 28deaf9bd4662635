"""The form in which Redis and its Lua scripts take and return jobs, leases and results.

A result is one value per job: the lease id and ``;``, a header, the names, the package, and the
return value. ``lua/finish.lua`` compares the lease id.
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Iterator, Sequence
from itertools import chain, groupby, islice, repeat
from typing import Any
from uuid import UUID

from stoker.brokers.contract import ClaimRequest, Delivery, Lease, LeaseId, Leases, due_in
from stoker.models import Job
from stoker.models.job import JobColumns, Message
from stoker.setting_values import Retention
from stoker.store.written import MICROSECONDS, microseconds, moment
from stoker.values.ids import id_of

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


def leasing(request: ClaimRequest, lease_id: str) -> list[Any]:
    """Return the arguments that all scripts that lease jobs begin with."""
    return [request.limit, lease_id, request.holder.hex, microseconds(request.lease_seconds)]


def waiting_values(message: Message) -> tuple[str, int, int | str]:
    """Return the values that Redis keeps of a waiting job: queue, rank and due time."""
    due = "" if message.run_after is None else microseconds(message.run_after)
    return message.queue, -message.priority, due


def named(leases: Sequence[Lease]) -> str:
    """Return the leases as a single script argument. One argument per lease would cost more time
    than the script needs."""
    columns = leases if isinstance(leases, Leases) else Leases.of(leases)
    ids = iter(columns.job_ids)
    runs = [(lease_id, len(list(run))) for lease_id, run in groupby(columns.lease_ids)]
    return "".join([f"{lease_id}:{''.join(islice(ids, count))};" for lease_id, count in runs])


def due_after(wait_us: int) -> float:
    """Return the monotonic time in ``wait_us`` microseconds; infinity for -1, if no job is
    deferred."""
    return due_in(None if wait_us < 0 else wait_us / MICROSECONDS, time.monotonic())


def deliveries(told: Sequence[bytes], lease_id: str) -> list[Delivery]:
    """Return the jobs of a claim, as ``lease`` in ``lua/common.lua`` returns them."""
    if not told:
        return []
    ids, runs, packages = told[0].decode(), json.loads(told[1]), told[2:]
    values = chain.from_iterable(repeat(equal, count) for *equal, count in runs)
    return [
        Delivery(
            id_of(int(ids[at : at + 32], 16)), lease_id, package, queue, -rank, attempt, crashes
        )
        for at, package, (queue, rank, attempt, crashes) in zip(
            range(0, len(ids), 32), packages, values, strict=True
        )
    ]


def delivery(row: Sequence[Any]) -> Delivery:
    job_id, package, queue, rank, attempts, crashes, lease_id = row
    return Delivery(
        UUID(job_id.decode()),
        lease_id.decode(),
        package,
        queue.decode(),
        -int(rank),
        int(attempts),
        int(crashes),
    )


def state(known: Sequence[Any]) -> str:
    if known[4]:
        return "running"
    return "deferred" if known[7] else "ready"


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
