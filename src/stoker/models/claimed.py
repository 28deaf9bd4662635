"""Jobs leased to a cluster. ``(job_id, lease_id)`` identifies a lease; both must match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import models

from .ready import HotRow

LeaseKey = tuple[UUID, int]
Claim = tuple[Any, ...]
"""Result row of a claim: the fields of a ``Delivery`` in their order. A plain tuple as the driver
returns it, because there is one for each job."""


class Leasing(NamedTuple):
    """The values that all leases of one claim have in common."""

    lease_id: int
    holder: UUID
    lease_us: int


class Released(NamedTuple):
    """A leased job to return to ready or deferred, with its new counts of attempts and crashes."""

    job_id: UUID
    lease_id: int
    delay_us: int
    attempts: int
    crashes: int


class ClaimedQuerySet(models.QuerySet["Claimed"]):
    def note_handed_out(self, leases: Sequence[LeaseKey]) -> None:
        """Record that workers get these jobs now. Rows with other lease ids are not changed."""
        for lease_id in {lease_id for _, lease_id in leases}:
            job_ids = [job_id for job_id, other in leases if other == lease_id]
            self.filter(pk__in=job_ids, lease_id=lease_id).update(is_kept=False)

    def kept(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Return the jobs with ``is_kept``, which had not started if this is their last attempt."""
        return set(self.filter(pk__in=job_ids, is_kept=True).values_list("pk", flat=True))


class Claimed(HotRow):
    lease_id = models.BigIntegerField()
    """The fencing token: a fresh random number for every claim."""
    holder = models.UUIDField()
    """The cluster that holds the lease."""
    leased_until_us = models.BigIntegerField()
    """Microseconds since 1970 on the database's clock."""
    attempts = models.SmallIntegerField(default=1)
    """Attempts used, including the current one."""
    is_kept = models.BooleanField(default=False, db_default=False)
    """Whether no worker has the job yet, if this is its last attempt. The cluster sets it to False
    before it sends such a job to a worker. So if the host is lost while this is True, the job had
    not started. A job with attempts left may have started."""

    objects = ClaimedQuerySet.as_manager()

    class Meta:
        verbose_name = "claimed job"

    def __str__(self) -> str:
        return f"{self.queue} {self.job_id} held by {self.holder}"
