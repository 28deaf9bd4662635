"""Jobs that belong to a cluster for now. ``(job_id, lease_id)`` is the lease; both must match."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import models, transaction

from stoker.store.clock import DatabaseNow, database_now_us
from stoker.store.engines import engine_of
from stoker.store.statements import lock_by_key, update_by_key, with_keys
from stoker.store.transactions import deciding
from stoker.store.turns import free
from stoker.store.written import as_uuid

LeaseKey = tuple[UUID, int]
Claim = tuple[Any, ...]
"""What a claim leased: the fields of a ``Delivery``, in their order. A plain tuple, as the driver
gives it: there is one for each job."""


class Freed(NamedTuple):
    """What became of leases that were to end."""

    valid: set[LeaseKey]
    """Those that were still valid; nothing was done about the others."""
    queues: set[str]
    """Where a blocked job's turn has come by it."""


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


class ClaimedQuerySet(models.QuerySet["Claimed"]):
    def extend(self, keys: Sequence[LeaseKey], lease_us: int) -> Extended:
        """Let these leases end ``lease_us`` from now.

        Rows that an ack or a rescue has locked are left out, and not waited for: their transaction
        may belong to a machine that is gone, and all other leases would end meanwhile.
        """
        extended = engine_of(self.db).extend_leases(self, keys, lease_us)
        rest = set(keys) - extended
        return Extended(extended, rest and self._there(rest))

    def extend_waiting(self, keys: Sequence[LeaseKey], lease_us: int) -> set[LeaseKey]:
        """Let these leases end ``lease_us`` from now, and wait for who has their rows locked.

        Returns:
            Those that were still valid then.
        """
        extended: set[LeaseKey] = set()
        for key in keys:  # one at a time: who holds no row while it waits is in no deadlock
            with transaction.atomic(using=self.db):
                (row,) = lock_by_key(self, [key[0]], "job_id", "lease_id") or (None,)
                if row is not None and row.lease_id == key[1]:
                    until_us = database_now_us(self.db) + lease_us
                    update_by_key(self, [key[0]], leased_until_us=until_us)
                    extended.add(key)
        return extended

    def settle(
        self,
        over: Sequence[LeaseKey],
        again: Sequence[GivenBack] = (),
        failed: Collection[UUID] = (),
    ) -> Freed:
        """End these leases, and give up the places of their jobs all at once: a transaction may
        lock keys only once.

        Args:
            over: of jobs that have ended.
            again: of jobs that go back to ready, or with a delay to deferred.
            failed: those of ``over`` that became dead letters.
        """
        engine = engine_of(self.db)
        with deciding(self.db):
            ended = engine.end_leases(self, over) if over else []
            returned = engine.give_back(self, again) if again else []
            guards_over = {job_id: count for job_id, _, count in ended if count}
            guards_again = {job_id: count for job_id, _, count in returned if count}
            queues: set[str] = set()
            if guards_over or guards_again:
                queues = free(self.db, over=guards_over, again=guards_again, failed=failed)
        return Freed({(row[0], row[1]) for row in [*ended, *returned]}, queues)

    def end_all(self, job_ids: Sequence[str], lease_ids: Sequence[int]) -> set[str] | None:
        """End these leases of jobs that have ended well, in the open transaction.

        Args:
            job_ids: the 32 digits of each, once.
            lease_ids: theirs.

        Returns:
            Where a blocked job's turn has come by it. None: one of them was not valid; then the
            transaction is to be rolled back.
        """
        rows = engine_of(self.db).end_lease_digits(self, job_ids, lease_ids)
        if len(rows) < len(job_ids):
            return None
        guards = {as_uuid(job_id): count for job_id, _, count in rows if count}
        return free(self.db, over=guards) if guards else set()

    def claim_expired(
        self, limit: int, *, lease_id: int, holder: UUID, lease_us: int
    ) -> list[Claim]:
        """Take over up to ``limit`` leases that are over. The lost attempt stays counted."""
        leasing = Leasing(lease_id, holder, lease_us)
        return engine_of(self.db).claim_expired(self, limit, leasing)

    def expire_holder(self, holder: UUID) -> int:
        """End all leases of a holder at once; whoever rescues next takes them over."""
        valid = self.filter(holder=holder, leased_until_us__gte=DatabaseNow())
        return valid.update(leased_until_us=DatabaseNow() - 1)

    def _there(self, keys: set[LeaseKey]) -> set[LeaseKey]:
        """Those of these leases that are valid, whoever has locked them."""
        rows = with_keys(self, {job_id for job_id, _ in keys})
        return keys & set(rows.values_list("job_id", "lease_id"))


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

    objects = ClaimedQuerySet.as_manager()

    class Meta:
        verbose_name = "claimed job"

    def __str__(self) -> str:
        return f"{self.queue} {self.job_id} held by {self.holder}"
