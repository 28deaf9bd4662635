"""The slots of a Redis cluster, as the threads of a process share them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from threading import Thread
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from stoker.brokers.contract import (
    ClaimRequest,
    Delivery,
    Lease,
    Leases,
    PartlyUnavailable,
    Return,
    Unrecorded,
)
from stoker.brokers.redis import slots
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable
from stoker.models.job import JobColumns, Message

from tests.conformance.stands import message

pytestmark = pytest.mark.unit


def test_threads_that_find_the_slots_at_once_agree_on_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []

    class Slot:
        known_client = None

        def __init__(self, settings: Settings, first: Any = None, slot: int = 0) -> None:
            self.slot = slot
            if slot and not begun:
                begun.append(slot)
                _ = broker.slots  # as another thread does at this moment

        def note_slots(self, count: int) -> list[int]:
            return [1, count]

    monkeypatch.setattr(slots, "RedisBroker", Slot)
    broker = slots.SlottedRedisBroker(Settings("default"), slots=8)
    assert [one.slot for one in broker.slots] == list(range(8))  # type: ignore[attr-defined] # of this stand-in


class Slot:
    """Replaces a slot on a node of its own."""

    known_client = None
    down: set[int]
    """Numbers of the slots whose node is down."""

    def __init__(self, settings: Settings, first: Any = None, slot: int = 0) -> None:
        self.slot = slot
        self.calls: list[tuple[str, Any]] = []
        self.tries = 0

    def _note(self, name: str, told: Any) -> None:
        if self.slot in self.down:
            raise BrokerUnavailable("It is down.") from RedisConnectionError()
        self.calls.append((name, told))

    def note_slots(self, count: int) -> list[int]:
        return [count]

    def now(self) -> float:
        self._note("now", None)
        return 1.0

    def ping(self) -> None:
        self._note("ping", None)

    def relay(self, messages: Sequence[Message], *, until: float = 0.0) -> None:
        self._note("relay", len(messages))

    def forget_later(self, job_ids: Sequence[uuid.UUID]) -> None:
        self.tries += 1
        self._note("forget_later", list(job_ids))

    def claim(self, request: ClaimRequest) -> list[Delivery]:
        self._note("claim", None)
        return []

    def kept(self, leases: Sequence[Lease]) -> set[uuid.UUID]:
        self._note("kept", leases)
        return {one.job_id for one in leases}

    def held_by(self, holder: uuid.UUID, *, packages: bool = True) -> list[Delivery]:
        self._note("held_by", holder)
        return []

    def settle(
        self, over: Sequence[Lease] = (), again: Sequence[Return] = (), *, failed: Any = ()
    ) -> set[Lease]:
        self._note("settle", [*over, *(one.lease for one in again)])
        return set()

    def finish(self, jobs: JobColumns, leases: Leases) -> Unrecorded:
        self._note("finish", list(leases))
        return Unrecorded({leases[0]}, set())


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(slots, "RedisBroker", Slot)
    Slot.down = {1}
    monkeypatch.setattr(slots, "node_of", lambda slot: str(slot.slot))
    return slots.SlottedRedisBroker(Settings("default"), slots=3)


LEASES = [Lease(uuid.uuid4(), lease_id) for lease_id in ("a", "b.1", "c.2")]


class Columns:
    """Columns without content."""

    def take(self, places: Sequence[int]) -> Columns:
        return self


def test_settlement_names_the_leases_of_a_slot_that_is_down(broker: Any) -> None:
    with pytest.raises(PartlyUnavailable) as partly:
        broker.settle(LEASES[:2], [Return(LEASES[2])])
    assert partly.value.leases == [LEASES[1]]
    assert [broker._slots[number].calls for number in (0, 2)] == [
        [("settle", [LEASES[0]])],
        [("settle", [LEASES[2]])],
    ]


def test_successes_of_other_slots_are_recorded_while_one_is_down(broker: Any) -> None:
    stale, _, left, error = broker.finish(Columns(), Leases.of(LEASES))
    assert (stale, left, str(error)) == ({LEASES[0], LEASES[2]}, [LEASES[1]], "It is down.")


def test_node_that_is_down_is_asked_once_to_forget_relayed_jobs(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots 1 and 2 are on that node, and each call would wait for an answer."""
    monkeypatch.setattr(slots, "node_of", lambda slot: str(min(slot.slot, 1)))
    Slot.down = {1, 2}
    job_ids = [uuid.uuid4()]
    for _ in range(2):
        broker.relayed_for_good(job_ids)
    first, *others = broker.slots
    assert first.calls == [("forget_later", job_ids)] * 2
    assert [one.tries for one in others] == [1, 0]


def test_slot_that_is_down_does_not_count_as_having_handed_out_its_jobs(broker: Any) -> None:
    assert broker.kept([LEASES[0], LEASES[2]]) == {LEASES[0].job_id, LEASES[2].job_id}
    assert broker._slots[0].calls == [("kept", [LEASES[0]])]
    with pytest.raises(BrokerUnavailable):
        broker.kept(LEASES)


def test_answers_without_a_slot_that_is_down_are_partial(broker: Any) -> None:
    request = ClaimRequest(1, holder=uuid.uuid4(), lease_seconds=60)
    for ask in (lambda: broker.claim(request), lambda: broker.held_by(request.holder)):
        Slot.down = {1}
        assert (ask(), broker.is_partial) == ([], True)
        Slot.down = set()
        for pause in broker._pauses.values():
            pause.end()
        assert (ask(), broker.is_partial) == ([], False)


def test_answer_is_partial_only_for_the_thread_that_asked(broker: Any) -> None:
    """With --single, the upkeep asks for the leases of dead clusters in a thread beside the
    pusher's."""
    request = ClaimRequest(1, holder=uuid.uuid4(), lease_seconds=60)
    broker.claim(request)
    Slot.down = set()
    for pause in broker._pauses.values():
        pause.end()
    upkeep = Thread(target=lambda: broker.held_by(uuid.uuid4()))
    upkeep.start()
    upkeep.join()
    assert broker.is_partial


def test_relay_to_one_slot_does_not_pause_the_node_of_another(broker: Any) -> None:
    Slot.down = {0}
    queues = {broker._slot_of(f"queue-{number}"): f"queue-{number}" for number in range(24)}
    messages = [message(queue=queues[number]) for number in (1, 2)]
    _ = broker.slots
    with pytest.raises(BrokerUnavailable):
        broker.relay(messages, until=60.0)
    broker.relay(messages)
    assert [broker._slots[number].calls[-1] for number in (1, 2)] == [("relay", 1)] * 2


def test_slot_that_answers_a_ping_is_asked_again_at_once(broker: Any) -> None:
    with pytest.raises(PartlyUnavailable):
        broker.settle(LEASES)
    assert not broker.answers_for([LEASES[1]])
    Slot.down = set()
    assert broker.answers_for(LEASES)
    assert broker.settle(LEASES) == set()
