"""Jobs that belong to a cluster for now. ``(job_id, lease_id)`` is the lease; both must match."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, models, transaction

from stoker.store.clock import DatabaseNow, database_now_us
from stoker.store.prepared import list_literal
from stoker.store.statements import (
    as_uuid,
    delete_by_key,
    fetch,
    lock_by_key,
    moves_a_list_in_json,
    moves_rows_in_one_statement,
    update_by_key,
    with_keys,
)
from stoker.store.transactions import deciding
from stoker.store.turns import free

from .deferred import Deferred
from .job import Job
from .ready import Place, Ready

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
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            rows = self._each("claimed_extend", "leases", keys, lease_us=lease_us)
            extended = {(row[0], row[1]) for row in rows}
        else:
            with transaction.atomic(using=self.db):
                extended = set(self._lock_valid(keys, waits=False))
                until_us = database_now_us(self.db) + lease_us
                job_ids = [job_id for job_id, _ in extended]
                update_by_key(self, job_ids, leased_until_us=until_us)
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
                if set(self._lock_valid([key])):
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
        with deciding(self.db):
            ended = self._end(over) if over else []
            returned = self._give_back(again) if again else []
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
            Where a blocked job's turn has come by it. None: one of them was not valid, or this
            database takes no lists; then the transaction is to be rolled back.
        """
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            by_id = [f'"{one}":{lease}' for one, lease in zip(job_ids, lease_ids, strict=True)]
            keys = {"job_ids": list_literal(job_ids), "leases": list_literal(by_id)}
            rows = fetch(connection, "claimed_ack", keys)
        elif moves_a_list_in_json(connection):
            given = json.dumps(list(zip(job_ids, lease_ids, strict=True)))
            rows = fetch(connection, "listed_end", {"leases": given})
        else:
            return None
        if len(rows) < len(job_ids):
            return None
        guards = {as_uuid(job_id): count for job_id, _, count in rows if count}
        return free(self.db, over=guards) if guards else set()

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
            return fetch(connection, "claimed_claim_expired", parameters)
        with transaction.atomic(using=self.db):
            over = self.filter(leased_until_us__lt=DatabaseNow()).order_by("leased_until_us")
            if connection.features.has_select_for_update_skip_locked:
                over = over.select_for_update(skip_locked=True)
            rows = list(over[:limit])
            if not rows:
                return []
            update_by_key(
                self.filter(leased_until_us__lt=DatabaseNow()),
                [row.job_id for row in rows],
                lease_id=lease_id,
                holder=holder,
                leased_until_us=database_now_us(self.db) + lease_us,
            )
            return with_packages(self.db, lease_id, rows)

    def expire_holder(self, holder: UUID) -> int:
        """End all leases of a holder at once; whoever rescues next takes them over."""
        valid = self.filter(holder=holder, leased_until_us__gte=DatabaseNow())
        return valid.update(leased_until_us=DatabaseNow() - 1)

    def _end(self, keys: Sequence[LeaseKey]) -> list[tuple[Any, ...]]:
        """Delete these leases. Returns job id, lease id and number of needs of the valid ones."""
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            return self._each("claimed_ack", "leases", keys)
        if moves_a_list_in_json(connection):
            given = [(job_id.hex, lease_id) for job_id, lease_id in keys]
            by_hex = {key: job_id for (key, _), (job_id, _) in zip(given, keys, strict=True)}
            rows = fetch(connection, "listed_end", {"leases": json.dumps(given)})
            return [(by_hex[key], lease_id, guards) for key, lease_id, guards in rows]
        valid = self._lock_valid(keys)
        delete_by_key(self, [job_id for job_id, _ in valid])
        return [(*key, row.guards) for key, row in valid.items()]

    def _each(
        self, name: str, word: str, keyed: Sequence[tuple[Any, ...]], **parameters: int
    ) -> list[tuple[Any, ...]]:
        """Run a statement that looks up by its id what belongs to a job.

        Args:
            name: of the statement.
            word: for the object in it.
            keyed: job id, lease id, and what else belongs to it: numbers.
            parameters: its others.
        """
        found = []
        for some in _each_job_once(keyed):
            by_id = ",".join([f'"{row[0].hex}":{_in_json(row)}' for row in some])
            job_ids = [row[0] for row in some]
            wanted = {"job_ids": job_ids, word: f"{{{by_id}}}", **parameters}
            found += fetch(connections[self.db], name, wanted)
        return found

    def _give_back(self, returns: Sequence[GivenBack]) -> list[tuple[Any, ...]]:
        """Move these jobs to where they wait. Returns: as ``_end``."""
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            return self._each("claimed_give_back", "returns", returns)
        valid = self._lock_valid([(back.job_id, back.lease_id) for back in returns])
        by_key = {(back.job_id, back.lease_id): back for back in returns}
        self._move(valid, [back for key, back in by_key.items() if key in valid])
        return [(*key, row.guards) for key, row in valid.items()]

    def _there(self, keys: set[LeaseKey]) -> set[LeaseKey]:
        """Those of these leases that are valid, whoever has locked them."""
        rows = with_keys(self, {job_id for job_id, _ in keys})
        return keys & set(rows.values_list("job_id", "lease_id"))

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


def with_packages(alias: str, lease_id: int, rows: Sequence[Claimed | Place]) -> list[Claim]:
    """These rows, each with the package of its job and the moment that it was enqueued for."""
    jobs = Job.objects.using(alias).packages_and_moments([row.job_id for row in rows])
    claims: list[Claim] = []
    for row in rows:
        package, run_after = jobs.get(row.job_id, (b"", None))
        place = (row.queue, -row.rank, row.attempts, row.crashes)
        claims.append((row.job_id, lease_id, package, *place, 0, 0.0, "", run_after))
    return claims


def _in_json(row: tuple[Any, ...]) -> str:
    """What belongs to a job, without its id."""
    return str(row[1]) if len(row) == 2 else str(list(row[1:]))


def _each_job_once(keyed: Sequence[tuple[Any, ...]]) -> Iterator[Collection[tuple[Any, ...]]]:
    """All of it at once, but where the same job comes with several leases."""
    rest = keyed
    while rest:
        once = {row[0]: row for row in reversed(rest)}
        yield once.values()
        if len(once) == len(rest):
            return
        rest = [row for row in rest if once[row[0]][1] != row[1]]
