"""Each lease is extended in time, or its job is stopped."""

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from uuid import uuid4

import pytest

from stoker.brokers.contract import ClaimRequest, Delivery, Extension, Lease
from stoker.brokers.memory import MemoryBroker
from stoker.cluster import board as place
from stoker.cluster.board import Board
from stoker.cluster.plan import Plan
from stoker.cluster.pusher.flights import Flight, Flights
from stoker.cluster.pusher.leases import HeldLeases
from stoker.cluster.pusher.pusher import Pusher
from stoker.cluster.pusher.roster import Recall
from stoker.exceptions import BrokerUnavailable
from stoker.models.job import Message
from stoker.store.engines.sessions import Patience
from stoker.values.ids import new_job_id

from tests.unit.cluster.parts import Clock

pytestmark = pytest.mark.unit

LEASE_SECONDS = 60.0


def is_stores(lease: Lease) -> bool:
    return isinstance(lease.lease_id, int)


class Stand(MemoryBroker):
    """A memory broker that can be unreachable and whose leases can be locked."""

    is_away = False
    locked: set[Lease] = set()

    def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> set[Lease]:
        if self.is_away:
            raise BrokerUnavailable("away")
        return super().extend(leases, lease_seconds=lease_seconds)

    def extend_unlocked(self, leases: Sequence[Lease], *, lease_seconds: float) -> Extension:
        free = [lease for lease in leases if lease not in self.locked and not is_stores(lease)]
        if not free:
            return Extension(set(), self.locked & set(leases))
        stale = self.extend(free, lease_seconds=lease_seconds)
        return Extension(stale, self.locked & set(leases))


@pytest.fixture
def broker(plan: Plan, clock: Clock) -> Stand:
    return Stand(plan.settings, clock.time)


@pytest.fixture
def patience(plan: Plan, broker: Stand) -> Patience:
    return Patience(plan.settings, broker)


@pytest.fixture
def leases(plan: Plan, broker: Stand, flights: Flights, board: Board) -> HeldLeases:
    return HeldLeases(plan.settings, broker, flights, board)


@pytest.fixture
def claim(
    broker: Stand, flights: Flights, leases: HeldLeases, clock: Clock
) -> Callable[[], Delivery]:
    """Return a function that claims one job like the pusher."""

    def claim_one() -> Delivery:
        message = Message(new_job_id(), "task", "default", 0, b"package", enqueued_at=time.time())
        broker.enqueue([message])
        asked_at = clock.monotonic()
        claimed = broker.claim(ClaimRequest(1, holder=uuid4(), lease_seconds=LEASE_SECONDS))
        flights.add(claimed, asked_at)
        leases.include(asked_at)
        return claimed[0]

    return claim_one


def fence_in(board: Board, clock: Clock) -> float:
    return board[place.FENCE_NS] / 1e9 - clock.now


def extend(leases: HeldLeases, *patience: Patience) -> list[Flight]:
    lost = leases.extend_due(*patience)
    leases.move_fence()
    return lost


def test_claim_sets_the_fence_to_the_end_of_its_lease(
    claim: Callable[[], Delivery], board: Board, clock: Clock
) -> None:
    claim()
    assert fence_in(board, clock) == pytest.approx(LEASE_SECONDS)
    clock.turn(10)
    claim()
    assert fence_in(board, clock) == pytest.approx(LEASE_SECONDS - 10), "the older lease counts"


def test_prefetched_jobs_are_extended_like_running_ones(
    claim: Callable[[], Delivery],
    leases: HeldLeases,
    patience: Patience,
    flights: Flights,
    broker: Stand,
    clock: Clock,
) -> None:
    for _ in range(3):
        claim()
    flights.send(0, 1)
    for _ in range(100):
        clock.turn(10)
        assert extend(leases, patience) == []
        assert broker.claim_expired(ClaimRequest(10, holder=uuid4(), lease_seconds=60)) == []


def test_lease_is_extended_after_a_third_of_it(
    claim: Callable[[], Delivery],
    leases: HeldLeases,
    patience: Patience,
    board: Board,
    clock: Clock,
) -> None:
    claim()
    extend(leases, patience)
    clock.turn(LEASE_SECONDS / 3 - 1)
    extend(leases, patience)
    assert fence_in(board, clock) == pytest.approx(LEASE_SECONDS * 2 / 3 + 1)
    clock.turn(LEASE_SECONDS / 6)
    extend(leases, patience)
    assert fence_in(board, clock) == pytest.approx(LEASE_SECONDS)


def test_fence_counts_from_before_the_call(
    claim: Callable[[], Delivery],
    leases: HeldLeases,
    patience: Patience,
    board: Board,
    broker: Stand,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker may count a lease from any time during a slow call."""
    claim()
    clock.turn(30)
    extend_at_once = broker.extend

    def extend_slowly(wanted: Sequence[Lease], *, lease_seconds: float) -> set[Lease]:
        stale = extend_at_once(wanted, lease_seconds=lease_seconds)
        clock.turn(7)
        return stale

    monkeypatch.setattr(broker, "extend", extend_slowly)
    extend(leases, patience)
    assert fence_in(board, clock) == pytest.approx(LEASE_SECONDS - 7)


def test_fence_stays_while_the_broker_is_unreachable(
    claim: Callable[[], Delivery],
    leases: HeldLeases,
    patience: Patience,
    board: Board,
    broker: Stand,
    clock: Clock,
) -> None:
    claim()
    broker.is_away = True
    for _ in range(50):
        clock.turn(1)
        assert extend(leases, patience) == []
    assert fence_in(board, clock) == pytest.approx(LEASE_SECONDS - 50)
    broker.is_away = False
    clock.turn(6)
    extend(leases, patience)
    assert fence_in(board, clock) == pytest.approx(LEASE_SECONDS)


def test_leases_of_the_store_are_extended_while_the_broker_is_unreachable(
    claim: Callable[[], Delivery],
    leases: HeldLeases,
    patience: Patience,
    flights: Flights,
    plan: Plan,
    board: Board,
    broker: Stand,
    clock: Clock,
) -> None:
    """The lease at the broker is lost before it ends, and the fence does not stop the others."""
    at_broker, began = claim(), clock.now
    flights.add([at_broker._replace(job_id=new_job_id(), lease_id=1)], clock.monotonic())
    broker.is_away = True
    of_store = Patience(plan.settings, broker)
    lost: list[Flight] = []
    while not lost:
        left_seconds = began + LEASE_SECONDS - clock.now
        assert fence_in(board, clock) <= left_seconds, "it stops the job if the pusher hangs"
        clock.turn(1)
        lost = extend(leases, patience, of_store)
    assert [flight.delivery for flight in lost] == [at_broker]
    assert [flight.is_unanswered for flight in flights] == [True, False]
    assert LEASE_SECONDS / 3 < clock.now - began < LEASE_SECONDS
    assert fence_in(board, clock) > LEASE_SECONDS / 2
    broker.is_away = False
    clock.turn(LEASE_SECONDS)
    assert extend(leases, patience, of_store) == []
    assert not any(flight.is_unanswered for flight in flights), "no other cluster has its job"


def test_lost_lease_is_returned(
    claim: Callable[[], Delivery],
    leases: HeldLeases,
    patience: Patience,
    broker: Stand,
    clock: Clock,
) -> None:
    delivery = claim()
    clock.turn(LEASE_SECONDS + 1)
    broker.claim_expired(ClaimRequest(10, holder=uuid4(), lease_seconds=60))
    (lost,) = extend(leases, patience)
    assert lost.delivery == delivery


def test_fence_moves_after_a_job_whose_lease_is_lost_is_stopped(
    claim: Callable[[], Delivery],
    leases: HeldLeases,
    patience: Patience,
    flights: Flights,
    recall: Recall,
    board: Board,
    broker: Stand,
    clock: Clock,
) -> None:
    """Until then the worker might start another job whose lease is lost."""
    claim()
    flights.send(0, 1)
    clock.turn(LEASE_SECONDS + 1)
    broker.claim_expired(ClaimRequest(10, holder=uuid4(), lease_seconds=60))
    said: list[tuple[object, ...]] = []

    def say(*message: object) -> None:
        assert fence_in(board, clock) < 0
        assert board.worker(0, place.RECALLED_THROUGH) == 1
        said.append(message)

    parts = {"claims": SimpleNamespace(leases=leases), "flights": flights, "recall": recall}
    pusher = SimpleNamespace(board=board, patience=patience, of_store=patience, _say=say, **parts)
    Pusher._extend(pusher)  # type: ignore[arg-type] # only this of it is used
    assert said == [("revoked", 0, 1)]
    assert board[place.FENCE_NS] == 0


def test_lease_of_a_recorded_outcome_is_not_lost(
    claim: Callable[[], Delivery],
    leases: HeldLeases,
    patience: Patience,
    flights: Flights,
    broker: Stand,
    clock: Clock,
) -> None:
    """The monitor acks first and confirms to the pusher a moment later."""
    delivery = claim()
    flights.send(0, 1)
    flights.report(0, (1, 1.0, 2.0, "worker", ("succeeded", b"")))
    broker.settle([delivery.lease])
    clock.turn(30)
    assert extend(leases, patience) == []


def test_board_has_no_fence_without_leases(
    claim: Callable[[], Delivery],
    leases: HeldLeases,
    patience: Patience,
    flights: Flights,
    board: Board,
    clock: Clock,
) -> None:
    claim()
    flights.waiting.clear()
    flights.remove(1)
    clock.turn(10)
    extend(leases, patience)
    assert board[place.FENCE_NS] == 0


def test_locked_lease_does_not_move_the_fence(
    claim: Callable[[], Delivery],
    leases: HeldLeases,
    patience: Patience,
    flights: Flights,
    board: Board,
    broker: Stand,
    clock: Clock,
) -> None:
    """For example, a monitor's transaction that records the job holds the lock."""
    reported, _ = claim(), claim()
    flights.send(0, 2)
    flight = next(one for one in flights if one.delivery == reported)
    flight.report = (flight.number, 1.0, 2.0, "worker", ("succeeded", b""), "task", None)
    broker.locked = {reported.lease}
    for _ in range(20):
        clock.turn(LEASE_SECONDS / 3)
        assert extend(leases, patience) == []
        assert fence_in(board, clock) == pytest.approx(LEASE_SECONDS)


def test_job_whose_lease_stays_locked_is_stopped_before_the_lease_ends(
    claim: Callable[[], Delivery],
    leases: HeldLeases,
    patience: Patience,
    flights: Flights,
    board: Board,
    broker: Stand,
    clock: Clock,
) -> None:
    """The other jobs of the cluster continue."""
    held, _ = claim(), claim()
    flights.send(0, 2)
    broker.locked = {held.lease}
    left_seconds = LEASE_SECONDS
    while not (lost := extend(leases, patience)):
        clock.turn(1)
        left_seconds -= 1
    assert [one.delivery for one in lost] == [held]
    assert LEASE_SECONDS / 10 < left_seconds < LEASE_SECONDS / 3
    assert fence_in(board, clock) > LEASE_SECONDS / 3


def test_lease_at_a_broker_with_a_server_that_is_down_is_unanswered(
    claim: Callable[[], Delivery],
    leases: HeldLeases,
    patience: Patience,
    flights: Flights,
    broker: Stand,
    clock: Clock,
) -> None:
    """No other cluster can take over the job meanwhile, so it is only released. One that another
    transaction has locked in the store is lost."""
    at_broker = claim()
    in_store = at_broker._replace(job_id=new_job_id(), lease_id=1)
    flights.add([in_store], clock.monotonic())
    broker.locked = {at_broker.lease, in_store.lease}
    while not (lost := extend(leases, patience)):
        assert not any(flight.is_unanswered for flight in flights)
        clock.turn(1)
    assert [(one.delivery, one.is_unanswered) for one in lost] == [
        (at_broker, True),
        (in_store, False),
    ]


def test_unlocked_lease_is_extended_soon(
    claim: Callable[[], Delivery],
    leases: HeldLeases,
    patience: Patience,
    board: Board,
    broker: Stand,
    clock: Clock,
) -> None:
    broker.locked = {claim().lease}
    clock.turn(LEASE_SECONDS / 3)
    extend(leases, patience)
    broker.locked = set()
    clock.turn(LEASE_SECONDS / 20)
    extend(leases, patience)
    assert fence_in(board, clock) == pytest.approx(LEASE_SECONDS)
