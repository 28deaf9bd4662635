"""Jobs that belong to a cluster for now. ``(job_id, lease_id)`` is the lease; both must match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import models

from stoker.store.written import as_uuid

LeaseKey = tuple[UUID, int]
Claim = tuple[Any, ...]
"""What a claim leased: the fields of a ``Delivery``, in their order. A plain tuple, as the driver
gives it: there is one for each job."""


class Freed(NamedTuple):
    """What became of leases that were to end."""

    rows: Sequence[tuple[Any, ...]]
    """Job id as the driver returns it, lease id and number of guards of each lease that was valid.
    The others were not changed."""
    queues: set[str]
    """Where a blocked job's turn has come by it."""

    @property
    def valid(self) -> set[LeaseKey]:
        """The leases that were valid."""
        return {(as_uuid(row[0]), row[1]) for row in self.rows}


class Extended(NamedTuple):
    """What became of leases that were to last longer."""

    valid: set[LeaseKey]
    """Those that do."""
    locked: set[LeaseKey]
    """Those that are as they were: other transactions hold their rows."""


class Leasing(NamedTuple):
    """What the leases of one claim have in common."""

    lease_id: int
    holder: UUID
    lease_us: int


class GivenBack(NamedTuple):
    """One leased job on its way back, with the counts that the next claim shall find."""

    job_id: UUID
    lease_id: int
    delay_us: int
    attempts: int
    crashes: int


class Claimed(models.Model):
    job_id = models.UUIDField(primary_key=True)
    lease_id = models.BigIntegerField()
    """The fencing token: a fresh random number for every claim."""
    holder = models.UUIDField()
    """The cluster that holds the lease."""
    leased_until_us = models.BigIntegerField()
    """Microseconds since 1970 on the database's clock."""
    queue = models.CharField(max_length=100)
    rank = models.SmallIntegerField(default=0)
    attempts = models.SmallIntegerField(default=1)
    """Attempts used, this one included."""
    crashes = models.SmallIntegerField(default=0)
    guards = models.SmallIntegerField(default=0, db_default=0)

    class Meta:
        verbose_name = "claimed job"

    def __str__(self) -> str:
        return f"{self.queue} {self.job_id} held by {self.holder}"
