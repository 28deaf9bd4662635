"""Claims from the store go on while the broker outside it does not answer."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

from stoker.brokers.contract import ClaimRequest, Delivery, Lease
from stoker.brokers.dispatch import Dispatch
from stoker.brokers.memory import MemoryBroker
from stoker.cluster import board as place
from stoker.cluster.board import Board
from stoker.cluster.plan import Plan
from stoker.cluster.pusher.claims import (
    CLAIM_AT_ONCE,
    CLEAN_UP_LOOK_SECONDS,
    RELEASED_AT_ONCE,
    Claims,
    Drain,
)
from stoker.cluster.pusher.flights import Flight, Flights
from stoker.cluster.pusher.pusher import Pusher as WholePusher
from stoker.cluster.pusher.requests import Requests
from stoker.cluster.pusher.roster import Recall
from stoker.exceptions import BrokerUnavailable
from stoker.models.job import Message
from stoker.store.engines.sessions import LONGEST_PAUSE_SECONDS, Patience
from stoker.values.ids import new_job_id

from tests.unit.cluster.parts import TASK, Clock, make_delivery, make_package

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("clock")]

ROOM = 10


class Place(MemoryBroker):
    """The store, or the broker outside it."""

    is_away = False
    loses_answers = False
    """Whether it carries out a claim and its answer is lost."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        super().__init__(plan.settings, clock.time)
        self.limits: list[int] = []
        self.comparisons = 0
        self.handed_out: list[Lease] = []

    def add(self, count: int) -> None:
        package = make_package()
        self.enqueue([Message(new_job_id(), TASK, "default", 0, package) for _ in range(count)])

    def claim(self, request: ClaimRequest) -> list[Delivery]:
        self.limits.append(request.limit)
        self._answer()
        found = super().claim(request)
        if self.loses_answers:
            raise BrokerUnavailable("The answer was lost.")
        return found

    def held_by(self, *args: Any, **options: Any) -> list[Delivery]:
        self.comparisons += 1
        self._answer()
        return super().held_by(*args, **options)

    def note_handed_out(self, leases: Sequence[Lease]) -> None:
        self._answer()
        self.handed_out += leases

    def next_due_seconds(self, *, rated: bool = True) -> float | None:
        self._answer()
        return None

    def _answer(self) -> None:
        if self.is_away:
            raise BrokerUnavailable("It does not answer.")


class NoRequests(Requests):
    """Requests without a store."""

    def allow_claims(self, patience: Patience) -> bool:
        return True


def ignore(*_: object) -> None:
    """Do nothing."""


class Pusher:
    """The part of a pusher that claims jobs, for a store and a broker outside it."""

    def __init__(self, plan: Plan, clock: Clock, board: Board, recall: Recall) -> None:
        self._clock = clock
        self.store, self.broker = Place(plan, clock), Place(plan, clock)
        store: Any = self.store
        dispatch = Dispatch(plan.settings, store, self.broker)
        self.flights = Flights(last_number=0)
        self.patience = Patience(plan.settings, dispatch)
        requests = NoRequests(plan, self.flights, recall, ignore, ignore)
        self.claims = Claims(plan, dispatch, self.patience, self.flights, board, requests)
        self.claims.of_store = Patience(plan.settings, dispatch)

    def work(self) -> None:
        """Do what the pusher does each time it wakes up."""
        self.claims.clear_up_doubts()
        self.claims.claim(ROOM, is_hungry=True, prompt_room=lambda: 0)
        self.claims.look_ahead()
        self._clock.turn(0.01)

    def work_until_the_broker_is_noticed(self) -> None:
        while not self.patience.is_waiting:
            self.work()


@pytest.fixture
def pusher(plan: Plan, clock: Clock, board: Board, recall: Recall) -> Pusher:
    return Pusher(plan, clock, board, recall)


def test_jobs_of_the_store_are_claimed_while_the_broker_is_away(
    pusher: Pusher, clock: Clock
) -> None:
    pusher.broker.is_away = True
    pusher.work_until_the_broker_is_noticed()
    for _ in range(5):
        clock.turn(LONGEST_PAUSE_SECONDS)  # the broker is asked again and fails
        pusher.store.add(ROOM)
        pusher.work()
        assert not pusher.store.sizes().get("default", {}).get("ready"), "all were claimed"
    assert pusher.store.limits[-5:] == [ROOM] * 5
    assert len(pusher.flights) == 5 * ROOM
    assert len(pusher.broker.limits) == 1, "then its leases are asked for, until it answers"


def test_broker_is_claimed_from_again_once_it_answers(pusher: Pusher, clock: Clock) -> None:
    pusher.broker.is_away = True
    pusher.work_until_the_broker_is_noticed()
    clock.turn(LONGEST_PAUSE_SECONDS)
    pusher.work()
    pusher.broker.is_away = False
    pusher.broker.add(ROOM)
    clock.turn(LONGEST_PAUSE_SECONDS)
    for _ in range(5):
        pusher.work()
        clock.turn(1.0)
    assert len(pusher.flights) == ROOM


@pytest.mark.parametrize("stores_jobs", [0, 3])
def test_jobs_leased_by_a_claim_whose_answer_was_lost_are_released(
    pusher: Pusher, clock: Clock, stores_jobs: int
) -> None:
    """If the store leased jobs in the same claim, that claim does not fail."""
    pusher.broker.add(1)
    pusher.work()  # the store is asked first next time
    pusher.broker.add(5)
    pusher.store.add(stores_jobs)
    pusher.broker.loses_answers = True
    clock.turn(1.0)
    pusher.work()
    assert pusher.broker.limits[-1] == ROOM - stores_jobs
    pusher.broker.loses_answers = False
    clock.turn(1.0)
    pusher.claims.clear_up_doubts()
    assert pusher.broker.comparisons == 1
    assert len(pusher.flights.to_release()) == 5


def test_failed_claim_from_the_store_alone_leaves_a_doubt_about_the_store(
    pusher: Pusher, clock: Clock
) -> None:
    pusher.broker.is_away = True
    pusher.work_until_the_broker_is_noticed()
    clock.turn(LONGEST_PAUSE_SECONDS)
    pusher.work()
    pusher.store.add(ROOM)
    pusher.store.loses_answers = True
    clock.turn(0.05)
    pusher.work()
    assert pusher.claims.next_claim > clock.now, "it is too early for the next call to the store"
    pusher.store.loses_answers = False
    clock.turn(1.0)
    pusher.work()
    assert len(pusher.flights.to_release()) == ROOM
    assert pusher.store.limits[-1] == ROOM // 2, "a slow store may answer a smaller claim"


def test_jobs_of_the_store_are_handed_out_while_the_broker_is_away(pusher: Pusher) -> None:
    pusher.broker.is_away = True
    pusher.work_until_the_broker_is_noticed()
    of_store, of_broker = (
        Flight(number, make_delivery()._replace(lease_id=lease_id), 0.0)
        for number, lease_id in ((1, 7), (2, "lease"))
    )
    assert pusher.claims.note_handed_out([of_store, of_broker]) == [of_broker]
    assert pusher.store.handed_out == [of_store.delivery.lease]


def test_drain_does_not_end_while_the_broker_is_away(pusher: Pusher, clock: Clock) -> None:
    pusher.work()
    assert pusher.claims.found_nothing
    pusher.broker.is_away = True
    clock.turn(1.0)
    pusher.work_until_the_broker_is_noticed()
    clock.turn(1.0)
    pusher.work()
    assert not pusher.claims.found_nothing


def test_drain_ends_after_a_claim_that_followed_the_clean_up(
    pusher: Pusher, board: Board, clock: Clock
) -> None:
    drain = Drain(Plan(drain=True), pusher.claims, board)
    pusher.work()
    assert not drain.check()
    assert pusher.claims.next_claim <= clock.now + CLEAN_UP_LOOK_SECONDS
    board[place.CLEANED_UP] = 1
    for _ in range(2):
        assert not drain.check(), "a rescued job may wait"
    pusher.work()
    assert drain.check()


def test_drain_ends_without_a_clean_up_if_the_scheduler_does_not_start(
    pusher: Pusher, board: Board, clock: Clock, events: list[tuple[str, dict[str, Any]]]
) -> None:
    plan = Plan(drain=True)
    drain = Drain(plan, pusher.claims, board)
    pusher.work()
    assert not drain.check()
    clock.turn(plan.settings.start_seconds + plan.settings.lease_seconds)
    pusher.work()
    assert not drain.check()
    pusher.work()
    assert drain.check()
    assert [name for name, _ in events].count("drained_without_rescue") == 1


def test_failed_claims_from_the_broker_do_not_make_claims_from_the_store_smaller(
    pusher: Pusher,
) -> None:
    pusher.broker.is_away = True
    pusher.work_until_the_broker_is_noticed()
    claims = pusher.claims
    assert claims._most[claims.of_store] == CLAIM_AT_ONCE
    assert claims._most[pusher.patience] == ROOM // 2


def test_jobs_that_one_call_did_not_release_are_due_at_once(pusher: Pusher, clock: Clock) -> None:
    """The pusher must not sleep meanwhile."""
    assert pusher.claims.next_release == float("inf")
    held = [Delivery(new_job_id(), n, b"", "default", 0, 1) for n in range(RELEASED_AT_ONCE + 1)]
    pusher.flights.release_leases(held, clock.now)
    pusher.claims._release = lambda flights, calls: pusher.flights.forget_released(flights)  # type: ignore[method-assign]
    for left in (1, 0):
        assert pusher.claims.next_release <= clock.now
        pusher.claims.release()
        assert len(pusher.flights.to_release()) == left
    assert pusher.claims.next_release == float("inf")


def test_jobs_are_not_released_while_the_store_is_away(pusher: Pusher, clock: Clock) -> None:
    """It is asked first which of them are to be cancelled, so the pusher would not sleep at all."""
    held = [Delivery(new_job_id(), 1, b"", "default", 0, 1)]
    pusher.flights.release_leases(held, clock.now)
    pusher.claims.of_store.try_at = clock.now + 5
    assert pusher.claims.next_release == clock.now + 5


def test_pusher_wakes_up_for_jobs_to_release() -> None:
    forever = float("inf")
    parts = mock.MagicMock()
    parts.claims.leases.next_check = parts.heartbeat.next_beat = forever
    parts.requests.next_look.return_value = parts.recall.next_look.return_value = forever
    parts.flights.permits_end_at.return_value = parts.flights.keep_until.return_value = forever
    parts.adoption.closes_at = forever
    parts.patience.is_waiting = parts.of_store.is_waiting = False
    parts._may_claim.return_value = False
    parts.claims.next_release = 7.0
    assert WholePusher._awake_at(parts) == 7.0
