"""The ORM broker: packages wait in the project's own database, in the caller's transaction."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.models import CharField, Count, Value

from stoker.brokers.contract import (
    Broker,
    Capabilities,
    ClaimRequest,
    Delivery,
    Extension,
    Lease,
    Leases,
    Return,
)
from stoker.conf import Settings
from stoker.exceptions import ConfigurationError
from stoker.guards.admission import AdmissionTerms
from stoker.guards.sweep import call_due, look_after
from stoker.models import Attempt, Claimed, Job
from stoker.models.claimed import ClaimedQuerySet, LeaseKey, Leasing, Released
from stoker.models.deferred import Deferred
from stoker.models.job import Message
from stoker.models.need import Need
from stoker.models.ready import Place
from stoker.signals import tell
from stoker.store.engines import engine_of
from stoker.store.engines.sessions import explain, explained
from stoker.store.places import PLACES, WAITING, stored_states
from stoker.store.statements import (
    delete_by_key,
    delete_of_jobs,
    delete_returning_guards,
    lock_by_key,
    update_by_key,
    with_keys,
)
from stoker.store.transactions import after_commit, is_locked_out
from stoker.store.turns import free, leave
from stoker.store.wake import Wake
from stoker.store.written import DatabaseNow, as_uuid, database_now_us, microseconds

from .claim import (
    PACKAGE,
    Claiming,
    DueTimes,
    GuardedSearch,
    Watermarks,
    deliveries_of,
    leasing_of,
    read_long,
    terms_of,
)


def lease_keys(leases: Sequence[Lease]) -> Sequence[LeaseKey]:
    """Return the leases in the form that engines accept: the lease ids of the store as numbers."""
    return cast("Sequence[LeaseKey]", leases)


def released(returns: Sequence[Return]) -> list[Released]:
    return [
        Released(
            back.lease.job_id,
            int(back.lease.lease_id),
            microseconds(back.delay_seconds),
            back.attempts,
            back.crashes,
        )
        for back in returns
    ]


PROMOTE_AT_ONCE = 500
"""Maximum number of due jobs to move to ready in one statement."""
LOOK_BEHIND_SECONDS = 0.05
"""How long a claim continues while guards refuse all jobs that it finds, because later jobs may
be free to start."""
LISTED_AT_ONCE = 500
PAUSES_SECONDS = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064, None, None)
"""Pause before each further attempt to read jobs that another transaction has locked. None: wait
for the lock instead."""


class OrmBroker(Broker):
    """Jobs in the tables of one database alias (``orm://ALIAS``). Created once per backend and
    process."""

    capabilities = Capabilities(transactional=True, guards=True, atomic=True)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.alias = settings.database
        if self.alias not in connections:
            raise ConfigurationError(
                f'TASKS["{settings.alias}"]["OPTIONS"]["BROKER"] is {settings.broker!r}, '
                f"but DATABASES has no {self.alias!r}."
            )
        self._due = DueTimes(self.alias)
        self._is_more_behind = False
        self._search = GuardedSearch()
        self._leaves_doubt = False
        self._marks = Watermarks(self.alias)
        self._knows_rates = False
        """Whether a job with a rate was ever claimed."""
        self.engine = engine_of(self.alias)
        self.sees_pauses = self.engine.claims_by_marks
        """Whether claims skip paused queues even if ``passed_over`` does not name them."""

    def enqueue(self, messages: Sequence[Message]) -> None:
        with explained(self.alias):
            if len(messages) == 1 and _is_plain(messages[0]):
                self.engine.insert_fresh(messages[0])
            else:
                self._add(messages)

    def _add(self, messages: Sequence[Message]) -> None:
        first: dict[UUID, Message] = {}
        for message in messages:  # two waiting rows of one job would be two jobs
            first.setdefault(message.job_id, message)
        if not first:
            return
        try:
            self._insert(list(first.values()))
        except IntegrityError:
            if self.engine.connection.in_atomic_block:
                raise
            self._insert(list(first.values()))  # another transaction added one: skip it

    def _insert(self, messages: Sequence[Message]) -> None:
        if not any(one.needs for one in messages):
            self.engine.insert_jobs(messages)
            return
        with transaction.atomic(using=self.alias, savepoint=False):
            added = self.engine.insert_jobs(messages)
            new = [one for one in messages if one.job_id in added]
            Need.objects.using(self.alias).add(
                [(one.job_id, one.needs) for one in new if one.needs]
            )

    def claim(self, request: ClaimRequest) -> list[Delivery]:
        rated_limit, limit = request.rated_limit, request.limit
        leasing, terms = leasing_of(request), terms_of(request)

        def claim_ready() -> list[Delivery]:
            named = dict.fromkeys(request.queues or self._marks.queues)
            served = [name for name in named if name not in request.passed_over]
            return self._claim_ready(served, limit, leasing, terms)

        def claim() -> list[Delivery]:
            return self._marks.guide(claim_ready, request.queues, lambda: self._is_more_behind)

        with explained(self.alias):
            if has_looked := self._due.should_look:
                # otherwise jobs that were due before the watermark were skipped
                has_looked = not self._marks.due_from_us
                self._promote_due(rated_limit)
            # jobs with a rate wait for a permit, and not for other jobs to end
            elif self._knows_rates:
                self._call_due(rated_limit)
            self._due.forget()
            deliveries = claim()
            if not deliveries and not has_looked and self._promote_due(rated_limit):
                deliveries = claim()
        self._due.note_claim(len(deliveries), limit)
        self._knows_rates = self._knows_rates or any(one.permit_seconds for one in deliveries)
        return deliveries

    def _claim_ready(
        self, served: Sequence[str], limit: int, leasing: Leasing, terms: AdmissionTerms
    ) -> list[Delivery]:
        """Claim ready jobs of the queues. Raise nothing after a job is leased, because its holder
        would not learn of the lease."""
        claiming = Claiming(served, limit, leasing, terms, self._marks, self._search)
        deliveries: list[Delivery] = []
        self._leaves_doubt = False
        until = time.monotonic() + LOOK_BEHIND_SECONDS
        self._is_more_behind = bool(served)
        try:
            while self._is_more_behind and not deliveries:
                for claims in claiming.go_round():
                    deliveries += deliveries_of(claims, leasing.lease_id)
                self._is_more_behind = not claiming.is_over
                # checked after a round, so that a slow claim makes at least one
                if time.monotonic() >= until:
                    break
        except DatabaseError as error:
            self._search.end()  # a smaller round may succeed
            if is_locked_out(error):
                if not self._search.waits:  # other rows are locked than the keys
                    tell("guards_put_off", error=explain(error, self.alias))
                self._search.be_careful()
            elif not deliveries:
                raise
            else:
                self._leaves_doubt = True
                tell("guards_put_off", error=explain(error, self.alias))
        if deliveries or not self._is_more_behind:
            self._search.end()
        return deliveries if all(map(PACKAGE, deliveries)) else self._with_long(deliveries)

    def _with_long(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Read the packages that a claim omitted, and release the jobs that exceed
        ``CLAIM_BYTES``."""
        read = [one for one in deliveries if one.package]
        try:
            read, left = read_long(self.alias, deliveries)
            if left:
                self._marks.forget()
                again = [
                    Return(one.lease, attempts=one.attempt - 1, crashes=one.crashes) for one in left
                ]
                self._call(self._free(Leases([], []), released(again))[1])
        except DatabaseError:
            if not read:
                raise
            self._leaves_doubt = True
        return read

    @property
    def leaves_doubt(self) -> bool:
        return self._leaves_doubt

    def _promote_due(self, rated_limit: int) -> int:
        """Move due jobs to ready and return their number."""
        from_us = self._marks.due_from_us
        due = self._due.read(from_us)
        called = self._call_due(rated_limit) if due.keys else 0
        promoted = self.promote(PROMOTE_AT_ONCE, from_us) if due.jobs else []
        if due.jobs:
            self._marks.begin_due_at(due.first_us)
        self._marks.lower(promoted)
        return called + len(promoted)

    def promote(self, limit: int, from_us: int = 0) -> list[Place]:
        """Move deferred jobs that are due to ready.

        Args:
            limit: largest number of jobs.
            from_us: jobs that were due earlier than this may be left for later.

        Returns:
            The new rows in ready.
        """
        deferred = Deferred.objects.using(self.alias)
        with self.engine.deciding_at_once():
            return [Place(*row) for row in self.engine.move_due(deferred, limit, from_us)]

    def search_from_start(self) -> None:
        """Make the next claim find all ready jobs, also those that were added behind a
        watermark."""
        self._marks.forget()

    def _call_due(self, rated_limit: int) -> int:
        called = call_due(self.alias, rated_limit)
        if called:
            self._marks.forget()
        return called

    def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> set[Lease]:
        stale, locked = self.extend_unlocked(leases, lease_seconds=lease_seconds)
        # The other transaction may end these leases: wait for it to learn which are stale. Each
        # waits alone, without holding a lock.
        with explained(self.alias):
            return stale | {one for one in locked if not self._extend_waiting(one, lease_seconds)}

    def _extend_waiting(self, lease: Lease, lease_seconds: float) -> bool:
        """Wait for the lease's row and extend it. Return whether the lease was valid then."""
        with self.engine.deciding():
            rows = lock_by_key(self._leases, [lease.job_id], "lease_id")
            if [row.lease_id for row in rows] != [lease.lease_id]:
                return False
            until_us = database_now_us(self.alias) + microseconds(lease_seconds)
            update_by_key(self._leases, [lease.job_id], leased_until_us=until_us)
        return True

    def extend_unlocked(self, leases: Sequence[Lease], *, lease_seconds: float) -> Extension:
        """Extend the leases, except those that another transaction has locked. If the host of that
        transaction is gone, its lock may last so long that all other leases would expire."""
        lease_us = microseconds(lease_seconds)
        with explained(self.alias), self.engine.deciding_at_once():
            extended = self.engine.extend_leases(self._leases, lease_keys(leases), lease_us)
            if len(extended) == len(leases):  # nearly always
                return Extension(set(), set())
            rest = {lease for lease in leases if lease not in extended}
            there = with_keys(self._leases, {lease.job_id for lease in rest})
            held = set(there.values_list("job_id", "lease_id"))
        return Extension(rest - held, {lease for lease in rest if lease in held})

    def note_handed_out(self, leases: Sequence[Lease]) -> None:
        with explained(self.alias):
            self._leases.note_handed_out(lease_keys(leases))

    def kept(self, leases: Sequence[Lease]) -> set[UUID]:
        with explained(self.alias):
            return self._leases.kept([lease.job_id for lease in leases])

    def settle(
        self,
        over: Sequence[Lease] = (),
        again: Sequence[Return] = (),
        *,
        failed: Collection[UUID] = (),
    ) -> set[Lease]:
        if again:
            self._marks.forget()
        with explained(self.alias):
            ended = over if isinstance(over, Leases) else Leases.of(over)
            freed, queues = self._free(ended, released(again), failed)
        self._call(queues)
        if len(freed) == len(ended.job_ids) + len(again):  # nearly always
            return set()
        leases = [*over, *(back.lease for back in again)]
        return set(leases).difference((as_uuid(job_id), lease_id) for job_id, lease_id, _ in freed)

    def _free(
        self, over: Leases, again: Sequence[Released], failed: Collection[UUID] = ()
    ) -> tuple[Sequence[tuple[Any, ...]], set[str]]:
        """End leases, and give up the places of their jobs all at once: a transaction may lock keys
        only once.

        Returns:
            Job id as the driver returns it, lease id and number of guards of each lease that was
                valid, and the queues with blocked jobs that became ready.
        """
        engine, job_ids = self.engine, over.job_ids
        lease_ids = cast("Sequence[int]", over.lease_ids)
        with engine.deciding():
            ended = engine.end_leases(self._leases, job_ids, lease_ids) if job_ids else []
            returned = engine.release(self._leases, again) if again else []
            guards_over = {as_uuid(job_id): count for job_id, _, count in ended if count}
            guards_again = {job_id: count for job_id, _, count in returned if count}
            queues: set[str] = set()
            if guards_over or guards_again:
                queues = free(self.alias, over=guards_over, again=guards_again, failed=failed)
        return [*ended, *returned] if returned else ended, queues

    def _call(self, queues: Collection[str]) -> None:
        """Wake the pushers of the queues after the commit, because blocked jobs have become
        ready."""
        if queues:
            after_commit(self.alias, lambda: self.wake_up(queues))

    def claim_expired(self, request: ClaimRequest) -> list[Delivery]:
        leasing = leasing_of(request)
        with explained(self.alias), self.engine.deciding_at_once():
            rows = self.engine.claim_expired(self._leases, request.limit, leasing)
            found, left = read_long(self.alias, deliveries_of(rows, leasing.lease_id))
            if left:  # these leases expire at once, and the next call takes the jobs over
                keys = lease_keys([one.lease for one in left])
                self.engine.extend_leases(self._leases, keys, 0)
        return found

    def expire_holder(self, holder: UUID) -> int:
        with explained(self.alias):
            valid = self._leases.filter(holder=holder, leased_until_us__gte=DatabaseNow())
            return valid.update(leased_until_us=DatabaseNow() - 1)

    def held_by(self, holder: UUID, *, packages: bool = True) -> list[Delivery]:
        with explained(self.alias):
            rows = list(self._leases.filter(holder=holder))
        return [
            Delivery(row.job_id, row.lease_id, b"", row.queue, -row.rank, row.attempts, row.crashes)
            for row in rows
        ]

    def withdraw(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Remove waiting jobs and their needs. The caller's transaction may be long.

        A locked job is usually moving to another table, so it is looked for again. Waiting for its
        lock could cause a deadlock, and on MariaDB the transaction that moves the job would have to
        wait for this one.
        """
        gone: set[UUID] = set()
        key_ids: set[UUID] = set()
        with explained(self.alias), transaction.atomic(using=self.alias):
            for pause_seconds in PAUSES_SECONDS:
                left = [one for one in job_ids if one not in gone]
                waiting = stored_states(self.alias, left, WAITING)
                if not waiting:
                    break
                taken, freed = self._take(waiting, waits=pause_seconds is None)
                gone |= taken
                key_ids |= freed
                if taken == waiting.keys():
                    break
                time.sleep(pause_seconds or 0)
            if key_ids:
                after_commit(self.alias, lambda: self._look_after(key_ids))
        return gone

    def _take(self, waiting: Mapping[UUID, str], *, waits: bool) -> tuple[set[UUID], set[UUID]]:
        taken: set[UUID] = set()
        left: set[UUID] = set()
        for name, model in WAITING.items():
            there = [job_id for job_id, place in waiting.items() if place == name]
            rows = model._default_manager.using(self.alias)
            guards = delete_returning_guards(rows, there, waits=waits) if there else {}
            held = {job_id: count for job_id, count in guards.items() if count}
            if held:
                left |= leave(self.alias, held, name)
            taken |= guards.keys()
        return taken, left

    def _look_after(self, key_ids: Collection[UUID]) -> None:
        """Make blocked jobs ready if these guard keys have room. Called after the commit, because
        the transaction did not lock the keys."""
        with explained(self.alias):
            queues = look_after(self.alias, key_ids)
        if queues:
            self.wake_up(queues)

    def states(self, job_ids: Sequence[UUID]) -> dict[UUID, str]:
        with explained(self.alias):
            return stored_states(self.alias, job_ids)

    def sizes(self) -> dict[str, dict[str, int]]:
        counted = [
            place._default_manager.using(self.alias)
            .values_list("queue", Value(name, CharField()))
            .annotate(count=Count("pk"))
            for name, place in PLACES.items()
        ]
        found: dict[str, dict[str, int]] = {}
        with explained(self.alias):
            for queue, name, count in counted[0].union(*counted[1:], all=True):
                found.setdefault(queue, dict.fromkeys(PLACES, 0))[name] = count
        return found

    def purge(self, queue: str) -> int:
        """Remove all waiting jobs of a queue with all their rows, in batches."""
        return sum(map(self._purge, self.waiting_in(queue)))

    def waiting_in(self, queue: str) -> Iterator[Sequence[UUID]]:
        """Yield the ready jobs last, because jobs move there from the other tables."""
        for name in ("blocked", "deferred", "ready"):
            rows = WAITING[name].objects.using(self.alias).filter(queue=queue).order_by("pk")
            later = rows
            while True:
                with explained(self.alias):
                    job_ids = list(later.values_list("pk", flat=True)[:LISTED_AT_ONCE])
                if not job_ids:
                    break
                yield job_ids
                later = rows.filter(pk__gt=job_ids[-1])

    def _purge(self, job_ids: Sequence[UUID]) -> int:
        """Delete these jobs in one transaction, as a job row without a waiting row would be a lost
        job."""
        with explained(self.alias), transaction.atomic(using=self.alias):
            gone = self.withdraw(job_ids)
            delete_of_jobs(Attempt.objects.using(self.alias), gone)
            delete_by_key(Job.objects.using(self.alias), gone)
        return len(gone)

    def ping(self) -> None:
        with explained(self.alias), connections[self.alias].cursor() as cursor:
            cursor.execute("SELECT 1")

    def info(self) -> dict[str, Any]:
        connection = connections[self.alias]
        with explained(self.alias):
            version = ".".join(str(part) for part in connection.get_database_version())
        return {"broker": f"orm://{self.alias}", "server": f"{connection.display_name} {version}"}

    def wake_up(self, queues: Iterable[str]) -> None:
        self.engine.notify()

    def open_wake(self) -> Wake:
        return self.engine.open_wake()

    def next_due_seconds(self, *, rated: bool = True) -> float | None:
        with explained(self.alias):
            if self._is_more_behind:
                return 0.0
            return self._due.seconds_until_next(rated=rated)

    def close(self) -> None:
        connections[self.alias].close()

    @property
    def _leases(self) -> ClaimedQuerySet:
        return Claimed.objects.using(self.alias)


def _is_plain(message: Message) -> bool:
    """Return whether the job is new and due, and has no guards."""
    return message.is_fresh and message.run_after is None and not message.needs
