"""A broker outside the database, with the store in front of it.

What such a broker cannot do waits in the store and is claimed from there, as with the ORM broker:
jobs with guards, jobs of atomic tasks, packages and delays that are too large for it. So all of
that holds on every broker in the same way, and is written once. The rest goes to the broker.

Which of the two a lease is of, its id says: the store's are numbers, a broker's are strings.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from stoker.brokers.orm.broker import OrmBroker
from stoker.conf import Settings
from stoker.exceptions import BrokerError, BrokerUnavailable
from stoker.models import Job
from stoker.store.statements import with_keys
from stoker.store.wake import Wake

from .contract import Broker, Delivery, Extension, Lease, LeaseId, Leases, Message, Return

LONGEST_NAME = 100
"""Length limit of a queue name in the store."""
LOOK_SECONDS = 0.02
"""How often the store is looked at while the broker behind has jobs, and nothing says that there is
something in it."""


class FrontedBroker(Broker):
    """One broker and the store, as one.

    Args:
        behind: the broker.
    """

    def __init__(self, settings: Settings, behind: Broker) -> None:
        super().__init__(settings)
        self.behind = behind
        self.store = OrmBroker(settings)
        self.capabilities = replace(
            behind.capabilities, transactional=False, guards=True, atomic=True, delay=True
        )
        self._look_at = 0.0
        self._is_stores_turn = False
        """Whether the last claim left the store out."""

    def joins(self, message: Message) -> bool:
        """Whether it waits in the store, and so is enqueued in its transaction."""
        return not self.behind.capabilities.allow(message)

    @property
    def inside(self) -> Broker:
        return self.store

    def is_inside(self, lease_id: LeaseId) -> bool:
        return isinstance(lease_id, int)

    # -- in ---------------------------------------------------------------------------------------

    def enqueue(self, messages: Sequence[Message]) -> None:
        """All of them together only where all wait in the same place.

        Raises:
            BrokerError: a queue has a name that the store could not record.
        """
        inside, outside = sorted_out(self, messages)
        if inside:
            self.store.enqueue(inside)
        if outside:
            self.behind.enqueue(outside)

    def relay(self, messages: Sequence[Message], *, until: float = 0.0) -> None:
        """Relay messages to the broker behind. Messages for the store need no relay memory: the
        outbox itself has it."""
        self.behind.relay(messages, until=until)

    def relay_until(self) -> float:
        return self.behind.relay_until()

    def relayed_for_good(self, job_ids: Sequence[UUID]) -> None:
        self.behind.relayed_for_good(job_ids)

    # -- out --------------------------------------------------------------------------------------

    def claim(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        holder: UUID,
        lease_seconds: float,
        rated_limit: int = 1,
        permit_seconds: float = 0.0,
        passed_over: Collection[str] = (),
    ) -> list[Delivery]:
        """Claim from the store and from the broker behind, alternating which goes first, so that
        neither delays the other. If the broker fills the claim, the store is looked at by the next
        claim."""
        wish = {"holder": holder, "lease_seconds": lease_seconds, "passed_over": passed_over}
        rates = {"rated_limit": rated_limit, "permit_seconds": permit_seconds}
        found: list[Delivery] = []
        if is_stores_turn := self._is_stores_turn:
            found = self._from_store(queues, limit, **wish, **rates)
        self._is_stores_turn = not is_stores_turn
        if len(found) < limit:
            found += self._from_behind(queues, limit - len(found), is_first=not found, **wish)
        if not found:  # nothing is left out where there is nothing else to do
            self._is_stores_turn = False
            self.look_at_store()
            found = self._from_store(queues, limit, **wish, **rates)
        return found

    def _from_store(self, queues: Sequence[str], limit: int, **wish: Any) -> list[Delivery]:
        now = time.monotonic()
        if now < self._look_at:
            return []
        found = self.store.claim(queues, limit, **wish)
        self._look_at = 0.0 if found else now + LOOK_SECONDS
        return found

    def _from_behind(
        self, queues: Sequence[str], limit: int, *, is_first: bool, **wish: Any
    ) -> list[Delivery]:
        """Claim from the broker behind. If it is unavailable after the store has leased jobs,
        return an empty list, so that those leases are not lost."""
        try:
            found = self.behind.claim(queues, limit, **wish)
        except BrokerUnavailable:
            if is_first:
                raise
            return []
        repeated = [one for one in found if one.attempt > 1]
        done = self._done(repeated) if repeated else set()
        return [one for one in found if one.job_id not in done]

    def _done(self, deliveries: Sequence[Delivery]) -> set[UUID]:
        """Return and acknowledge the deliveries recorded as finished, whose worker died before it
        could acknowledge them."""
        ended = Job.objects.using(self.settings.database).exclude(status=None)
        among_these = with_keys(ended, [one.job_id for one in deliveries])
        done = set(among_these.values_list("pk", flat=True))
        if done:
            self.behind.ack([one.lease for one in deliveries if one.job_id in done])
        return done

    def claim_expired(self, limit: int, *, holder: UUID, lease_seconds: float) -> list[Delivery]:
        wish: dict[str, Any] = {"holder": holder, "lease_seconds": lease_seconds}
        found = self.store.claim_expired(limit, **wish)
        while len(found) < limit:
            over = self.behind.claim_expired(limit - len(found), **wish)
            done = self._done(over) if over else set()
            found += [one for one in over if one.job_id not in done]
            if not done:
                break
        return found

    @property
    def leaves_doubt(self) -> bool:
        return self.store.leaves_doubt

    # -- leases -----------------------------------------------------------------------------------

    def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> set[Lease]:
        return self.extend_unlocked(leases, lease_seconds=lease_seconds).stale

    def extend_unlocked(self, leases: Sequence[Lease], *, lease_seconds: float) -> Extension:
        inside, outside = self._split(leases)
        stale: set[Lease] = set()
        locked: set[Lease] = set()
        if inside:
            stale, locked = self.store.extend_unlocked(inside, lease_seconds=lease_seconds)
        if outside:
            stale = stale | self.behind.extend(outside, lease_seconds=lease_seconds)
        return Extension(stale, locked)

    def note_handed_out(self, leases: Sequence[Lease]) -> None:
        inside, outside = self._split(leases)
        if inside:
            self.store.note_handed_out(inside)
        if outside:
            self.behind.note_handed_out(outside)

    def kept(self, job_ids: Sequence[UUID]) -> set[UUID]:
        return self.store.kept(job_ids) | self.behind.kept(job_ids)

    def ack(self, leases: Sequence[Lease], *, failed: Collection[UUID] = ()) -> set[Lease]:
        return self.settle(leases, (), failed=failed)

    def release(self, returns: Sequence[Return]) -> set[Lease]:
        return self.settle((), returns)

    def settle(
        self, over: Sequence[Lease], again: Sequence[Return], *, failed: Collection[UUID] = ()
    ) -> set[Lease]:
        if not again and isinstance(over, Leases) and set(map(type, over.lease_ids)) <= {str}:
            return self.behind.settle(over, (), failed=failed)
        over_inside, over_outside = self._split(over)
        again_inside = [back for back in again if self.is_inside(back.lease.lease_id)]
        again_outside = [back for back in again if not self.is_inside(back.lease.lease_id)]
        stale: set[Lease] = set()
        if over_inside or again_inside:
            stale |= self.store.settle(over_inside, again_inside, failed=failed)
        if over_outside or again_outside:
            stale |= self.behind.settle(over_outside, again_outside, failed=failed)
        return stale

    def expire_holder(self, holder: UUID) -> int:
        return self.store.expire_holder(holder) + self.behind.expire_holder(holder)

    def held_by(self, holder: UUID, *, packages: bool = True) -> list[Delivery]:
        inside = self.store.held_by(holder, packages=packages)
        return inside + self.behind.held_by(holder, packages=packages)

    def _split(self, leases: Iterable[Lease]) -> tuple[list[Lease], list[Lease]]:
        inside: list[Lease] = []
        outside: list[Lease] = []
        for lease in leases:
            (inside if self.is_inside(lease.lease_id) else outside).append(lease)
        return inside, outside

    # -- looking ----------------------------------------------------------------------------------

    def withdraw(self, job_ids: Sequence[UUID]) -> set[UUID]:
        gone = self.store.withdraw(job_ids)
        rest = [job_id for job_id in job_ids if job_id not in gone]
        return gone | self.behind.withdraw(rest) if rest else gone

    def whereabouts(self, job_ids: Sequence[UUID]) -> dict[UUID, str]:
        found = self.store.whereabouts(job_ids)
        rest = [job_id for job_id in job_ids if job_id not in found]
        return found | self.behind.whereabouts(rest) if rest else found

    def sizes(self) -> dict[str, dict[str, int]]:
        return merged(self.store.sizes(), self.behind.sizes())

    def purge(self, queue: str) -> int:
        return self.store.purge(queue) + self.behind.purge(queue)

    def ping(self) -> None:
        self.store.ping()
        self.behind.ping()

    def info(self) -> dict[str, Any]:
        return self.behind.info()

    def weaknesses(self) -> list[str]:
        return self.behind.weaknesses()

    # -- waking up --------------------------------------------------------------------------------

    def wake_up(self, queues: Iterable[str], *, inside: bool = True) -> None:
        if inside:
            self.store.wake_up(queues)
        elif not self.behind.capabilities.announces:
            self.behind.wake_up(queues)

    def look_at_store(self) -> None:
        """Something came there."""
        self._look_at = 0.0

    def open_wake(self) -> Wake:
        return FrontedWake(self.store.open_wake(), self.behind.open_wake(), self.look_at_store)

    def next_due_seconds(self, *, rated: bool = True) -> float | None:
        due = [self.store.next_due_seconds(rated=rated), self.behind.next_due_seconds(rated=rated)]
        return min((seconds for seconds in due if seconds is not None), default=None)

    def close(self) -> None:
        self.store.close()
        self.behind.close()


def merged(
    sizes: dict[str, dict[str, int]], more: dict[str, dict[str, int]]
) -> dict[str, dict[str, int]]:
    """The one with the other added."""
    for queue, counts in more.items():
        known = sizes.setdefault(queue, {})
        for state, count in counts.items():
            known[state] = known.get(state, 0) + count
    return sizes


def sorted_out(broker: Broker, messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Split messages into those that wait in the store and those for the broker.

    Raises:
        BrokerError: a queue name cannot be stored.
    """
    for message in messages:
        _refuse_name(message.queue)
    inside = [message for message in messages if broker.joins(message)]
    return inside, [message for message in messages if not broker.joins(message)]


def _refuse_name(queue: str) -> None:
    """Raises BrokerError where the store could not record a queue of that name."""
    if not 0 < len(queue) <= LONGEST_NAME or "\0" in queue:
        raise BrokerError(
            f"There is no queue {queue!r}: a name has 1 to {LONGEST_NAME} characters, none of them "
            "NUL."
        )


class FrontedWake(Wake):
    """Sleeps on both.

    Args:
        look_at_store: called when something has come there.
    """

    def __init__(self, store: Wake, behind: Wake, look_at_store: Callable[[], object]) -> None:
        self._look_at_store = look_at_store
        self._store = store
        self._behind = behind
        self._both: Any = selectors.DefaultSelector()
        self._watched: set[int] = set()
        self._note_longest_sleep()

    def fileno(self) -> int | None:
        """One descriptor for those of both, which change when a connection is opened anew."""
        wanted = {number for one in (self._store, self._behind) if (number := one.fileno())}
        for number in self._watched - wanted:
            with suppress(KeyError, OSError):  # it is closed, and so not watched any more
                self._both.unregister(number)
        for number in wanted:
            with suppress(KeyError):
                self._both.register(number, selectors.EVENT_READ)
        self._watched = wanted
        return self._both.fileno() if wanted else None

    def is_due(self) -> bool:
        has_store_woken = self._store.is_due()
        if has_store_woken:
            self._look_at_store()
        has_woken = self._behind.is_due() or has_store_woken
        self._note_longest_sleep()
        return has_woken

    def close(self) -> None:
        self._store.close()
        self._behind.close()
        self._both.close()

    def _note_longest_sleep(self) -> None:
        longest = [one.max_sleep_seconds for one in (self._store, self._behind)]
        self.max_sleep_seconds = min((one for one in longest if one is not None), default=None)
