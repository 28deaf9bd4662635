"""The contract's values as the models have them, and the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from stoker.models.claimed import Claim, GivenBack
from stoker.models.clock import microseconds

from .base import Delivery, Lease, Return


def delivery(row: Claim, lease_id: int) -> Delivery:
    return Delivery(
        row.job_id,
        lease_id,
        bytes(row.package),
        row.queue,
        -row.rank,
        row.attempts,
        row.crashes,
        row.fence,
        row.permit_seconds,
        row.refused,
    )


def lease_keys(leases: Sequence[Lease]) -> list[tuple[UUID, int]]:
    return [(lease.job_id, int(lease.lease_id)) for lease in leases]


def given_back(returns: Sequence[Return]) -> list[GivenBack]:
    return [
        GivenBack(
            back.lease.job_id,
            int(back.lease.lease_id),
            microseconds(back.delay_seconds),
            back.attempts,
            back.crashes,
        )
        for back in returns
    ]
