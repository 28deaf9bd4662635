"""The store of one backend: what happens to jobs in the tables of its database."""

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
from stoker.models.job import NewJob
from stoker.models.need import Need
from stoker.models.ready import Place, Ready

from .clock import DatabaseNow, database_now_us
from .engines import engine_of
from .places import PLACES, WAITING, whereabouts
from .statements import delete_returning_guards, lock_by_key, update_by_key, with_keys
from .transactions import deciding
from .turns import free, leave
from .written import as_uuid

PAUSES_SECONDS = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064, None, None)
"""After each look at jobs that another transaction holds. The last looks wait for it."""


class Store:
    """Jobs in the tables of one database. Made once for each backend and process.

    Args:
        settings: the backend's.
    """

    def __init__(self, settings: Settings) -> None:
        self.alias = settings.database
        self.engine = engine_of(self.alias)

    # -- waiting ----------------------------------------------------------------------------------

    def add(self, jobs: Sequence[NewJob]) -> None:
        """Insert jobs with the row that says where they wait. An id that is there is left alone."""
        first: dict[UUID, NewJob] = {}
        for job in jobs:  # two rows that say where one job waits would be two jobs
            first.setdefault(job.job_id, job)
        if not first:
            return
        try:
            self._add(list(first.values()))
        except IntegrityError:
            if self.engine.connection.in_atomic_block:
                raise
            self._add(list(first.values()))  # another has added one of them: this time it is seen

    def _add(self, jobs: Sequence[NewJob]) -> None:
        if not any(job.needs for job in jobs):
            self.engine.insert_jobs(jobs)
            return
        with transaction.atomic(using=self.alias, savepoint=False):
            added = self.engine.insert_jobs(jobs)
            needed = [(job.job_id, job.needs) for job in jobs if job.job_id in added and job.needs]
            Need.objects.using(self.alias).add(needed)

    def add_fresh(self, job: NewJob) -> None:
        """Add a job that nobody can have added before. Outside of a transaction the sleeping
        pushers may be notified by the same message."""
        if job.run_after is not None or job.needs:
            self.add([job])
        else:
            self.engine.insert_fresh(job)

    def promote(self, limit: int, from_us: int = 0) -> list[Place]:
        """Move up to ``limit`` jobs whose moment has come to ready.

        Args:
            limit: how many at most.
            from_us: those that were due before that may be left for another time.

        Returns:
            Where they are now.
        """
        deferred = Deferred.objects.using(self.alias)
        return [Place(*row) for row in self.engine.move_due(deferred, limit, from_us)]

    def withdraw(self, job_ids: Sequence[UUID]) -> tuple[set[UUID], set[UUID]]:
        """Remove jobs that wait, with what they need; in a transaction, which may last.

        A job that others hold is mostly on the move, and is looked for again. To wait for it could
        be to wait in a circle, and MariaDB would let whoever brings it back wait for this
        transaction.

        Returns:
            Those removed; and the keys that are to be looked after when the transaction has ended.
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
        """Let these leases end ``lease_us`` from now.

        Rows that an ack or a rescue has locked are left out, and not waited for: their transaction
        may belong to a machine that is gone, and all other leases would end meanwhile.
        """
        extended = self.engine.extend_leases(self._leases, keys, lease_us)
        rest = set(keys) - extended
        if not rest:
            return Extended(extended, set())
        there = with_keys(self._leases, {job_id for job_id, _ in rest})
        return Extended(extended, rest & set(there.values_list("job_id", "lease_id")))

    def extend_waiting(self, keys: Sequence[LeaseKey], lease_us: int) -> set[LeaseKey]:
        """Let these leases end ``lease_us`` from now, and wait for who has their rows locked.

        Returns:
            Those that were still valid then.
        """
        extended: set[LeaseKey] = set()
        for job_id, lease_id in keys:  # one at a time: who holds no row meanwhile blocks nobody
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
        with deciding(self.alias):
            ended = self.engine.end_leases(self._leases, job_ids, lease_ids) if job_ids else []
            returned = self.engine.give_back(self._leases, again) if again else []
            guards_over = {as_uuid(job_id): count for job_id, _, count in ended if count}
            guards_again = {job_id: count for job_id, _, count in returned if count}
            queues: set[str] = set()
            if guards_over or guards_again:
                queues = free(self.alias, over=guards_over, again=guards_again, failed=failed)
        return Freed([*ended, *returned] if returned else ended, queues)

    def claim_expired(self, limit: int, leasing: Leasing) -> list[Claim]:
        """Take over up to ``limit`` leases that are over. The lost attempt stays counted."""
        return self.engine.claim_expired(self._leases, limit, leasing)

    def expire_holder(self, holder: UUID) -> int:
        """End all leases of a holder at once; whoever rescues next takes them over."""
        valid = self._leases.filter(holder=holder, leased_until_us__gte=DatabaseNow())
        return valid.update(leased_until_us=DatabaseNow() - 1)

    # -- all of them ------------------------------------------------------------------------------

    def states(self, job_ids: Collection[UUID]) -> dict[UUID, str]:
        """Return the place of each of these jobs that is in one."""
        return whereabouts(self.alias, job_ids)

    def sizes(self) -> dict[str, dict[str, int]]:
        """Return how many jobs of each queue are in each place."""
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
