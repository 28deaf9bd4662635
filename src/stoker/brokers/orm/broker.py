"""The ORM broker: packages wait in the project's own database, in the caller's transaction."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any
from uuid import UUID

from django.db import (
    DatabaseError,
    connections,
    transaction,
)

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
from stoker.exceptions import (
    ConfigurationError,
)
from stoker.guards.admission import Rated
from stoker.guards.sweep import call_due, look_after
from stoker.models import Attempt, Claimed, Job
from stoker.models.claimed import Claim, GivenBack, Leasing
from stoker.models.job import Message
from stoker.signals import tell
from stoker.store.engines.sessions import explained
from stoker.store.places import WAITING
from stoker.store.store import Store
from stoker.store.transactions import after_commit, is_locked_out
from stoker.store.wake import Wake
from stoker.store.written import microseconds
from stoker.values.ids import new_lease_id

from .claim import Claiming, Watermarks, read_long, what_is_due


def deliveries_of(claims: Iterable[Claim], lease_id: int) -> list[Delivery]:
    """Return deliveries that all share one lease id object. So it is sent to a worker only once.
    Packages that the claim did not read are empty."""
    return [
        Delivery(job_id, lease_id, bytes(package or b""), *rest)
        for job_id, _, package, *rest in claims
    ]


PACKAGE = itemgetter(2)
"""Position of the package in a ``Delivery``."""


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


PROMOTE_AT_ONCE = 500
"""Deferred jobs moved per statement when they fall due."""
PROMOTE_SECONDS = 0.1
"""How often due jobs are moved while claims come back full: a backlog must not delay them."""
TRUST_SECONDS = 1.0
"""How long the answer that nothing falls due is cached. A job enqueued to be due sooner is still
found: a claim that finds nothing looks again, and one that finds others delays it once."""
LOOK_BEHIND_SECONDS = 0.05
"""How long a claim goes on while guards refuse all jobs that it finds. Jobs behind them may be free
to start."""
CAREFUL_SECONDS = 10.0
"""How long claims skip locked guard keys after they met one that stayed locked."""
PURGE_AT_ONCE = 500


class OrmBroker(Broker):
    """Jobs in the tables of one database alias (``orm://ALIAS``)."""

    capabilities = Capabilities(transactional=True, guards=True, atomic=True)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.alias = settings.database
        if self.alias not in connections:
            raise ConfigurationError(
                f'TASKS["{settings.alias}"]["OPTIONS"]["BROKER"] is {settings.broker!r}, '
                f"but DATABASES has no {self.alias!r}."
            )
        self._promote_at = 0.0
        self._had_room = True
        self._nothing_due_until = 0.0
        """Monotonic time in seconds up to which no deferred job is expected to fall due."""
        self._is_more_behind = False
        self._leaves_doubt = False
        self._marks = Watermarks(self.alias)
        self._careful_until = 0.0
        self._knows_rates = False
        """Whether a job with a rate was ever claimed."""
        self.store = Store(settings)
        self.sees_pauses = self.store.engine.claims_by_marks
        """Whether claims see for themselves which queues are paused."""

    def enqueue(self, messages: Sequence[Message]) -> None:
        with explained(self.alias):
            if len(messages) == 1 and messages[0].is_fresh:
                self.store.add_fresh(messages[0])
            else:
                self.store.add(messages)

    def claim(self, request: ClaimRequest) -> list[Delivery]:
        rated_limit, limit = request.rated_limit, request.limit
        rated = Rated(rated_limit, microseconds(request.permit_seconds), time.monotonic())
        leasing = leasing_of(request)

        def claim_ready() -> list[Delivery]:
            named = dict.fromkeys(request.queues or self._marks.queues)
            served = [name for name in named if name not in request.passed_over]
            return self._claim_ready(served, limit, leasing, rated)

        def claim() -> list[Delivery]:
            return self._marks.guide(claim_ready, request.queues, lambda: self._is_more_behind)

        with explained(self.alias):
            now = time.monotonic()
            has_looked = self._had_room or now >= self._promote_at
            if has_looked := has_looked and now >= self._nothing_due_until:
                # else jobs due before the watermark were left out
                has_looked = not self._marks.due_from_us
                self._promote_due(rated_limit)
            # jobs with a rate wait for a permit, and not for other jobs to end
            elif self._knows_rates:
                self._call_due(rated_limit)
            deliveries = claim()
            if not deliveries and not has_looked and self._promote_due(rated_limit):
                deliveries = claim()
        self._had_room = len(deliveries) < limit
        self._knows_rates = self._knows_rates or any(one.permit_seconds for one in deliveries)
        return deliveries

    def _claim_ready(
        self, served: Sequence[str], limit: int, leasing: Leasing, rated: Rated
    ) -> list[Delivery]:
        """Claim ready jobs of the queues. Raise nothing after a job is leased, because its holder
        would not learn of the lease."""
        waits = time.monotonic() >= self._careful_until
        claiming = Claiming(self.alias, served, limit, leasing, rated, self._marks, waits=waits)
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
            if is_locked_out(error):
                self._be_careful()
            elif not deliveries:
                raise
            else:
                self._leaves_doubt = True
            tell("guards_put_off", error=error)
        if claiming.has_met_locks:
            self._be_careful()
        return deliveries if all(map(PACKAGE, deliveries)) else self._with_long(deliveries)

    def _with_long(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Read the packages that a claim left out, and release the jobs that have no room."""
        read = [one for one in deliveries if one.package]
        try:
            read, left = read_long(self.alias, deliveries)
            if left:
                self._marks.forget()
                again = [
                    Return(one.lease, attempts=one.attempt - 1, crashes=one.crashes) for one in left
                ]
                self._call(self.store.settle((), (), given_back(again)).queues)
        except DatabaseError:
            if not read:
                raise
            self._leaves_doubt = True
        return read

    @property
    def leaves_doubt(self) -> bool:
        """Whether the last claim may have leased more than it returned, because the answer to a
        statement was lost."""
        return self._leaves_doubt

    def _be_careful(self) -> None:
        """Do not wait for guard keys in the next claims. Another transaction holds some for longer
        than Stoker's own transactions would."""
        self._careful_until = time.monotonic() + CAREFUL_SECONDS

    def _promote_due(self, rated_limit: int) -> int:
        """Move due jobs to ready and return their number."""
        self._promote_at = time.monotonic() + PROMOTE_SECONDS
        from_us = self._marks.due_from_us
        due = what_is_due(self.alias, from_us)
        called = self._call_due(rated_limit) if due.keys else 0
        promoted = self.store.promote(PROMOTE_AT_ONCE, from_us) if due.jobs else []
        if due.jobs:
            self._marks.begin_due_at(due.first_us)
        self._marks.lower(promoted)
        return called + len(promoted)

    def _call_due(self, rated_limit: int) -> int:
        called = call_due(self.alias, rated_limit)
        if called:
            self._marks.forget()
        return called

    def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> set[Lease]:
        stale, locked = self.extend_unlocked(leases, lease_seconds=lease_seconds)
        # the other transaction may end these leases: wait for it to learn which are stale
        if locked:
            with explained(self.alias):
                valid = self.store.extend_waiting(
                    lease_keys(list(locked)), microseconds(lease_seconds)
                )
            stale |= {lease for lease in locked if (lease.job_id, lease.lease_id) not in valid}
        return stale

    def extend_unlocked(self, leases: Sequence[Lease], *, lease_seconds: float) -> Extension:
        """Extend these leases, but wait for no transaction that holds one of them."""
        with explained(self.alias):
            valid, locked = self.store.extend(lease_keys(leases), microseconds(lease_seconds))
        if len(valid) == len(leases):  # nearly always
            return Extension(set(), set())
        keyed = {(lease.job_id, lease.lease_id): lease for lease in leases}
        return Extension(
            {lease for key, lease in keyed.items() if key not in valid and key not in locked},
            {keyed[key] for key in locked},
        )

    def note_handed_out(self, leases: Sequence[Lease]) -> None:
        with explained(self.alias):
            Claimed.objects.using(self.alias).note_handed_out(lease_keys(leases))

    def kept(self, job_ids: Sequence[UUID]) -> set[UUID]:
        with explained(self.alias):
            return Claimed.objects.using(self.alias).kept(job_ids)

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
            returned = given_back(again)
            freed = self.store.settle(ended.job_ids, ended.lease_ids, returned, failed)
        self._call(freed.queues)
        if len(freed.rows) == len(ended.job_ids) + len(again):  # nearly always
            return set()
        leases = [*over, *(back.lease for back in again)]
        valid = freed.valid
        return {lease for lease in leases if (lease.job_id, lease.lease_id) not in valid}

    def _call(self, queues: Collection[str]) -> None:
        """Wake the pushers of the queues after the commit, because blocked jobs have become
        ready."""
        if queues:
            after_commit(self.alias, lambda: self.wake_up(queues))

    def claim_expired(self, request: ClaimRequest) -> list[Delivery]:
        leasing = leasing_of(request)
        with explained(self.alias):
            rows = self.store.claim_expired(request.limit, leasing)
            found, left = read_long(self.alias, deliveries_of(rows, leasing.lease_id))
            if left:  # they expire at once, for the next call
                self.store.extend(lease_keys([one.lease for one in left]), 0)
        return found

    def expire_holder(self, holder: UUID) -> int:
        with explained(self.alias):
            return self.store.expire_holder(holder)

    def held_by(self, holder: UUID, *, packages: bool = True) -> list[Delivery]:
        with explained(self.alias):
            rows = list(Claimed.objects.using(self.alias).filter(holder=holder))
        return [
            Delivery(row.job_id, row.lease_id, b"", row.queue, -row.rank, row.attempts, row.crashes)
            for row in rows
        ]

    def withdraw(self, job_ids: Sequence[UUID]) -> set[UUID]:
        with explained(self.alias), transaction.atomic(using=self.alias):
            gone, key_ids = self.store.withdraw(job_ids)
            if key_ids:
                after_commit(self.alias, lambda: self._look_after(key_ids))
        return gone

    def _look_after(self, key_ids: Collection[UUID]) -> None:
        """Let other jobs take the places under these guard keys. Called after the commit, because
        the transaction did not lock the keys."""
        with explained(self.alias):
            queues = look_after(self.alias, key_ids)
        if queues:
            self.wake_up(queues)

    def states(self, job_ids: Sequence[UUID]) -> dict[UUID, str]:
        with explained(self.alias):
            return self.store.states(job_ids)

    def sizes(self) -> dict[str, dict[str, int]]:
        with explained(self.alias):
            return self.store.sizes()

    def purge(self, queue: str) -> int:
        """Remove all waiting jobs of a queue with all their rows, in batches."""
        removed = 0
        with explained(self.alias):
            while job_ids := self._waiting_in(queue):
                removed += self._purge(job_ids)
        return removed

    def _waiting_in(self, queue: str) -> list[UUID]:
        """Return some waiting jobs of a queue, from the first table that has any. It is called
        until none is left, as jobs move between tables during a purge."""
        for model in WAITING.values():
            waiting = model.objects.using(self.alias).filter(queue=queue)
            if job_ids := list(waiting.values_list("pk", flat=True)[:PURGE_AT_ONCE]):
                return job_ids
        return []

    def _purge(self, job_ids: Sequence[UUID]) -> int:
        """Delete these jobs in one transaction, as a job row without a waiting row would be a lost
        job."""
        with transaction.atomic(using=self.alias):
            gone = self.withdraw(job_ids)
            Attempt.objects.using(self.alias).filter(job_id__in=gone).delete()
            Job.objects.using(self.alias).filter(pk__in=gone).delete()
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
        self.store.engine.notify()

    def open_wake(self) -> Wake:
        return self.store.engine.open_wake()

    def next_due_seconds(self, *, rated: bool = True) -> float | None:
        with explained(self.alias):
            if self._is_more_behind:
                return 0.0
            asked_at = time.monotonic()
            due = what_is_due(self.alias, rated=rated).seconds
        if rated:
            certain = TRUST_SECONDS if due is None else min(due, TRUST_SECONDS)
            self._nothing_due_until = asked_at + certain
        return due

    def close(self) -> None:
        connections[self.alias].close()


def leasing_of(request: ClaimRequest) -> Leasing:
    return Leasing(new_lease_id(), request.holder, microseconds(request.lease_seconds))
