"""Jobs that belong to a cluster for now. ``(job_id, lease_id)`` is the lease; both must match."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, models, transaction

from .clock import DatabaseNow, database_now_us
from .deferred import Deferred
from .isolation import deciding
from .job import Job
from .ready import Place, Ready
from .statements import (
    columns,
    delete_by_key,
    fetch,
    lock_by_key,
    moves_rows_in_one_statement,
    update_by_key,
)
from .turns import free

LeaseKey = tuple[UUID, int]


class Claim(NamedTuple):
    """One row that a claim leased."""

    job_id: UUID
    package: bytes
    queue: str
    rank: int
    attempts: int
    crashes: int
    guards: int = 0
    fence: int = 0
    permit_seconds: float = 0.0
    refused: str = ""


class Freed(NamedTuple):
    """What became of leases that were to end."""

    valid: set[LeaseKey]
    """Those that were still valid; nothing was done about the others."""
    queues: set[str]
    """Where a blocked job's turn has come by it."""


class GivenBack(NamedTuple):
    """One leased job on its way back, with the counts that the next claim shall find."""

    job_id: UUID
    lease_id: int
    delay_us: int
    attempts: int
    crashes: int


class ClaimedQuerySet(models.QuerySet["Claimed"]):
    def extend(self, keys: Sequence[LeaseKey], lease_us: int) -> set[LeaseKey]:
        """Let these leases end ``lease_us`` from now. Returns those that were still valid.

        Rows that an ack or a rescue has locked are left out and tried again one by one: who waits
        while he holds other rows can wait in a circle.
        """
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            rows = fetch(connection, "claimed_extend", {**_key_arrays(keys), "lease_us": lease_us})
            extended = {(row[0], row[1]) for row in rows}
        else:
            with transaction.atomic(using=self.db):
                extended = set(self._lock_valid(keys, waits=False))
                until_us = database_now_us(self.db) + lease_us
                job_ids = [job_id for job_id, _ in extended]
                update_by_key(self, job_ids, leased_until_us=until_us)
        rest = set(keys) - extended
        return extended | {key for key in rest if self._extend_one(key, lease_us)}

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
        with deciding(self.db):
            ended = self._end(over) if over else []
            returned = self._give_back(again) if again else []
            guards_over = {job_id: count for job_id, _, count in ended if count}
            guards_again = {job_id: count for job_id, _, count in returned if count}
            queues: set[str] = set()
            if guards_over or guards_again:
                queues = free(self.db, over=guards_over, again=guards_again, failed=failed)
        return Freed({(row[0], row[1]) for row in [*ended, *returned]}, queues)

    def claim_expired(
        self, limit: int, *, lease_id: int, holder: UUID, lease_us: int
    ) -> list[Claim]:
        """Take over up to ``limit`` leases that are over. The lost attempt stays counted."""
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            parameters = {
                "limit": limit,
                "lease_id": lease_id,
                "holder": holder,
                "lease_us": lease_us,
            }
            return [Claim(*row) for row in fetch(connection, "claimed_claim_expired", parameters)]
        with transaction.atomic(using=self.db):
            over = self.filter(leased_until_us__lt=DatabaseNow()).order_by("leased_until_us")
            if connection.features.has_select_for_update_skip_locked:
                over = over.select_for_update(skip_locked=True)
            rows = list(over[:limit])
            update_by_key(
                self.filter(leased_until_us__lt=DatabaseNow()),
                [row.job_id for row in rows],
                lease_id=lease_id,
                holder=holder,
                leased_until_us=database_now_us(self.db) + lease_us,
            )
            return with_packages(self.db, rows)

    def expire_holder(self, holder: UUID) -> int:
        """End all leases of a holder at once; whoever rescues next takes them over."""
        return self.filter(holder=holder, leased_until_us__gt=0).update(leased_until_us=0)

    def _end(self, keys: Sequence[LeaseKey]) -> list[tuple[Any, ...]]:
        """Delete these leases. Returns job id, lease id and number of needs of the valid ones."""
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            return fetch(connection, "claimed_ack", _key_arrays(keys))
        valid = self._lock_valid(keys)
        delete_by_key(self, [job_id for job_id, _ in valid])
        return [(*key, row.guards) for key, row in valid.items()]

    def _give_back(self, returns: Sequence[GivenBack]) -> list[tuple[Any, ...]]:
        """Move these jobs to where they wait. Returns: as ``_end``."""
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            names = ("job_ids", "lease_ids", "delays_us", "attempts", "crashes")
            arrays = dict(zip(names, columns(returns, len(names)), strict=True))
            return fetch(connection, "claimed_give_back", arrays)
        valid = self._lock_valid([(back.job_id, back.lease_id) for back in returns])
        by_key = {(back.job_id, back.lease_id): back for back in returns}
        self._move(valid, [back for key, back in by_key.items() if key in valid])
        return [(*key, row.guards) for key, row in valid.items()]

    def _extend_one(self, key: LeaseKey, lease_us: int) -> bool:
        job_id, lease_id = key
        valid = self.filter(pk=job_id, lease_id=lease_id)
        return bool(valid.update(leased_until_us=DatabaseNow() + lease_us))

    def _lock_valid(self, keys: Sequence[LeaseKey], *, waits: bool = True) -> dict[LeaseKey, Any]:
        wanted = set(keys)
        job_ids = {job_id for job_id, _ in keys}
        names = ("job_id", "lease_id", "queue", "rank", "guards")
        rows = lock_by_key(self, job_ids, *names, waits=waits)
        locked = {(row.job_id, row.lease_id): row for row in rows}
        return {key: locked[key] for key in wanted & locked.keys()}

    def _move(self, valid: dict[LeaseKey, Any], returns: Sequence[GivenBack]) -> None:
        now_us = database_now_us(self.db)
        ready, deferred = [], []
        for back in returns:
            row = valid[back.job_id, back.lease_id]
            counts = {"attempts": back.attempts, "crashes": back.crashes}
            same = {"job_id": row.job_id, "queue": row.queue, "rank": row.rank}
            place = {**same, "guards": row.guards, **counts}
            if back.delay_us > 0:
                deferred.append(Deferred(due_us=now_us + back.delay_us, **place))
            else:
                ready.append(Ready(**place))
        delete_by_key(self, [back.job_id for back in returns])
        Ready.objects.using(self.db).bulk_create(ready)
        Deferred.objects.using(self.db).bulk_create(deferred)


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


def with_packages(alias: str, rows: Sequence[Claimed | Place]) -> list[Claim]:
    """These rows, each with the package of its job."""
    packages = Job.objects.using(alias).packages([row.job_id for row in rows])
    return [
        Claim(
            row.job_id,
            packages.get(row.job_id, b""),
            row.queue,
            row.rank,
            row.attempts,
            row.crashes,
            row.guards,
        )
        for row in rows
    ]


def _key_arrays(keys: Sequence[LeaseKey]) -> dict[str, list[object]]:
    job_ids, lease_ids = columns(keys, 2)
    return {"job_ids": job_ids, "lease_ids": lease_ids}
