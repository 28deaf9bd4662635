"""Jobs that belong to a cluster for now. ``(job_id, lease_id)`` is the lease; both must match."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, models, transaction

from .admission import Admitted, Rated, admit, free
from .clock import DatabaseNow, database_now_us
from .deferred import Deferred
from .job import Job
from .ready import Place, Ready
from .rows import Written, insert_rows
from .statements import (
    columns,
    delete_by_key,
    fetch,
    lock_by_key,
    moves_rows_in_one_statement,
    update_by_key,
)

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


class Step(NamedTuple):
    """One step of a claim."""

    claims: list[Claim]
    turned_away: int = 0
    """How many ready jobs a guard has moved elsewhere: there may be others behind them."""


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
    def claim(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        lease_id: int,
        holder: UUID,
        lease_us: int,
        rated: Rated,
    ) -> Iterator[Step]:
        """Move up to ``limit`` jobs of these queues to claimed, best rank first, then oldest; of
        those with a rate up to ``rated.limit``. What has been given is leased, even if the next
        step raises."""
        connection = connections[self.db]
        lease = {"lease_id": lease_id, "holder": holder, "lease_us": lease_us}
        if moves_rows_in_one_statement(connection):
            parameters = {"queues": list(queues), "limit": limit, **lease}
            found = [Claim(*row) for row in fetch(connection, "claim", parameters)]
            yield Step([row for row in found if not row.guards])
            guarded = [row.job_id for row in found if row.guards]
            if guarded:
                with transaction.atomic(using=self.db):
                    places = self._lock_ready(guarded)
                    claims = self._admit(places, lease, rated)
                yield Step(claims, len(places) - len(claims))
            return
        if not Ready.objects.using(self.db).filter(queue__in=queues).exists():
            return  # without a transaction, which on SQLite would be everybody's only one
        with transaction.atomic(using=self.db):
            places = self._lock_best(queues, limit)
            claims = self._admit(places, lease, rated)
        yield Step(claims, len(places) - len(claims))

    def _admit(
        self, places: Sequence[Place], lease: Mapping[str, Any], rated: Rated
    ) -> list[Claim]:
        """Lease those of these ready jobs that no guard holds back."""
        guarded = [place for place in places if place.guards]
        others = [place for place in places if not place.guards]
        delete_by_key(Ready.objects.using(self.db), [place.job_id for place in others])
        admitted = [Admitted(place) for place in others]
        if guarded:
            admitted += admit(self.db, guarded, rated)
            admitted.sort(key=lambda one: (one.place.rank, one.place.job_id))
        leased = [one.place._replace(attempts=one.place.attempts + 1) for one in admitted]
        self._lease(leased, **lease)
        return [
            claim._replace(fence=one.fence, permit_seconds=one.permit_seconds, refused=one.refused)
            if one.place.guards
            else claim
            for claim, one in zip(self._with_packages(leased), admitted, strict=True)
        ]

    def extend(self, keys: Sequence[LeaseKey], lease_us: int) -> set[LeaseKey]:
        """Let these leases end ``lease_us`` from now. Returns those that were still valid."""
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            rows = fetch(connection, "claimed_extend", {**_key_arrays(keys), "lease_us": lease_us})
            extended = {(row[0], row[1]) for row in rows}
            rest = set(keys) - extended
            return extended | {key for key in rest if self._extend_one(key, lease_us)}
        with transaction.atomic(using=self.db):
            valid = self._lock_valid(keys)
            until_us = database_now_us(self.db) + lease_us
            update_by_key(self, [job_id for job_id, _ in valid], leased_until_us=until_us)
            return set(valid)

    def ack(self, keys: Sequence[LeaseKey], failed: Collection[UUID] = ()) -> Freed:
        """Delete these leases, whose jobs have ended.

        Args:
            failed: those of the jobs that became dead letters.
        """
        connection = connections[self.db]
        with transaction.atomic(using=self.db, savepoint=False):
            if moves_rows_in_one_statement(connection):
                rows = fetch(connection, "claimed_ack", _key_arrays(keys))
            else:
                valid = self._lock_valid(keys)
                delete_by_key(self, [job_id for job_id, _ in valid])
                rows = [(*key, row.guards) for key, row in valid.items()]
            guards = {job_id: count for job_id, _, count in rows if count}
            queues = free(self.db, over=guards, failed=failed) if guards else set()
        return Freed({(row[0], row[1]) for row in rows}, queues)

    def give_back(self, returns: Sequence[GivenBack]) -> Freed:
        """Move these jobs to ready, or with a delay to deferred."""
        connection = connections[self.db]
        with transaction.atomic(using=self.db, savepoint=False):
            if moves_rows_in_one_statement(connection):
                names = ("job_ids", "lease_ids", "delays_us", "attempts", "crashes")
                arrays = dict(zip(names, columns(returns, len(names)), strict=True))
                rows = fetch(connection, "claimed_give_back", arrays)
            else:
                valid = self._lock_valid([(back.job_id, back.lease_id) for back in returns])
                by_key = {(back.job_id, back.lease_id): back for back in returns}
                self._move(valid, [back for key, back in by_key.items() if key in valid])
                rows = [(*key, row.guards) for key, row in valid.items()]
            guards = {job_id: count for job_id, _, count in rows if count}
            queues = free(self.db, again=guards) if guards else set()
        return Freed({(row[0], row[1]) for row in rows}, queues)

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
            return self._with_packages(rows)

    def expire_holder(self, holder: UUID) -> int:
        """End all leases of a holder at once; whoever rescues next takes them over."""
        return self.filter(holder=holder, leased_until_us__gt=0).update(leased_until_us=0)

    def _extend_one(self, key: LeaseKey, lease_us: int) -> bool:
        job_id, lease_id = key
        valid = self.filter(pk=job_id, lease_id=lease_id)
        return bool(valid.update(leased_until_us=DatabaseNow() + lease_us))

    def _lock_best(self, queues: Sequence[str], limit: int) -> list[Place]:
        skip_locked = connections[self.db].features.has_select_for_update_skip_locked
        best: list[Place] = []
        for queue in queues:
            waiting = Ready.objects.using(self.db).filter(queue=queue).order_by("rank", "job_id")
            if skip_locked:
                waiting = waiting.select_for_update(skip_locked=True)
            best += map(Place._make, waiting.values_list(*Place._fields)[:limit])
        best.sort(key=lambda place: (place.rank, place.job_id))
        return best[:limit]

    def _lock_ready(self, job_ids: Sequence[UUID]) -> list[Place]:
        waiting = Ready.objects.using(self.db).filter(pk__in=job_ids).order_by("rank", "job_id")
        locked = waiting.select_for_update(skip_locked=True)
        return [Place(*row) for row in locked.values_list(*Place._fields)]

    def _lease(self, places: Iterable[Place], lease_id: int, holder: UUID, lease_us: int) -> None:
        until_us = database_now_us(self.db) + lease_us
        written = Written(connections[self.db])
        lease = (lease_id, written.id(holder), until_us)
        rows = [(*lease, written.id(place.job_id), *place[1:]) for place in places]
        insert_rows(self, ("lease_id", "holder", "leased_until_us", *Place._fields), rows)

    def _with_packages(self, rows: Sequence[Claimed | Place]) -> list[Claim]:
        packages = Job.objects.using(self.db).packages([row.job_id for row in rows])
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

    def _lock_valid(self, keys: Sequence[LeaseKey]) -> dict[LeaseKey, Any]:
        wanted = set(keys)
        job_ids = {job_id for job_id, _ in keys}
        rows = lock_by_key(self, job_ids, "job_id", "lease_id", "queue", "rank", "guards")
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


def _key_arrays(keys: Sequence[LeaseKey]) -> dict[str, list[object]]:
    job_ids, lease_ids = columns(keys, 2)
    return {"job_ids": job_ids, "lease_ids": lease_ids}
