"""Decide where each job of a backend waits: in the store, in a broker outside it, or in an outbox.

Jobs that a broker cannot handle wait in the store and are claimed from there: jobs with guards,
jobs of atomic tasks, packages and delays that are too large. All other jobs go to the broker. The
jobs of a server that only transports messages (``transport``) are moved into the store before they
are claimed (``arrivals``).

The type of a lease id tells who granted the lease: the store's ids are numbers, a broker's are
strings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from stoker.conf import Settings
from stoker.exceptions import BrokerError, BrokerUnavailable
from stoker.models import Job
from stoker.models.job import JobColumns, Message
from stoker.models.outbox import Outgoing, find_outgoing, possible_outboxes
from stoker.setting_values import QUEUE_NAME, is_queue_name
from stoker.store.statements import delete_by_key, insert_with_packages, with_keys
from stoker.store.transactions import after_commit
from stoker.store.wake import EitherWake, Wake

from .arrivals import Arrivals
from .contract import (
    Broker,
    BrokerJob,
    ClaimRequest,
    Delivery,
    Extension,
    Lease,
    LeaseId,
    Leases,
    Return,
    Unrecorded,
)
from .orm.broker import OrmBroker
from .outage import RelayPause, no_info, read_or_default

LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.02, 0.1
"""First and longest pause between claims from the store while it is empty and the broker has
jobs. The pause doubles with each empty claim. It is reset when a job comes to the store."""
AT_ONCE = 1000


class Dispatch:
    """The store, the broker and the outboxes of one backend.

    Args:
        settings: settings of the backend.
        store: the tables of the project's database. None: the broker keeps all jobs.
        broker: carries the other jobs: a broker, or the arrivals from a message server. None: all
            jobs wait in the store.
    """

    def __init__(
        self,
        settings: Settings,
        store: OrmBroker | None,
        broker: Broker | Arrivals | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.broker = None if isinstance(broker, Arrivals) else broker
        self.arrivals = broker if isinstance(broker, Arrivals) else None
        self._outside = broker
        self.lessors: list[Broker] = [one for one in (store, self.broker) if one is not None]
        """The store and the broker, if they exist: both grant leases."""
        self._places: list[Broker | Arrivals] = [
            one for one in (store, self._outside) if one is not None
        ]
        self.capabilities = self._places[-1].capabilities
        if store is not None and self._outside is not None:
            self.capabilities = replace(
                self.capabilities, transactional=False, guards=True, atomic=True
            )
        self.relay_batch = 500 if self.arrivals is None else self.arrivals.relay_batch
        """Number of outbox jobs to relay together. If that fails, all of them are sent once
        more."""
        self.sees_pauses = store is not None and self._outside is None and store.sees_pauses
        """Whether claims skip paused queues even if ``passed_over`` does not name them."""
        self.relay_pause = RelayPause()
        self._look_at = 0.0
        self._look_pause_seconds = LOOK_SECONDS
        self._is_stores_turn = False
        """Whether the next claim starts with the store, because the last one skipped it."""
        self._lost: Broker | None = None
        """The broker, if it did not answer the last claim, in which the store leased jobs."""

    def joins(self, message: Message) -> bool:
        """Return whether this job waits in the store, so that it is enqueued in the caller's
        transaction."""
        if self.store is None:
            return False
        return self._outside is None or not self._outside.takes(message)

    def is_inside(self, lease_id: LeaseId) -> bool:
        """Return whether the store granted this lease, so that it can end in the store's
        transaction."""
        return self.store is not None and isinstance(lease_id, int)

    # -- in ---------------------------------------------------------------------------------------

    def enqueue(self, messages: Sequence[Message]) -> None:
        """Add jobs. If all of them wait in the same place, either all are added or none. A job
        whose id exists there already is not added again.

        Raises:
            BrokerError: the store could not record a queue of that name.
        """
        if len(self._places) == 1:
            self.lessors[0].enqueue(messages)
            return
        for message in messages:
            _refuse_name(message.queue)
        inside, outside = self._split(messages)
        if inside:
            self._places[0].enqueue(inside)
        if outside:
            self._places[1].enqueue(outside)

    def deliver(self, messages: Sequence[Message]) -> None:
        """Enqueue jobs as part of the open transaction on the store's database.

        Jobs for a broker outside the store are written to the outbox. This process relays them to
        the broker after the commit. If it dies before that, a scheduler relays them.
        """
        alias = self.settings.database
        inside, outside = self._split(messages)
        if inside:
            for start in range(0, len(inside), AT_ONCE):
                self.enqueue(inside[start : start + AT_ONCE])
            after_commit(alias, partial(self.wake_up, {message.queue for message in inside}))
        if outside:
            rows = [Outgoing.of_message(self.settings.alias, message) for message in outside]
            outgoing = Outgoing.objects.using(alias)
            insert_with_packages(outgoing, rows, ignore_conflicts=True)
            after_commit(alias, partial(self.relay_outbox, [message.job_id for message in outside]))

    def relay_outbox(self, job_ids: Sequence[UUID]) -> None:
        """Relay these rows of the store's outbox, except those that other processes relay."""
        if not self.relay_pause.is_over:
            return
        alias, asked_at = self.settings.database, time.monotonic()
        outgoing = Outgoing.objects.using(alias)

        def relay(rows: Sequence[Outgoing], until: float) -> None:
            self.relay([row.as_message() for row in rows], until=until)

        for start in range(0, len(job_ids), self.relay_batch):
            lock = partial(outgoing.lock_these, job_ids[start : start + self.relay_batch])
            try:
                rows = self.move_outbox(alias, lock, relay)
            except BrokerError as error:
                self.relay_pause.begin(error, asked_at)
                return
            self.wake_up({row.queue for row in rows}, inside=False)

    def move_outbox(
        self,
        alias: str,
        lock: Callable[[], Sequence[Outgoing]],
        write: Callable[[Sequence[Outgoing], float], None],
    ) -> list[Outgoing]:
        """In one transaction, lock rows of an outbox, pass them to ``write`` and delete them.
        Return the rows.

        Args:
            alias: the database of the outbox.
            lock: locks and returns the rows.
            write: relays the rows, if any. Also gets the time after which the broker refuses
                them, see ``Broker.relay_until``. If it raises, the rows stay in the outbox.
        """
        until = 0.0 if self.broker is None else self.broker.relay_until()
        outgoing = Outgoing.objects.using(alias)
        with outgoing.moving():
            rows = list(lock())
            if rows:
                write(rows, until)
                job_ids = [row.pk for row in rows]
                delete_by_key(outgoing, job_ids)
                if self.broker is not None:
                    after_commit(alias, partial(self.broker.relayed_for_good, job_ids))
        return rows

    def relay(self, messages: Sequence[Message], *, until: float = 0.0) -> None:
        """Relay jobs from an outbox to the broker outside the store, see ``Broker.relay``. Jobs
        for the store are added by the caller, in a transaction that records their ids."""
        if self.broker is not None:
            self.broker.relay(messages, until=until)
        elif self.arrivals is not None:
            # If a message is sent twice, the store recognises the second one.
            self.arrivals.enqueue(messages)

    def outboxes(self) -> list[str]:
        """Return the aliases of the databases that may have an outbox for this backend."""
        joins = self.capabilities.transactional
        return possible_outboxes(self.settings.database, joins_transactions=joins)

    def outgoing(self, job_ids: Collection[UUID]) -> Iterator[Outgoing]:
        """Yield the rows of the given jobs that are still in an outbox, so have not been relayed
        yet.

        Raises:
            BrokerUnavailable: a database did not answer.
        """
        for alias in self.outboxes() if job_ids else ():
            yield from find_outgoing(alias, job_ids, self.settings)

    def _split(self, messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
        """Return the messages for the store, and the messages for the broker."""
        inside: list[Message] = []
        outside: list[Message] = []
        for message in messages:
            (inside if self.joins(message) else outside).append(message)
        return inside, outside

    # -- out --------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> list[Delivery]:
        """Lease due jobs.

        The store goes first in one claim and the broker in the next, so that neither delays the
        other. If the broker fills the claim, the next claim starts with the store. While the
        broker does not answer, ``Claims`` asks the store alone.
        """
        if self.arrivals is not None:
            return self.arrivals.claim(request)
        if len(self.lessors) == 1:
            return self.lessors[0].claim(request)
        self._lost = None
        found: list[Delivery] = []
        if is_stores_turn := self._is_stores_turn:
            found = self._from_store(request)
        self._is_stores_turn = not is_stores_turn
        if room := request.limit - len(found):
            found += self._from_broker(request._replace(limit=room), is_first=not found)
        if not found:  # also ask the place that would be skipped, because there are no other jobs
            self._is_stores_turn = False
            self.look_at_store()
            found = self._from_store(request)
        return found

    def _from_store(self, request: ClaimRequest) -> list[Delivery]:
        now = time.monotonic()
        if now < self._look_at:
            return []
        assert self.store is not None
        found = self.store.claim(request)
        if found:
            self.look_at_store()
        else:
            self._look_at = now + self._look_pause_seconds
            self._look_pause_seconds = min(2 * self._look_pause_seconds, LONGEST_LOOK_SECONDS)
        return found

    def _from_broker(self, request: ClaimRequest, *, is_first: bool) -> list[Delivery]:
        """Claim from the broker. If it is unavailable after the store has leased jobs, return an
        empty list, so that those leases are not lost."""
        assert self.broker is not None
        try:
            found = self.broker.claim(request)
        except BrokerUnavailable:
            if is_first:
                raise
            self._lost = self.broker
            return []
        repeated = [one for one in found if one.attempt > 1]
        done = self._done(repeated) if repeated else set()
        return [one for one in found if one.job_id not in done]

    def _done(self, deliveries: Sequence[Delivery]) -> set[UUID]:
        """Ack the deliveries of a broker that are recorded as finished, and return their job ids.
        There are such deliveries if the process that recorded them died before it acked them."""
        ended = Job.objects.using(self.settings.database).exclude(status=None)
        among_these = with_keys(ended, [one.job_id for one in deliveries])
        done = set(among_these.values_list("pk", flat=True))
        if done and self.broker is not None:
            self.broker.settle([one.lease for one in deliveries if one.job_id in done])
        return done

    def claim_expired(self, request: ClaimRequest, only: Broker | None = None) -> list[Delivery]:
        """Take over jobs whose lease has ended, see ``Broker.claim_expired``; ``only`` from one."""
        found: list[Delivery] = []
        try:
            for place in self.lessors if only is None else [only]:
                while room := request.limit - len(found):
                    over = place.claim_expired(request._replace(limit=room))
                    done = self._done(over) if over and place is not self.store else set()
                    found += [one for one in over if one.job_id not in done]
                    if not done:
                        break
        except BrokerUnavailable:
            if not found:  # otherwise the leases that the store has granted would be lost
                raise
        return found

    def in_doubt(self) -> list[Broker]:
        """Return the lessors that may have leased more jobs than the last claim returned."""
        return [one for one in self.lessors if one.leaves_doubt or one is self._lost]

    @property
    def is_partial(self) -> bool:
        """Return whether jobs of a server are missing in an answer, see ``Broker.is_partial``."""
        return self.broker is not None and self.broker.is_partial

    # -- leases -----------------------------------------------------------------------------------

    def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> set[Lease]:
        """Let each lease end ``lease_seconds`` from now. Wait for transactions that have locked
        some of them. Return the stale leases."""
        stale: set[Lease] = set()
        for place, theirs in self._by_lessor(leases):
            stale |= place.extend(theirs, lease_seconds=lease_seconds)
        return stale

    def extend_unlocked(self, leases: Sequence[Lease], *, lease_seconds: float) -> Extension:
        """Extend leases. Skip those whose rows another transaction has locked, or whose server is
        one of several and down. Return the stale leases, and the skipped ones."""
        stale: set[Lease] = set()
        locked: set[Lease] = set()
        for place, theirs in self._by_lessor(leases):
            gone, held = place.extend_unlocked(theirs, lease_seconds=lease_seconds)
            stale |= gone
            locked |= held
        return Extension(stale, locked)

    def note_handed_out(self, leases: Sequence[Lease]) -> None:
        """Record that these jobs are being sent to workers, see ``Broker.note_handed_out``."""
        for place, theirs in self._by_lessor(leases):
            place.note_handed_out(theirs)

    def kept(self, leases: Sequence[Lease]) -> set[UUID]:
        """Return the jobs in their last attempt that no worker has received: see ``Broker``."""
        parts = self._by_lessor(leases)
        return {one for place, part in parts for one in place.kept(part)}

    def settle(
        self,
        over: Sequence[Lease] = (),
        again: Sequence[Return] = (),
        *,
        failed: Collection[UUID] = (),
    ) -> set[Lease]:
        """End leases, first those of the store, then those of the broker, see ``Broker.settle``."""
        if len(self.lessors) == 1:
            return self.lessors[0].settle(over, again, failed=failed)
        stale: set[Lease] = set()
        for place in self.lessors:
            is_inside = place is self.store
            ended = [one for one in over if self.is_inside(one.lease_id) is is_inside]
            returned = [one for one in again if self.is_inside(one.lease.lease_id) is is_inside]
            if ended or returned:
                stale |= place.settle(ended, returned, failed=failed)
        return stale

    def begin_settle(
        self, over: Leases, again: Sequence[Return], failed: Collection[UUID]
    ) -> Callable[[], object]:
        """Begin to end leases of the broker outside the store, see ``Broker.begin_settle``."""
        assert self.broker is not None
        return self.broker.begin_settle(over, again, failed=failed)

    @property
    def finishes(self) -> bool:
        """Return whether the broker records successes in place of the store, see
        ``Broker.finish``."""
        if self.broker is None or not self.broker.capabilities.results:
            return False
        return self.settings.results == "redis" or not self.settings.keeps_successes

    def finish(self, jobs: JobColumns, leases: Leases) -> Unrecorded:
        """Record successes at the broker, see ``Broker.finish``."""
        assert self.broker is not None
        return self.broker.finish(jobs, leases)

    def results(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        """Return job id -> job, for the results that the broker keeps."""
        return read_or_default(self.broker.results, {}, job_ids) if self.broker and job_ids else {}

    def expire_holder(self, holder: UUID) -> int:
        """End all leases of a holder that is known to be dead. Return their number."""
        return sum(place.expire_holder(holder) for place in self.lessors)

    def held_by(self, holder: UUID, *, packages: bool = True) -> list[Delivery]:
        """Return the deliveries that a holder has leased, see ``Broker.held_by``."""
        return [one for place in self.lessors for one in place.held_by(holder, packages=packages)]

    def _by_lessor(self, leases: Sequence[Lease]) -> list[tuple[Broker, Sequence[Lease]]]:
        """Return the leases of the store and those of the broker, without empty parts."""
        if len(self.lessors) == 1:
            return [(self.lessors[0], leases)]
        parts: list[list[Lease]] = [[], []]
        for lease in leases:
            parts[not self.is_inside(lease.lease_id)].append(lease)
        return [(place, part) for place, part in zip(self.lessors, parts, strict=True) if part]

    # -- looking ----------------------------------------------------------------------------------

    def withdraw(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Remove waiting jobs. Return the ids of the removed jobs. A leased job stays."""
        gone: set[UUID] = set()
        for place in self._places:
            if rest := [job_id for job_id in job_ids if job_id not in gone]:
                gone |= place.withdraw(rest)
        return gone

    def not_arrived(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Return the ids of the jobs that may still be messages on a server without look-up."""
        return set() if self.arrivals is None else self.arrivals.not_arrived(job_ids)

    def states(self, job_ids: Sequence[UUID]) -> dict[UUID, str]:
        """Return job id -> "ready", "deferred", "blocked" or "running", for the jobs that wait or
        run. Leave out jobs in an outbox, and messages that have not arrived."""
        found: dict[UUID, str] = {}
        for place in self.lessors:
            if rest := [job_id for job_id in job_ids if job_id not in found]:
                found |= read_or_default(place.states, {}, rest)
        return found

    def jobs(self, job_ids: Sequence[UUID]) -> dict[UUID, BrokerJob]:
        """Return job id -> job, for the jobs of a broker outside the store."""
        return read_or_default(self.broker.jobs, {}, job_ids) if self.broker and job_ids else {}

    def sizes(self) -> dict[str, dict[str, int]]:
        """Return queue -> {"ready": n, "deferred": n, "blocked": n, "running": n}."""
        sizes: dict[str, dict[str, int]] = {}
        for place in self._places:
            for queue, counts in read_or_default(place.sizes, {}).items():
                known = sizes.setdefault(queue, {})
                for state, count in counts.items():
                    known[state] = known.get(state, 0) + count
        return sizes

    def purge(self, queue: str) -> int:
        """Remove all waiting jobs of a queue. Return their number."""
        return sum(place.purge(queue) for place in self._places)

    def ping(self) -> None:
        """Raise BrokerUnavailable if the store or the broker does not answer."""
        for place in self._places:
            place.ping()

    def info(self) -> dict[str, Any]:
        """Return ``{"broker": ..., "server": ...}`` for display."""
        return read_or_default(self._places[-1].info, no_info(self.settings))

    def weaknesses(self) -> list[str]:
        """Return the weaknesses of the store and the broker, see ``Broker.weaknesses``."""
        return self._places[-1].weaknesses()

    # -- waking up --------------------------------------------------------------------------------

    def wake_up(self, queues: Iterable[str], *, inside: bool = True) -> None:
        """Wake sleeping pushers because of new jobs. Best effort: may do nothing, must not raise.

        Args:
            queues: the queues of the new jobs.
            inside: whether the jobs are in the store. A broker outside the store wakes pushers
                itself.
        """
        if inside or self.store is None:
            self.lessors[0].wake_up(queues)

    def look_at_store(self) -> None:
        """Let the next claim start with the store, because the store has a new job."""
        self._look_at = 0.0
        self._look_pause_seconds = LOOK_SECONDS

    def open_wake(self) -> Wake:
        """Return the wake-up source on which a pusher sleeps."""
        wakes = [place.open_wake() for place in self._places]
        return wakes[0] if len(wakes) == 1 else EitherWake(wakes[0], wakes[1], self.look_at_store)

    def next_due_seconds(self, *, rated: bool = True) -> float | None:
        """Return the seconds until the next deferred job is due, or None if none is known.

        Args:
            rated: whether jobs that wait for their rate count, too.
        """
        due = [place.next_due_seconds(rated=rated) for place in self.lessors]
        return min((seconds for seconds in due if seconds is not None), default=None)

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        for place in self._places:
            place.close()


def _refuse_name(queue: str) -> None:
    """Raise BrokerError if the store could not record a queue of that name."""
    if not is_queue_name(queue):
        raise BrokerError(f"There is no queue {queue!r}: {QUEUE_NAME}.")
