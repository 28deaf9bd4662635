"""The store of one backend: the operations on the jobs in its database."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import IntegrityError, models, transaction
from django.db.models import CharField, Count, Value

from stoker.conf import Settings
from stoker.models.claimed import (
    Claim,
    Claimed,
    Extended,
    Freed,
    GivenBack,
    LeaseKey,
    Leasing,
)
from stoker.models.deferred import Deferred
from stoker.models.job import Message
from stoker.models.need import Need
from stoker.models.ready import Place, Ready

from .engines import engine_of
from .places import PLACES, WAITING, whereabouts
from .statements import delete_returning_guards, lock_by_key, update_by_key, with_keys
from .turns import free, leave
from .written import DatabaseNow, as_uuid, database_now_us

PAUSES_SECONDS = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064, None, None)
"""After each look at jobs that another transaction holds. The last looks wait for it."""


class Store:
    """Jobs in the tables of one database. Created once per backend and process.

    Args:
        settings: settings of the backend.
    """

    def __init__(self, settings: Settings) -> None:
        self.alias = settings.database
        self.engine = engine_of(self.alias)

    # -- waiting ----------------------------------------------------------------------------------

    def add(self, jobs: Sequence[Message]) -> None:
        """Insert jobs and their ready or deferred rows. Skip ids that exist already."""
        first: dict[UUID, Message] = {}
        for job in jobs:  # two waiting rows of one job would be two jobs
            first.setdefault(job.job_id, job)
        if not first:
            return
        try:
            self._add(list(first.values()))
        except IntegrityError:
            if self.engine.connection.in_atomic_block:
                raise
            self._add(list(first.values()))  # another transaction added one: skip it

    def _add(self, jobs: Sequence[Message]) -> None:
        if not any(job.needs for job in jobs):
            self.engine.insert_jobs(jobs)
            return
        with transaction.atomic(using=self.alias, savepoint=False):
            added = self.engine.insert_jobs(jobs)
            needed = [(job.job_id, job.needs) for job in jobs if job.job_id in added and job.needs]
            Need.objects.using(self.alias).add(needed)

    def add_fresh(self, job: Message) -> None:
        """Add a job whose id is known to be new. Outside a transaction, the engine may notify the
        sleeping pushers in the same message."""
        if job.run_after is not None or job.needs:
            self.add([job])
        else:
            self.engine.insert_fresh(job)

    def promote(self, limit: int, from_us: int = 0) -> list[Place]:
        """Move deferred jobs that are due to ready.

        Args:
            limit: largest number of jobs.
            from_us: jobs that were due earlier than this may be left for later.

        Returns:
            The new rows in ready.
        """
        deferred = Deferred.objects.using(self.alias)
        return [Place(*row) for row in self.engine.move_due(deferred, limit, from_us)]

    def withdraw(self, job_ids: Sequence[UUID]) -> tuple[set[UUID], set[UUID]]:
        """Remove waiting jobs and their needs. The caller's transaction may be long.

        A locked job is usually moving to another table, so it is looked for again. Waiting for its
        lock could cause a deadlock, and on MariaDB the transaction that moves the job would have to
        wait for this one.

        Returns:
            The removed jobs, and the guard keys to check after the transaction has ended.
        """
        gone: set[UUID] = set()
        key_ids: set[UUID] = set()
        for pause_seconds in PAUSES_SECONDS:
            left = [one for one in job_ids if one not in gone]
            waiting = whereabouts(self.alias, left, WAITING)
            if not waiting:
                break
            taken, freed = self._take(waiting, waits=pause_seconds is None)
            gone |= taken
            key_ids |= freed
            if taken == waiting.keys():
                break
            time.sleep(pause_seconds or 0)
        return gone, key_ids

    def _take(self, waiting: Mapping[UUID, str], *, waits: bool) -> tuple[set[UUID], set[UUID]]:
        taken: set[UUID] = set()
        left: set[UUID] = set()
        for name, model in WAITING.items():
            there = [job_id for job_id, place in waiting.items() if place == name]
            rows = model._default_manager.using(self.alias)
            guards = delete_returning_guards(rows, there, waits=waits) if there else {}
            held = {job_id: count for job_id, count in guards.items() if count}
            if held:
                left |= leave(self.alias, held, had_turn=model is Ready)
            taken |= guards.keys()
        return taken, left

    # -- leased -----------------------------------------------------------------------------------

    def extend(self, keys: Sequence[LeaseKey], lease_us: int) -> Extended:
        """Let leases end ``lease_us`` from now.

        Skip rows that an ack or a rescue has locked: their transaction may belong to a machine that
        is gone, and all other leases would expire while this waits.
        """
        extended = self.engine.extend_leases(self._leases, keys, lease_us)
        rest = set(keys) - extended
        if not rest:
            return Extended(extended, set())
        there = with_keys(self._leases, {job_id for job_id, _ in rest})
        return Extended(extended, rest & set(there.values_list("job_id", "lease_id")))

    def extend_waiting(self, keys: Sequence[LeaseKey], lease_us: int) -> set[LeaseKey]:
        """Let leases end ``lease_us`` from now, and wait for locked rows.

        Returns:
            The leases that were still valid then.
        """
        extended: set[LeaseKey] = set()
        for job_id, lease_id in keys:  # one at a time: waits without a lock
            with transaction.atomic(using=self.alias):
                rows = lock_by_key(self._leases, [job_id], "lease_id")
                if [row.lease_id for row in rows] == [lease_id]:
                    until_us = database_now_us(self.alias) + lease_us
                    update_by_key(self._leases, [job_id], leased_until_us=until_us)
                    extended.add((job_id, lease_id))
        return extended

    def settle(
        self,
        job_ids: Sequence[str],
        lease_ids: Sequence[Any],
        again: Sequence[GivenBack] = (),
        failed: Collection[UUID] = (),
    ) -> Freed:
        """End these leases, and give up the places of their jobs all at once: a transaction may
        lock keys only once.

        Args:
            job_ids: the 32 digits of the jobs that have ended.
            lease_ids: theirs, in the same order.
            again: jobs that go back to ready, or with a delay to deferred.
            failed: those of the ended ones that became dead letters.
        """
        with self.engine.deciding():
            ended = self.engine.end_leases(self._leases, job_ids, lease_ids) if job_ids else []
            returned = self.engine.give_back(self._leases, again) if again else []
            guards_over = {as_uuid(job_id): count for job_id, _, count in ended if count}
            guards_again = {job_id: count for job_id, _, count in returned if count}
            queues: set[str] = set()
            if guards_over or guards_again:
                queues = free(self.alias, over=guards_over, again=guards_again, failed=failed)
        return Freed([*ended, *returned] if returned else ended, queues)

    def claim_expired(self, limit: int, leasing: Leasing) -> list[Claim]:
        """Take over up to ``limit`` expired leases. The lost attempt stays counted."""
        return self.engine.claim_expired(self._leases, limit, leasing)

    def expire_holder(self, holder: UUID) -> int:
        """Let all leases of a holder expire at once, so that the next rescue takes them over."""
        valid = self._leases.filter(holder=holder, leased_until_us__gte=DatabaseNow())
        return valid.update(leased_until_us=DatabaseNow() - 1)

    # -- all of them ------------------------------------------------------------------------------

    def states(self, job_ids: Collection[UUID]) -> dict[UUID, str]:
        """Return job id -> state, for the jobs that wait or run."""
        return whereabouts(self.alias, job_ids)

    def sizes(self) -> dict[str, dict[str, int]]:
        """Return queue -> state -> number of jobs."""
        counted = [
            place._default_manager.using(self.alias)
            .values_list("queue", Value(name, CharField()))
            .annotate(count=Count("pk"))
            for name, place in PLACES.items()
        ]
        found: dict[str, dict[str, int]] = {}
        for queue, name, count in counted[0].union(*counted[1:], all=True):
            found.setdefault(queue, dict.fromkeys(PLACES, 0))[name] = count
        return found

    @property
    def _leases(self) -> models.QuerySet[Claimed]:
        return Claimed.objects.using(self.alias)
