"""How leases are named to the scripts, and what they tell of jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from .base import Delivery, Lease


def named(leases: Sequence[Lease]) -> str:
    """In one argument: each of its own would cost more than what is done with it."""
    return "".join([f"{job_id.hex},{lease_id};" for job_id, lease_id in leases])


def deliveries(told: Sequence[bytes], lease_id: str) -> list[Delivery]:
    if not told:
        return []
    ids, queues, ranks, attempts, crashes = json.loads(told[0])
    return [
        Delivery(UUID(job_id), lease_id, package, queue, -rank, *counts)
        for job_id, package, queue, rank, *counts in zip(
            ids, told[1:], queues, ranks, attempts, crashes, strict=True
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
    return "deferred" if known[6] else "ready"
