"""Leases and jobs in the form in which the Lua scripts take and return them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import chain, groupby, islice, repeat
from typing import Any
from uuid import UUID

from stoker.brokers.contract import Delivery, Lease, Leases, due_in
from stoker.store.written import MICROSECONDS
from stoker.values.ids import id_of


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
