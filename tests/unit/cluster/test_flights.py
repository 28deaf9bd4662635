"""Flights: the pusher's list of its claimed jobs."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from stoker.brokers.contract import Delivery
from stoker.cluster.pusher.flights import (
    FOLLOW_SECONDS,
    FOLLOWER_SECONDS,
    HELD_UP_SECONDS,
    KEEP_SECONDS,
    Flight,
    Flights,
)
from stoker.cluster.wire import Report

from tests.unit.cluster.parts import TASK, Clock, make_report

pytestmark = pytest.mark.unit

Make = Callable[..., list[Delivery]]


def report(number: int) -> Report:
    return make_report(number)


def test_numbers_continue_after_those_of_the_last_pusher(deliveries: Make) -> None:
    flights = Flights(last_number=40)
    flights.add(deliveries(3), 1.0)
    assert [flight.number for flight in flights.waiting] == [41, 42, 43]
    assert flights.last_number == 43


def test_jobs_are_sent_in_the_order_of_their_claim(flights: Flights, deliveries: Make) -> None:
    claimed = deliveries(5)
    flights.add(claimed, 1.0)
    assert [flight.delivery for flight in flights.send(0, 2)] == claimed[:2]
    assert [flight.delivery for flight in flights.send(1, 10)] == claimed[2:]
    assert list(flights.with_worker(0)) == [1, 2]
    assert len(flights) == 5


def test_job_taken_back_waits_under_a_new_number(flights: Flights, deliveries: Make) -> None:
    """A report of the worker under the old number is ignored."""
    flights.add(deliveries(2), 1.0)
    first, _ = flights.send(0, 2)
    flights.take_back(first)
    assert first.number == 3
    assert first.worker is None
    assert flights.get(1) is None
    assert list(flights.with_worker(0)) == [2]
    assert flights.report(0, report(1)) is None


def test_report_counts_once_and_only_from_the_jobs_worker(
    flights: Flights, deliveries: Make
) -> None:
    flights.add(deliveries(1), 1.0)
    flights.send(0, 1)
    assert flights.report(1, report(1)) is None
    flight = flights.report(0, report(1))
    assert flight is not None
    assert flights.report(0, report(1)) is None
    assert flights.reported() == [flight]


def test_flight_is_open_until_its_outcome_is_recorded(flights: Flights, deliveries: Make) -> None:
    flights.add(deliveries(1), 1.0)
    flights.send(0, 1)
    flight = flights.report(0, report(1))
    assert flight is not None
    assert flight.is_open
    flights.remove(1)
    assert not flight.is_open
    assert len(flights) == 0


@pytest.mark.parametrize(
    "outcome", [("succeeded", b"x" * 1000), ("failed", ("", "x" * 1000, "", ""), "error")]
)
def test_unrecorded_outcomes_count_until_they_are_recorded(
    outcome: tuple[Any, ...], flights: Flights, deliveries: Make
) -> None:
    """Claims pause while there are too many bytes of them."""
    flights.add(deliveries(2), 0.0)
    first, second = flights.send(0, 2)
    for flight, reported in ((first, outcome), (second, ("recorded",))):
        assert flights.report(0, (*report(flight.number)[:4], reported, TASK, None))
    assert flights.unrecorded_bytes == 1000 + 2 * len(first.delivery.package)
    flights.remove(first.number, second.number)
    assert flights.unrecorded_bytes == 0


def test_released_job_is_kept_until_the_broker_has_it(flights: Flights, deliveries: Make) -> None:
    flights.add(deliveries(2), 1.0)
    flights.release_waiting()
    returned = flights.to_release()
    assert len(flights) == 2
    assert all(flight.is_open for flight in returned)
    flights.forget_released(returned[:1])
    assert flights.to_release() == returned[1:]
    assert [flight.is_open for flight in returned] == [False, True]


@pytest.mark.parametrize("where", ["waiting", "with a worker", "reported", "given back", "orphan"])
def test_lost_flight_is_removed_from_every_place(
    where: str, flights: Flights, deliveries: Make
) -> None:
    (delivery,) = deliveries(1)
    flights.add([delivery], 1.0)
    (flight,) = flights
    if where in ("with a worker", "reported"):
        flights.send(0, 1)
    if where == "reported":
        flights.report(0, report(1))
    if where == "given back":
        flights.waiting.clear()
        flights.release(flight)
    if where == "orphan":
        flights.waiting.clear()
        flights.remove(1)
        flights.orphans[delivery.job_id] = flight
    flights.lose(flight)
    assert len(flights) == 0
    assert list(flights) == []
    assert not flights.waiting
    assert not flights.with_worker(0)
    assert not flight.is_open


def test_withdrawn_flight_is_released_once(flights: Flights, deliveries: Make) -> None:
    flights.add(deliveries(2), 1.0)
    first, second = flights.waiting
    for _ in range(2):
        flights.withdraw(first)
    assert flights.to_release() == [first]
    assert list(flights.waiting) == [second]


def test_unstarted_job_whose_lease_may_end_is_not_sent_again(
    flights: Flights, deliveries: Make
) -> None:
    flights.add(deliveries(1), 1.0)
    (flight,) = flights.send(0, 1)
    flight.is_unanswered = True
    flights.take_back(flight)
    assert flights.to_release() == [flight]
    assert not flights.waiting


def test_adopted_flights_keep_their_numbers_and_later_ones_follow(
    flights: Flights, deliveries: Make
) -> None:
    claimed = deliveries(2)
    adopted = flights.adopt(90, claimed[0], worker=1, leased_at=5.0)
    assert flights.with_worker(1) == {90: adopted}
    flights.add(claimed[1:], 6.0)
    assert flights.waiting[0].number == 91


def test_oldest_lease_is_found_in_every_place(flights: Flights, deliveries: Make) -> None:
    claimed = deliveries(4)
    assert flights.oldest_lease() is None
    flights.add(claimed[:1], 30.0)
    assert flights.oldest_lease() == 30.0
    flights.add(claimed[1:2], 20.0)
    flights.release(flights.waiting.pop())
    assert flights.oldest_lease() == 20.0
    flights.orphans[claimed[2].job_id] = Flight(0, claimed[2], 10.0)
    assert flights.oldest_lease() == 10.0


def test_unknown_leases_are_released(flights: Flights, deliveries: Make) -> None:
    """A claim whose answer was lost made these leases."""
    known, unknown = deliveries(2)
    flights.add([known], 1.0)
    assert flights.unknown([known, unknown]) == [unknown]
    flights.release_leases([unknown], 2.0)
    assert [flight.delivery for flight in flights.to_release()] == [unknown]
    assert flights.unknown([known, unknown]) == []


# -- turns under a lock ----------------------------------------------------------------------------

LOCK, OTHER_LOCK = uuid4(), uuid4()


def running(flights: Flights) -> list[Delivery]:
    """Send what waits to a worker, and return the unreported jobs there."""
    flights.send(0, 10)
    return [flight.delivery for flight in flights.with_worker(0).values()]


def end(flights: Flights, delivery: Delivery) -> None:
    (number,) = (
        number for number, one in flights.with_worker(0).items() if one.delivery == delivery
    )
    flights.report(0, report(number))


@pytest.fixture
def locked(deliveries: Make) -> Make:
    """Return a function that makes deliveries with the same lock."""
    return lambda count, lock=LOCK: [one._replace(turn=lock) for one in deliveries(count)]


def test_jobs_of_a_lock_are_sent_one_after_another(flights: Flights, locked: Make) -> None:
    claimed = locked(3)
    flights.add(claimed[:2], 1.0)
    flights.add(claimed[2:], 1.0)
    for delivery in claimed:
        assert running(flights) == [delivery]
        end(flights, delivery)
    assert running(flights) == []
    flights.remove(*(flight.number for flight in flights.reported()))
    assert not flights.turns


def test_jobs_of_different_locks_run_together(
    flights: Flights, locked: Make, deliveries: Make
) -> None:
    free = deliveries(1)
    claimed = [*locked(2), *locked(2, OTHER_LOCK), *free]
    flights.add(claimed, 1.0)
    assert running(flights) == [claimed[0], claimed[2], free[0]]


def test_job_taken_back_keeps_its_turn(flights: Flights, locked: Make) -> None:
    first, second = locked(2)
    flights.add([first, second], 1.0)
    (sent,) = flights.send(0, 10)
    flights.take_back(sent)
    assert [flight.delivery for flight in flights.waiting] == [first]
    assert running(flights) == [first]
    end(flights, first)
    assert running(flights) == [second]


@pytest.mark.parametrize("how", ["release", "lose"])
def test_followers_of_a_job_that_ends_elsewhere_are_released(
    how: str, flights: Flights, locked: Make
) -> None:
    """The job may run in another cluster, so none that follows it may start here."""
    claimed = locked(3)
    flights.add(claimed, 1.0)
    (sent,) = flights.send(0, 10)
    getattr(flights, how)(sent)
    released = [flight.delivery for flight in flights.to_release()]
    assert released == claimed[1:] + (claimed[:1] if how == "release" else [])
    assert running(flights) == []


def test_released_follower_leaves_the_others_in_turn(flights: Flights, locked: Make) -> None:
    first, second, third = locked(3)
    flights.add([first, second, third], 1.0)
    (follower,) = (flight for flight in flights if flight.delivery == second)
    flights.release(follower)
    assert running(flights) == [first]
    end(flights, first)
    assert running(flights) == [third]


@pytest.mark.parametrize("how", ["stop", "pause"])
def test_followers_are_released_at_a_stop_and_a_pause(
    how: str, flights: Flights, locked: Make
) -> None:
    claimed = locked(3)
    flights.add(claimed, 1.0)
    flights.send(0, 10)
    flights.paused = frozenset({"default"})
    flights.release_waiting() if how == "stop" else flights.release_paused()
    assert [flight.delivery for flight in flights.to_release()] == claimed[1:]
    assert running(flights) == claimed[:1]


def test_followers_of_a_long_job_are_released_after_a_while(
    flights: Flights, locked: Make, clock: Clock
) -> None:
    claimed = locked(2)
    flights.add(claimed, 1.0)
    flights.send(0, 10)
    assert flights.keep_until() == pytest.approx(clock.now + KEEP_SECONDS)
    clock.turn(KEEP_SECONDS - 0.01)
    flights.release_unstarted()
    assert flights.to_release() == []
    clock.turn(0.02)
    flights.release_unstarted()
    assert [flight.delivery for flight in flights.to_release()] == claimed[1:]
    assert flights.keep_until() == float("inf")


def test_jobs_are_claimed_behind_a_job_only_soon_after_its_turn_began(
    flights: Flights, locked: Make, clock: Clock
) -> None:
    claimed = locked(3)
    flights.add(claimed, 1.0)
    assert all(one.job_id in flights.turns for one in claimed)
    clock.turn(FOLLOW_SECONDS + 0.01)
    assert not any(one.job_id in flights.turns for one in claimed)
    running(flights)
    end(flights, claimed[0])
    assert all(one.job_id in flights.turns for one in claimed)


def test_followers_of_a_long_job_do_not_count_as_starting_soon(
    flights: Flights, locked: Make, clock: Clock
) -> None:
    flights.add(locked(3), 1.0)
    assert flights.turns.moving == 2
    assert flights.turns.moving_until == pytest.approx(clock.now + HELD_UP_SECONDS)
    clock.turn(HELD_UP_SECONDS + 0.01)
    assert flights.turns.moving == 0
    assert flights.turns.moving_until == float("inf")


def test_followers_claimed_too_long_ago_do_not_count_as_starting_soon(
    flights: Flights, locked: Make, clock: Clock
) -> None:
    """No turn is long, but the last follower was claimed more than HELD_UP_SECONDS ago."""
    claimed = locked(4)
    flights.add(claimed, 1.0)
    for delivery in claimed[:2]:
        assert flights.turns.moving > 0
        assert flights.turns.moving_until <= clock.now + HELD_UP_SECONDS
        clock.turn(0.6 * HELD_UP_SECONDS)
        running(flights)
        end(flights, delivery)
    assert flights.turns.moving == 0
    assert flights.turns.moving_until == float("inf")
    flights.add(locked(1), 1.0)
    assert flights.turns.moving == 2


def test_followers_are_released_after_follower_seconds_though_turns_end(
    flights: Flights, locked: Make, clock: Clock
) -> None:
    claimed, seconds = locked(10), 0.9 * KEEP_SECONDS
    flights.add(claimed, 1.0)
    came_at = clock.now
    for delivery in claimed[:4]:
        flights.release_unstarted()
        assert flights.to_release() == []
        running(flights)
        clock.turn(seconds)
        end(flights, delivery)
    assert flights.keep_until() == pytest.approx(came_at + FOLLOWER_SECONDS)
    clock.turn(came_at + FOLLOWER_SECONDS - clock.now + 0.001)
    flights.release_unstarted()
    assert [flight.delivery for flight in flights.to_release()] == claimed[5:]
    assert running(flights) == claimed[4:5]


def test_job_claimed_again_after_a_lost_lease_waits_for_its_first_attempt(
    flights: Flights, locked: Make
) -> None:
    """The pusher does not notice the loss of the first lease before the job ends."""
    first, second = locked(2)
    again = first._replace(lease_id=first.lease_id + 1)
    flights.add([first, second, again], 1.0)
    for delivery in (first, second, again):
        assert running(flights) == [delivery]
        end(flights, delivery)
    flights.remove(*(flight.number for flight in flights.reported()))
    assert not flights.turns
    assert first.job_id not in flights.turns


def test_jobs_are_claimed_behind_an_ended_job_until_it_is_recorded(
    flights: Flights, locked: Make
) -> None:
    """Until then it holds the key."""
    claimed = locked(1)
    flights.add(claimed, 1.0)
    running(flights)
    end(flights, claimed[0])
    assert claimed[0].job_id in flights.turns
    flights.remove(1)
    assert claimed[0].job_id not in flights.turns


def test_leases_of_followers_are_extended(flights: Flights, locked: Make) -> None:
    claimed = locked(3)
    flights.add(claimed, 1.0)
    assert [flight.delivery for flight in flights] == claimed
    assert len(flights) == 3
