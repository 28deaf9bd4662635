"""Redis Cluster: the queues of one Stoker cluster in several hash slots, so on several nodes.

Each slot is a ``RedisBroker`` with keys of its own. A queue is in one slot, chosen by its name, so
its order and its priorities stay. The lease ids of a slot end with its number. If ``?slots=N`` in
the URL changes, the old slots are still served: the first slot keeps all numbers that were used.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit
from uuid import UUID
from zlib import crc32

import redis
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException

from stoker.brokers.contract import (
    CLAIM_BYTES,
    Broker,
    BrokerJob,
    ClaimRequest,
    Delivery,
    Extension,
    Lease,
    Leases,
    PartlyUnavailable,
    Return,
    Unrecorded,
)
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError
from stoker.models import Job
from stoker.models.job import JobColumns, Message
from stoker.signals import tell

from .broker import RedisBroker
from .connection import FAILURES
from .wake import RedisWake

MOST_SLOTS = 64
CONNECTION_FAILURES = (redis.ConnectionError, redis.TimeoutError, OSError, RedisClusterException)
LAYOUT_SECONDS = 10.0
"""How old the known numbers of slots may be. Another process may have raised theirs."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 5.0
"""First and longest pause before a node that did not answer is asked again."""

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
        self._guessed: BrokerUnavailable | None = None
        """Why the numbers that were ever used are unknown."""
        self._known_until = 0.0
        self._pauses: dict[str, SlotPause] = defaultdict(SlotPause)
        """Node -> pause before it is asked again."""
        self._next = 0
        self._answer = LastAnswer()

    @property
    def slots(self) -> list[RedisBroker]:
        """All slots that may have jobs. The first slot records them. While it cannot be reached,
        these are the slots that were known before, or those that this backend is configured with.
        """
        if time.monotonic() >= self._known_until:
            known_seconds = LAYOUT_SECONDS
            try:
                used = self._ask(0, lambda first: first.note_slots(self._count))
                self._guessed = None
            except BrokerUnavailable as error:
                known_seconds = LONGEST_PAUSE_SECONDS
                self._guessed = None if self._counts and not self._guessed else error
                used = list(self._counts)
            counts = (*(one for one in used if one != self._count), self._count)
            self._grow(max(counts))
            self._counts = counts
            self._known_until = time.monotonic() + known_seconds
        return self._slots

    def _grow(self, count: int) -> None:
        known = self._slots
        if count > len(known):
            more = range(len(known), count)
            # Threads share this broker, so a list that is in use stays as it is.
            self._slots = [*known, *(RedisBroker(self.settings, self.first, n) for n in more)]

    def _ask(self, number: int, act: Callable[[RedisBroker], T]) -> T:
        """Call a slot. While its node does not answer, it is asked only after growing pauses, so
        that it does not delay the others.

        Raises:
            BrokerUnavailable: the node does not answer, or did not at the last call.
        """
        self._grow(number + 1)
        slot = self._slots[number]
        pause = self._pauses[node_of(slot)]
        pause.check()
        try:
            answer = act(slot)
        except BrokerUnavailable as error:
            if isinstance(error.__cause__, CONNECTION_FAILURES):
                pause.begin(error)
            raise
        pause.end()
        return answer

    def _ask_all(
        self, calls: Mapping[int, Callable[[RedisBroker], T]]
    ) -> tuple[dict[int, T], BrokerUnavailable | None]:
        """Call these slots. Return the answers of those that can be reached, and an error of one of
        the others."""
        answers: dict[int, T] = {}
        failure: BrokerUnavailable | None = None
        for number, act in calls.items():
            try:
                answers[number] = self._ask(number, act)
            except BrokerUnavailable as error:
                failure = error
        return answers, failure

    def _ask_reachable(
        self, calls: Mapping[int, Callable[[RedisBroker], T]]
    ) -> tuple[dict[int, T], BrokerUnavailable | None]:
        """Call these slots as ``_ask_all`` does.

        Raises:
            BrokerUnavailable: none of them can be reached.
        """
        answers, failure = self._ask_all(calls)
        if failure is not None and not answers:
            raise failure
        return answers, failure

    def _each(self, act: Callable[[RedisBroker], T]) -> dict[int, Callable[[RedisBroker], T]]:
        """Return this call for every slot."""
        return dict.fromkeys(range(len(self.slots)), act)

    def _ask_each(self, calls: Mapping[int, Callable[[RedisBroker], T]]) -> list[T]:
        """Call these slots, also those after one that fails.

        Raises:
            BrokerUnavailable: one of them cannot be reached. The others were called.
        """
        answers, failure = self._ask_all(calls)
        if failure is not None:
            raise failure
        return list(answers.values())

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
        """Relay the messages. If a slot cannot be reached, those of the others have been added."""
        self._known_until = 0.0  # another process may just have relayed them to a slot of its own
        _ = self.slots
        if self._guessed is not None:  # the jobs may have been relayed to a slot unknown here
            raise BrokerUnavailable(str(self._guessed)) from self._guessed
        failure: BrokerUnavailable | None = None
        for number, some in grouped(messages, lambda one: self._slot_of(one.queue)).items():
            try:
                self._relay(number, some, until)
            except BrokerUnavailable as error:
                failure = error
        if failure is not None:
            raise failure

    def _relay(self, number: int, messages: list[Message], until: float) -> None:
        fresh = self._not_relayed_elsewhere(messages, number)
        if until and number:  # the nodes' clocks may differ
            until += self._ask(number, RedisBroker.now) - self._ask(0, RedisBroker.now)
        self._ask(number, lambda slot: slot.relay(fresh, until=until))

    def _not_relayed_elsewhere(self, messages: list[Message], number: int) -> list[Message]:
        """Leave out jobs that were relayed when there was another number of slots."""
        old = grouped(
            ((other, one) for one in messages for other in self._old_slots(one.queue, number)),
            lambda pair: pair[0],
        )
        gone: set[UUID] = set()
        for other, pairs in old.items():
            job_ids = [one.job_id for _, one in pairs]
            gone |= self._ask(other, partial(RedisBroker.relayed, job_ids=job_ids))
        return [one for one in messages if one.job_id not in gone] if gone else messages

    def _old_slots(self, queue: str, number: int) -> set[int]:
        return {self._slot_of(queue, count) for count in self._counts} - {number}

    def relay_until(self) -> float:
        return self.first.relay_until()

    def relayed_for_good(self, job_ids: Sequence[UUID]) -> None:
        self._ask_all(self._each(partial(RedisBroker.forget_later, job_ids=job_ids)))

    # -- out --------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> list[Delivery]:
        """Claim from one slot after the other, each time from another one first. So priority and
        age decide within a queue, but only roughly among queues. A node that does not answer does
        not keep jobs of the others from being claimed, and is no error if another one answers."""
        found, failure, has_answer = self._collect(request, RedisBroker.claim)
        self._answer.is_partial = failure is not None
        if failure and not has_answer:
            raise failure
        return found

    @property
    def is_partial(self) -> bool:
        return self._answer.is_partial

    def claim_expired(self, request: ClaimRequest) -> list[Delivery]:
        found, failure, _ = self._collect(request, RedisBroker.claim_expired)
        if failure and not found:
            raise failure
        return found

    def clocks(self) -> dict[str, float]:
        answers, _ = self._ask_reachable(self._each(RedisBroker.clocks))
        return {name: at for one in answers.values() for name, at in one.items()}

    def _collect(
        self,
        request: ClaimRequest,
        take: Callable[..., list[Delivery]],
    ) -> tuple[list[Delivery], BrokerUnavailable | None, bool]:
        """Return jobs, the error of a slot that cannot be reached, and whether another one can."""
        count, found, package_bytes = len(self.slots), list[Delivery](), 0
        self._next = (self._next + 1) % count
        failure, has_answer = None, False
        for number in [*range(self._next, count), *range(self._next)]:
            fewer = request._replace(limit=request.limit - len(found))
            try:
                some = self._ask(number, partial(take, request=fewer))
            except BrokerUnavailable as error:
                failure = error
                continue
            has_answer = True
            found += some
            package_bytes += sum(len(one.package) for one in some)
            if len(found) >= request.limit or package_bytes >= CLAIM_BYTES:
                break
        found.sort(key=lambda one: (-one.priority, one.job_id))
        return found, failure, has_answer

    # -- leases -----------------------------------------------------------------------------------

    def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> set[Lease]:
        calls = self._extending(leases, lease_seconds)
        return set().union(*self._ask_each(calls))

    def extend_unlocked(self, leases: Sequence[Lease], *, lease_seconds: float) -> Extension:
        answers, _ = self._ask_reachable(self._extending(leases, lease_seconds))
        left = {lease for lease in leases if slot_of_lease(lease) not in answers}
        return Extension(set[Lease]().union(*answers.values()), left)

    def _extending(
        self, leases: Sequence[Lease], lease_seconds: float
    ) -> dict[int, Callable[[RedisBroker], set[Lease]]]:
        extend = partial(RedisBroker.extend, lease_seconds=lease_seconds)
        groups = grouped(leases, slot_of_lease)
        return {number: partial(extend, leases=some) for number, some in groups.items()}

    def note_handed_out(self, leases: Sequence[Lease]) -> None:
        note = RedisBroker.note_handed_out
        groups = grouped(leases, slot_of_lease)
        self._ask_each({number: partial(note, leases=some) for number, some in groups.items()})

    def kept(self, leases: Sequence[Lease]) -> set[UUID]:
        kept, groups = RedisBroker.kept, grouped(leases, slot_of_lease)
        calls = {number: partial(kept, leases=some) for number, some in groups.items()}
        return set().union(*self._ask_each(calls))

    def settle(
        self,
        over: Sequence[Lease] = (),
        again: Sequence[Return] = (),
        *,
        failed: Collection[UUID] = (),
    ) -> set[Lease]:
        """End leases. If a slot cannot be reached, those of the others have ended."""
        ended = grouped(over, slot_of_lease)
        returned = grouped(again, lambda back: slot_of_lease(back.lease))

        def settle(number: int, slot: RedisBroker) -> set[Lease]:
            return slot.settle(ended.get(number, ()), returned.get(number, ()), failed=failed)

        calls = {number: partial(settle, number) for number in {*ended, *returned}}
        answers, failure = self._ask_all(calls)
        if failure is not None:
            leases = [*over, *(back.lease for back in again)]
            left = [lease for lease in leases if slot_of_lease(lease) not in answers]
            raise PartlyUnavailable(failure, left) from failure
        return set().union(*answers.values())

    def finish(self, jobs: JobColumns, leases: Leases) -> Unrecorded:
        """Record successes. If a slot cannot be reached, those of the others are recorded."""
        places = grouped(range(len(leases)), lambda place: slot_of_id(leases.lease_ids[place]))

        def finish(some: list[int], slot: RedisBroker) -> Unrecorded:
            if len(places) == 1:
                return slot.finish(jobs, leases)
            return slot.finish(jobs.take(some), leases.take(some))

        calls = {number: partial(finish, some) for number, some in places.items()}
        answers, failure = self._ask_reachable(calls)
        stale, returned = set[Lease](), set[Lease]()
        for unrecorded in answers.values():
            stale |= unrecorded.stale
            returned |= unrecorded.returned
        left = [leases[place] for number in places.keys() - answers for place in places[number]]
        return Unrecorded(stale, returned, left, failure)

    def results(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return {key: job for one in self.slots for key, job in one.results(job_ids).items()}

    def expire_holder(self, holder: UUID) -> int:
        return sum(self._ask_each(self._each(lambda slot: int(slot.expire_holder(holder)))))

    def held_by(self, holder: UUID, *, packages: bool = True) -> list[Delivery]:
        """Return the jobs leased by the holder, except those in slots that cannot be reached
        (``is_partial``). A new pusher stops them: it does not know until when their leases last,
        and the leases of the others would end while it waited."""
        parts, failure = self._ask_reachable(
            self._each(lambda slot: slot.held_by(holder, packages=packages))
        )
        self._answer.is_partial = failure is not None
        return [held for part in parts.values() for held in part]

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
        due, _ = self._ask_reachable(self._each(lambda slot: slot.next_due_seconds(rated=rated)))
        return min((seconds for seconds in due.values() if seconds is not None), default=None)

    def ping(self) -> None:
        """Raise BrokerUnavailable if no slot can be reached."""
        self._ask_reachable(self._each(RedisBroker.ping))

    def answers_for(self, leases: Collection[Lease]) -> bool:
        """Ask the slots of these leases, also during the pause after a failed call: a value that is
        too large may have been the reason of the failure."""
        for number in {slot_of_lease(lease) for lease in leases}:
            self._grow(number + 1)
            slot = self._slots[number]
            try:
                slot.ping()
            except BrokerUnavailable:
                return False
            self._pauses[node_of(slot)].end()
        return True

    def close(self) -> None:
        self.first.close()

    def close_idle(self) -> None:
        self.first.close_idle()


class LastAnswer(threading.local):
    """Whether jobs were missing in this thread's last answer from the slots."""

    is_partial = False


class SlotPause:
    """How long a node that did not answer is left alone."""

    def __init__(self) -> None:
        self._error: BrokerUnavailable | None = None
        self._seconds = self._until = 0.0

    def check(self) -> None:
        """Raise the error of the last call during the pause after it."""
        if self._error is not None and time.monotonic() < self._until:
            raise BrokerUnavailable(str(self._error)) from self._error

    def begin(self, error: BrokerUnavailable) -> None:
        if self._error is None:
            tell("slots_unreachable", error=error)
        self._error = error
        self._seconds = min(max(FIRST_PAUSE_SECONDS, 2 * self._seconds), LONGEST_PAUSE_SECONDS)
        self._until = time.monotonic() + self._seconds

    def end(self) -> None:
        self._error, self._seconds = None, 0.0


def node_of(slot: RedisBroker) -> str:
    """Return the name of the node that has a slot, as the client knows it; "" if it does not. Do
    not connect: that may take long, and is done by a call that has a pause after it."""
    client = slot.known_client
    with suppress(*FAILURES):
        if isinstance(client, RedisCluster):
            return str(client.get_node_from_key(f"{slot.prefix}:job").name)  # type: ignore[no-untyped-call] # it has no types
    return ""


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
