"""The contract's values as the models have them, and the other way round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from stoker.models.claimed import Claim, GivenBack
from stoker.models.clock import microseconds

from .base import Delivery, Lease, Return


def deliveries_of(claims: Iterable[Claim], lease_id: int) -> list[Delivery]:
    """With this one object for the lease id: so it is sent to a worker only once."""
    return [
        Delivery(job_id, lease_id, bytes(package), *rest) for job_id, _, package, *rest in claims
    ]


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
