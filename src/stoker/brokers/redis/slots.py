"""Redis Cluster: the queues of one Stoker cluster in several hash slots, so on several nodes.

Each slot is a ``RedisBroker`` with keys of its own. A queue is in one slot, chosen by its name, so
its order and its priorities stay. The lease ids of a slot end with its number. If ``?slots=N`` in
the URL changes, the old slots are still served: the first slot keeps all numbers that were used.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit
from uuid import UUID
from zlib import crc32

from stoker.brokers.contract import (
    CLAIM_BYTES,
    Broker,
    BrokerJob,
    ClaimRequest,
    Delivery,
    Lease,
    Leases,
    Return,
    Unrecorded,
)
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError
from stoker.models import Job
from stoker.models.job import JobColumns, Message

from .broker import RedisBroker
from .wake import RedisWake

MOST_SLOTS = 64
LAYOUT_SECONDS = 10.0
"""How old the known numbers of slots may be. Another process may have raised theirs."""

T = TypeVar("T")


class SlottedRedisBroker(Broker):
    """The slots of one Stoker cluster as one broker.

    Args:
        slots: the number of slots into which jobs are enqueued. Default: that in the URL, or 1.
    """

    capabilities = RedisBroker.capabilities

    def __init__(self, settings: Settings, slots: int = 0) -> None:
        super().__init__(settings)
        self._count = slots or slots_in(settings.broker)
        self.first = RedisBroker(settings)
        self._slots = [self.first]
        self._counts: tuple[int, ...] = ()
        """All numbers of slots that were ever used; the last is ours."""
        self._known_until = 0.0
        self._next = 0

    @property
    def slots(self) -> list[RedisBroker]:
        """Every slot that may have jobs.

        Raises:
            BrokerUnavailable: the first slot's node does not answer.
        """
        if time.monotonic() >= self._known_until:
            used = self.first.note_slots(self._count)
            counts = (*(one for one in used if one != self._count), self._count)
            known = self._slots
            more = range(len(known), max(counts))
            # Threads share this broker, so a list that is in use stays as it is.
            self._slots = [*known, *(RedisBroker(self.settings, self.first, n) for n in more)]
            self._counts = counts
            self._known_until = time.monotonic() + LAYOUT_SECONDS
        return self._slots

    def _slot_of(self, queue: str, count: int = 0) -> int:
        return crc32(queue.encode()) % (count or self._count)

    # -- in ---------------------------------------------------------------------------------------

    def enqueue(self, messages: Sequence[Message]) -> None:
        """Enqueue the messages. Those of one slot are added in loads, as ``RedisBroker.enqueue``
        does; if a slot cannot be reached, those of others may have been added."""
        slots = self.slots
        for number, some in grouped(messages, lambda one: self._slot_of(one.queue)).items():
            slots[number].enqueue(some)

    def relay(self, messages: Sequence[Message], *, until: float = 0.0) -> None:
        slots = self.slots
        for number, some in grouped(messages, lambda one: self._slot_of(one.queue)).items():
            fresh = self._not_relayed_elsewhere(some, number)
            # The nodes' clocks may differ.
            ahead = slots[number].now() - self.first.now() if until and number else 0.0
            slots[number].relay(fresh, until=until + ahead if until else 0.0)

    def _not_relayed_elsewhere(self, messages: list[Message], number: int) -> list[Message]:
        """Leave out jobs that were relayed when there was another number of slots."""
        old = grouped(
            ((other, one) for one in messages for other in self._old_slots(one.queue, number)),
            lambda pair: pair[0],
        )
        gone: set[UUID] = set()
        for other, pairs in old.items():
            gone |= self._slots[other].relayed([one.job_id for _, one in pairs])
        return [one for one in messages if one.job_id not in gone] if gone else messages

    def _old_slots(self, queue: str, number: int) -> set[int]:
        return {self._slot_of(queue, count) for count in self._counts} - {number}

    def relay_until(self) -> float:
        return self.first.relay_until()

    def relayed_for_good(self, job_ids: Sequence[UUID]) -> None:
        with suppress(BrokerUnavailable):
            for one in self.slots:
                one.relayed_for_good(job_ids)

    # -- out --------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> list[Delivery]:
        """Claim from one slot after the other, each time from another one first. So priority and
        age decide within a queue, but only roughly among queues. A node that does not answer does
        not keep jobs of the others from being claimed."""
        return self._collect(request, RedisBroker.claim)

    def claim_expired(self, request: ClaimRequest) -> list[Delivery]:
        return self._collect(request, RedisBroker.claim_expired)

    def _collect(
        self,
        request: ClaimRequest,
        take: Callable[[RedisBroker, ClaimRequest], list[Delivery]],
    ) -> list[Delivery]:
        slots, found, package_bytes = self.slots, list[Delivery](), 0
        self._next = (self._next + 1) % len(slots)
        failure: BrokerUnavailable | None = None
        for slot in [*slots[self._next :], *slots[: self._next]]:
            try:
                some = take(slot, request._replace(limit=request.limit - len(found)))
            except BrokerUnavailable as error:
                failure = error
                continue
            found += some
            package_bytes += sum(len(one.package) for one in some)
            if len(found) >= request.limit or package_bytes >= CLAIM_BYTES:
                break
        if failure and not found:
            raise failure
        return sorted(found, key=lambda one: (-one.priority, one.job_id))

    # -- leases -----------------------------------------------------------------------------------

    def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> set[Lease]:
        return self._by_lease(
            leases, lambda slot, some: slot.extend(some, lease_seconds=lease_seconds)
        )

    def note_handed_out(self, leases: Sequence[Lease]) -> None:
        for number, some in grouped(leases, slot_of_lease).items():
            self.slots[number].note_handed_out(some)

    def kept(self, job_ids: Sequence[UUID]) -> set[UUID]:
        return set().union(*(one.kept(job_ids) for one in self.slots))

    def settle(
        self,
        over: Sequence[Lease] = (),
        again: Sequence[Return] = (),
        *,
        failed: Collection[UUID] = (),
    ) -> set[Lease]:
        ended = grouped(over, slot_of_lease)
        returned = grouped(again, lambda back: slot_of_lease(back.lease))
        return set().union(
            *(
                self.slots[number].settle(
                    ended.get(number, ()), returned.get(number, ()), failed=failed
                )
                for number in {*ended, *returned}
            )
        )

    def finish(self, jobs: JobColumns, leases: Leases) -> Unrecorded:
        places = grouped(range(len(leases)), lambda place: slot_of_id(leases.lease_ids[place]))
        stale, returned = set[Lease](), set[Lease]()
        for number, some in places.items():
            part = leases.take(some) if len(places) > 1 else leases
            columns = jobs.take(some) if len(places) > 1 else jobs
            unrecorded = self.slots[number].finish(columns, part)
            stale |= unrecorded.stale
            returned |= unrecorded.returned
        return Unrecorded(stale, returned)

    def results(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return {key: job for one in self.slots for key, job in one.results(job_ids).items()}

    def expire_holder(self, holder: UUID) -> int:
        return sum(one.expire_holder(holder) for one in self.slots)

    def held_by(self, holder: UUID, *, packages: bool = True) -> list[Delivery]:
        return [held for one in self.slots for held in one.held_by(holder, packages=packages)]

    def _by_lease(
        self,
        leases: Sequence[Lease],
        act: Callable[[RedisBroker, Sequence[Lease]], set[Lease]],
    ) -> set[Lease]:
        groups = grouped(leases, slot_of_lease)
        return set().union(*(act(self.slots[number], some) for number, some in groups.items()))

    # -- looking ----------------------------------------------------------------------------------

    def withdraw(self, job_ids: Sequence[UUID]) -> set[UUID]:
        return set().union(*(one.withdraw(job_ids) for one in self.slots))

    def states(self, job_ids: Sequence[UUID]) -> dict[UUID, str]:
        return {key: state for one in self.slots for key, state in one.states(job_ids).items()}

    def jobs(self, job_ids: Sequence[UUID]) -> dict[UUID, BrokerJob]:
        return {key: one for slot in self.slots for key, one in slot.jobs(job_ids).items()}

    def sizes(self) -> dict[str, dict[str, int]]:
        sizes: dict[str, dict[str, int]] = {}
        for one in self.slots:
            for queue, size in one.sizes().items():
                before = sizes.get(queue, {})
                sizes[queue] = {key: before.get(key, 0) + count for key, count in size.items()}
        return sizes

    def waiting_in(self, queue: str) -> Iterator[Sequence[UUID]]:
        for one in self.slots:
            yield from one.waiting_in(queue)

    def info(self) -> dict[str, Any]:
        return self.first.info()

    def weaknesses(self) -> list[str]:
        return self.first.weaknesses()

    # -- waking up --------------------------------------------------------------------------------

    def wake_up(self, queues: Iterable[str]) -> None:
        self.first.wake_up(queues)

    def open_wake(self) -> RedisWake:
        return self.first.open_wake()

    def next_due_seconds(self, *, rated: bool = True) -> float | None:
        due = [one.next_due_seconds(rated=rated) for one in self.slots]
        return min((seconds for seconds in due if seconds is not None), default=None)

    def ping(self) -> None:
        self.first.ping()

    def close(self) -> None:
        self.first.close()

    def close_idle(self) -> None:
        self.first.close_idle()


def slots_in(url: str) -> int:
    """Return the number of slots that a URL asks for.

    Raises:
        ConfigurationError: it is not a number from 1 to ``MOST_SLOTS``.
    """
    given = parse_qs(urlsplit(url).query).get("slots", ["1"])[0]
    if not given.isdecimal() or not 1 <= int(given) <= MOST_SLOTS:
        raise ConfigurationError(
            f"BROKER ends with slots={given}, but it must be a number from 1 to {MOST_SLOTS}."
        )
    return int(given)


def grouped(items: Iterable[T], key: Callable[[T], int]) -> dict[int, list[T]]:
    groups: dict[int, list[T]] = defaultdict(list)
    for one in items:
        groups[key(one)].append(one)
    return groups


def slot_of_lease(lease: Lease) -> int:
    return slot_of_id(lease.lease_id)


def slot_of_id(lease_id: Any) -> int:
    """Return the slot in which a lease was made."""
    return int(str(lease_id).partition(".")[2] or 0)
