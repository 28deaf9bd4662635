"""Jobs with a rate start while their permit is valid, or are released. Others are unaffected."""

import socket
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from stoker.brokers.contract import ClaimRequest, Delivery, Lease, PartlyUnavailable, Return
from stoker.brokers.dispatch import Dispatch
from stoker.brokers.memory import MemoryBroker
from stoker.cluster import board as place
from stoker.cluster.board import Board
from stoker.cluster.channel import Stream, socket_pair
from stoker.cluster.plan import Plan
from stoker.cluster.pusher.claims import (
    LOCKED_SECONDS,
    PARTLY_HELD_SECONDS,
    RATED_SECONDS,
    SHORTEST_PAUSE_SECONDS,
    Claims,
)
from stoker.cluster.pusher.estimates import REMEMBERED, Permits
from stoker.cluster.pusher.flights import Flight, Flights
from stoker.cluster.pusher.leases import Adoption
from stoker.cluster.pusher.requests import Cancels, Requests
from stoker.cluster.pusher.roster import Recall, Roster
from stoker.cluster.wire import Job, is_over, pack_job, permit_of
from stoker.cluster.worker.worker import Worker
from stoker.exceptions import BrokerUnavailable
from stoker.store.engines.sessions import Patience

from tests.unit.cluster.parts import Clock, make_delivery, make_report

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("clock")]

PERMIT_SECONDS = 0.02


@pytest.fixture
def arrive(roster: Roster, board: Board) -> Iterator[Callable[[int], Stream]]:
    """Return a function that adds a worker and returns its end of the connection."""
    opened: list[socket.socket] = []

    def come(worker: int) -> Stream:
        ours, theirs = socket_pair()
        opened.extend([ours, theirs])
        roster.welcome(worker, 1, Stream(ours)).has_said_hello = True
        board.set_worker(worker, place.INCARNATION, 1)
        return Stream(theirs)

    yield come
    for end in opened:
        end.close()


def rated(count: int = 1) -> list[Delivery]:
    return [make_delivery()._replace(permit_seconds=PERMIT_SECONDS) for _ in range(count)]


def plain(count: int = 1) -> list[Delivery]:
    return [make_delivery() for _ in range(count)]


def let_jobs_take(seconds: float, roster: Roster, flights: Flights) -> None:
    """Let worker 0 report jobs that took so long."""
    for _ in range(30):
        flights.add(plain(), 1.0)
        (flight,) = flights.send(0, 1)
        roster.reported(0, [make_report(flight.number, seconds)])
        roster.recorded([flight.number])


# -- flights ---------------------------------------------------------------------------------------


def test_permit_counts_from_before_the_claim(flights: Flights, clock: Clock) -> None:
    asked_at = clock.now
    clock.turn(0.015)
    flights.add(rated(), asked_at)
    (flight,) = flights.permitted
    assert not flights.waiting
    assert not flight.is_late
    assert flights.permits_end_at() == pytest.approx(asked_at + PERMIT_SECONDS)
    clock.turn(0.005)
    assert flight.is_late


def test_job_without_a_permit_is_never_late(flights: Flights, clock: Clock) -> None:
    flights.add(plain(), clock.now)
    clock.turn(10_000)
    flights.release_late()
    assert not flights.waiting[0].is_late
    assert flights.to_release() == []
    assert flights.permits_end_at() == float("inf")


def test_job_whose_permit_ends_while_it_waits_is_released(flights: Flights, clock: Clock) -> None:
    late, in_time = rated(2)
    flights.add([late], clock.now - PERMIT_SECONDS)
    flights.add([in_time], clock.now)
    flights.release_late()
    assert [flight.delivery for flight in flights.to_release()] == [late]
    assert [flight.delivery for flight in flights.permitted] == [in_time]
    assert len(flights) == 2


def test_job_taken_back_is_released_if_its_permit_has_ended(flights: Flights, clock: Clock) -> None:
    flights.add(rated(2), clock.now)
    first, second = flights.send_permitted(0, 2)
    flights.take_back(first)
    assert list(flights.permitted) == [first]
    assert first.number == 3
    clock.turn(PERMIT_SECONDS)
    flights.take_back(second)
    assert flights.to_release() == [second]
    assert not flights.with_worker(0)


def test_job_known_only_from_the_board_is_not_sent_to_another_worker(
    flights: Flights,
) -> None:
    """It is unknown whether it had a permit, and its package is missing."""
    adopted = flights.adopt(4, make_delivery()._replace(package=b""), worker=0, leased_at=1.0)
    flights.take_back(adopted)
    assert flights.to_release() == [adopted]


@pytest.mark.parametrize("forget", [Flights.release_waiting, lambda one: one.lose(next(iter(one)))])
def test_permit_is_removed_with_its_flight(
    forget: Callable[[Flights], None], flights: Flights
) -> None:
    flights.add(rated(), 1000.0)
    forget(flights)
    assert not flights.permitted


def test_adopted_job_has_the_permit_that_its_worker_reports(
    flights: Flights,
    roster: Roster,
    recall: Recall,
    board: Board,
    clock: Clock,
    arrive: Callable[[int], Stream],
) -> None:
    adoption = Adoption(flights, roster, recall, board)
    known, unknown = rated(2)
    adoption.take([one._replace(package=b"", permit_seconds=0.0) for one in (known, unknown)], 1.0)
    adoption.expect([(0, 1)])
    arrive(0)
    permit_ns = clock.monotonic_ns() + 5_000_000
    adoption.hello(0, [(pack_job(4, known, permit_ns), None)])
    adoption.close_when_complete()
    assert [flight.delivery for flight in flights.to_release()] == [
        unknown._replace(package=b"", permit_seconds=0.0)
    ]
    (flight,) = flights.with_worker(0).values()
    assert flight.permit_ns == permit_ns
    clock.turn(0.005)
    roster.skipped(0, [4])
    assert flight in flights.to_release()


# -- the roster ------------------------------------------------------------------------------------


def test_prompt_room_is_the_number_of_free_slots(
    roster: Roster, flights: Flights, clock: Clock, arrive: Callable[[int], Stream]
) -> None:
    assert roster.prompt_room() == 0
    arrive(0)
    arrive(1)
    let_jobs_take(10.0, roster, flights)
    assert roster.prompt_room() == 2
    flights.add(rated(), clock.now)
    assert roster.prompt_room() == 1
    roster.hand_out()
    assert roster.prompt_room() == 1
    flights.add(plain(5), clock.now)
    roster.hand_out()
    assert roster.prompt_room() == 0


def test_prompt_room_is_larger_if_jobs_are_short(
    roster: Roster, flights: Flights, arrive: Callable[[int], Stream]
) -> None:
    arrive(0)
    let_jobs_take(0.002, roster, flights)
    assert roster.prompt_room() in (4, 5)
    assert roster.room() == 11


def test_rated_job_gets_its_turn_despite_a_backlog(
    roster: Roster, flights: Flights, clock: Clock, arrive: Callable[[int], Stream]
) -> None:
    """A worker with a backlog is sent more jobs before it is idle."""
    arrive(0)
    let_jobs_take(0.0045, roster, flights)
    flights.add(plain(roster.room()), clock.now)
    roster.hand_out()
    assert roster.prompt_room() <= 0
    for number in list(flights.with_worker(0))[:7]:
        roster.reported(0, [make_report(number, 0.0045)])
    assert roster.is_hungry()
    assert roster.prompt_room() == 1
    flights.add(rated(), clock.now)
    roster.hand_out()
    assert not flights.permitted


def test_jobs_with_permits_go_first_and_only_to_free_slots(
    roster: Roster, flights: Flights, clock: Clock, arrive: Callable[[int], Stream]
) -> None:
    lines = [arrive(0), arrive(1)]
    let_jobs_take(10.0, roster, flights)
    before, *others = plain(3)
    flights.add([before], clock.now)
    flights.send(0, 1)
    first, second = rated(2)
    flights.add([*others, first, second], clock.now)
    roster.hand_out()
    assert [one.delivery for one in flights.with_worker(1).values()] == [first]
    assert [one.delivery for one in flights.permitted] == [second]
    assert [one.delivery for one in flights.waiting] == others
    roster.links[1].flush()
    ((_, (job,)),) = lines[1].receive(block=True)
    assert permit_of(job) == round((clock.now + PERMIT_SECONDS) * 1e9)


def test_other_jobs_are_handed_out_though_a_permitted_job_finds_no_slot(
    roster: Roster, flights: Flights, clock: Clock, arrive: Callable[[int], Stream]
) -> None:
    arrive(0)
    let_jobs_take(0.02, roster, flights)
    assert roster.room() == 2
    flights.add(plain(), clock.now)
    roster.hand_out()
    flights.add([*rated(), *plain()], clock.now)
    roster.hand_out()
    assert len(flights.permitted) == 1
    assert not flights.waiting


# -- the worker ------------------------------------------------------------------------------------


@pytest.fixture
def pusher(worker: Worker) -> Iterator[Stream]:
    """Yield the pusher's end of the connection to the worker."""
    ours, theirs = map(Stream, socket_pair())
    worker.workload.meet(ours)
    theirs.receive(block=True)
    yield theirs
    ours.close()
    theirs.close()


def give(worker: Worker, pusher: Stream, jobs: Sequence[Job]) -> None:
    pusher.send(("jobs", jobs))
    line = worker.workload.line
    assert line is not None
    worker.workload.take_in(line, line.receive(block=True))


def test_worker_skips_a_job_whose_permit_is_over(
    worker: Worker, pusher: Stream, board: Board, clock: Clock
) -> None:
    permit_ns = clock.monotonic_ns() + 20_000_000
    give(worker, pusher, [pack_job(number, make_delivery(), permit_ns) for number in (1, 2)])
    begun = worker.begin(0)
    assert begun is not None
    board.slot(0, 0).vacate()
    clock.turn(0.02)
    assert worker.begin(0) is None
    assert list(board.occupied(0)) == []
    assert board.worker(0, place.LAST_STARTED) == 1, "a death of the worker would not count for it"
    worker.workload.flush()
    assert pusher.receive(block=True) == [("skipped", [2])]


def test_worker_skips_a_job_that_took_too_long_to_open(
    worker: Worker, pusher: Stream, board: Board, clock: Clock
) -> None:
    permit_ns = clock.monotonic_ns() + 20_000_000
    give(worker, pusher, [pack_job(7, make_delivery(), permit_ns)])
    begun = worker.begin(0)
    assert begun is not None
    assert not worker.leave_if_late(0, begun)
    assert len(list(board.occupied(0))) == 1
    clock.turn(0.02)
    assert worker.leave_if_late(0, begun)
    assert list(board.occupied(0)) == []
    assert board.worker(0, place.LAST_STARTED) == 6
    worker.workload.flush()
    assert pusher.receive(block=True) == [("skipped", [7])]


def test_job_without_a_permit_begins_at_any_time(
    worker: Worker, pusher: Stream, clock: Clock
) -> None:
    give(worker, pusher, [pack_job(1, make_delivery())])
    clock.turn(10_000)
    begun = worker.begin(0)
    assert begun is not None
    assert not worker.leave_if_late(0, begun)
    assert not is_over(permit_of(begun))


# -- claims ----------------------------------------------------------------------------------------


class Stand(MemoryBroker):
    """A broker that records the arguments of claims."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        super().__init__(plan.settings, clock.time)
        self.limits: list[int] = []
        self.asked: list[int] = []
        self.permits: list[float] = []
        self.next: list[Delivery] = []
        self.due_seconds: dict[bool, float | None] = {True: None, False: None}
        self.most = 10
        """The most jobs for which it answers in time."""

    def claim(self, request: ClaimRequest) -> list[Delivery]:
        assert isinstance(request.holder, UUID)
        self.limits.append(request.limit)
        if request.limit > self.most:
            raise BrokerUnavailable("The broker did not answer in time.")
        self.asked.append(request.rated_limit)
        self.permits.append(round(request.permit_seconds, 6))
        deliveries, self.next = self.next, []
        return deliveries

    def next_due_seconds(self, *, rated: bool = True) -> float | None:
        return self.due_seconds[rated]


def claim(claims: Claims, prompt_room: int, *, is_hungry: bool) -> None:
    """Claim like the pusher."""
    claims.claim(10, is_hungry=is_hungry, prompt_room=lambda: prompt_room)
    claims.look_ahead()


def ignore(*_: object) -> None:
    """Do nothing."""


class NoCancels(Cancels):
    """Cancellations without a store."""

    def end_unstarted(self, patience: Patience, flights: Sequence[Flight]) -> list[Flight]:
        return list(flights)


class NoRequests(Requests):
    """Requests without a store."""

    def __init__(self, plan: Plan, flights: Flights, recall: Recall) -> None:
        super().__init__(plan, flights, recall, ignore, ignore)
        self.cancels = NoCancels("default", flights, ignore, ignore)

    def allow_claims(self, patience: Patience) -> bool:
        return True


@pytest.fixture
def broker(plan: Plan, clock: Clock) -> Stand:
    return Stand(plan, clock)


@pytest.fixture
def claims(plan: Plan, broker: Stand, flights: Flights, board: Board, recall: Recall) -> Claims:
    dispatch = Dispatch(plan.settings, None, broker)
    patience = Patience(plan.settings, dispatch)
    requests = NoRequests(plan, flights, recall)
    return Claims(plan, dispatch, patience, flights, board, requests)


def test_claim_that_failed_is_made_for_fewer_jobs(
    claims: Claims, broker: Stand, clock: Clock
) -> None:
    broker.most = 3
    for _ in range(5):
        claim(claims, 0, is_hungry=True)
        clock.turn(0.001)  # too early for another call after a failed one
        claim(claims, 0, is_hungry=True)
        clock.turn(60.0)
    assert broker.limits == [10, 5, 2, 3, 4]


def test_empty_claim_does_not_end_a_drain_while_a_server_may_have_messages(
    claims: Claims, broker: Stand, clock: Clock
) -> None:
    arrivals: Any = SimpleNamespace(claim=broker.claim, is_server_empty=False)
    claims._broker.arrivals = arrivals
    claim(claims, 0, is_hungry=True)
    assert not claims.found_nothing
    arrivals.is_server_empty = True
    clock.turn(1.0)
    claim(claims, 0, is_hungry=True)
    assert claims.found_nothing


def test_claim_without_one_of_several_servers_does_not_end_a_drain_and_leaves_a_doubt(
    claims: Claims, broker: Stand, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[object] = []
    monkeypatch.setattr(broker, "held_by", lambda *_, **__: compared.append(None) or [])
    monkeypatch.setattr(Stand, "is_partial", True)
    claim(claims, 0, is_hungry=True)
    assert not claims.found_nothing
    for _ in range(3):
        claims.clear_up_doubts()
    assert len(compared) == 1, "then only after a pause"
    monkeypatch.setattr(Stand, "is_partial", False)
    for _ in range(3):
        clock.turn(PARTLY_HELD_SECONDS)
        claims.clear_up_doubts()
    assert len(compared) == 2, "until all servers have answered"
    claim(claims, 0, is_hungry=True)
    assert claims.found_nothing


def test_release_to_a_server_that_is_down_holds_up_neither_others_nor_claims(
    claims: Claims,
    broker: Stand,
    clock: Clock,
    flights: Flights,
    deliveries: Callable[[int], list[Delivery]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    down, *others = deliveries(3)
    released: list[list[Lease]] = []
    is_down = [True]

    def settle(over: object = (), again: Sequence[Return] = (), **_: object) -> set[Lease]:
        released.append([one.lease for one in again])
        if is_down[0] and down.lease in released[-1]:
            raise PartlyUnavailable(BrokerUnavailable("It is down."), [down.lease])
        return set()

    monkeypatch.setattr(broker, "settle", settle)
    flights.release_leases([down, *others], clock.now)
    for _ in range(3):
        claims.release()
        claim(claims, 0, is_hungry=True)
    assert released == [[down.lease, *(one.lease for one in others)]]
    assert broker.limits, "claims go on"
    assert [one.delivery for one in flights.to_release()] == [down]
    is_down[0] = False
    clock.turn(LOCKED_SECONDS)
    claims.release()
    assert (released[1:], flights.to_release()) == ([[down.lease]], [])


def test_no_more_rated_jobs_are_claimed_than_can_start(
    claims: Claims, broker: Stand, clock: Clock
) -> None:
    for prompt_room in (3, 0, -1):
        claim(claims, prompt_room, is_hungry=True)
        clock.turn(1.0)
    assert broker.asked == [3, 0, 0]


def test_next_rated_start_is_polled_closely_while_rates_are_in_use(
    claims: Claims, broker: Stand, clock: Clock
) -> None:
    broker.due_seconds[True] = SHORTEST_PAUSE_SECONDS / 2
    claim(claims, 1, is_hungry=True)
    clock.turn(SHORTEST_PAUSE_SECONDS * 1.5)
    claim(claims, 1, is_hungry=True)
    assert len(broker.asked) == 1, "no job with a rate was claimed"
    clock.turn(1.0)
    broker.next = rated()
    claim(claims, 1, is_hungry=True)
    clock.turn(SHORTEST_PAUSE_SECONDS)
    claim(claims, 1, is_hungry=True)
    clock.turn(SHORTEST_PAUSE_SECONDS)
    claim(claims, 1, is_hungry=True)
    assert len(broker.asked) == 4, "the pause did not double"


def test_rated_jobs_are_claimed_when_a_slot_is_free(
    claims: Claims, broker: Stand, clock: Clock
) -> None:
    broker.next = rated()
    for _ in range(12):
        claim(claims, 0, is_hungry=False)
        clock.turn(max(0.0, claims.tempo.next_claim - clock.now))
    claim(claims, 0, is_hungry=False)
    asked = len(broker.asked)
    claim(claims, 0, is_hungry=False)
    assert len(broker.asked) == asked
    claim(claims, 1, is_hungry=False)
    assert broker.asked[asked:] == [1]
    claim(claims, 1, is_hungry=False)
    assert len(broker.asked) == asked + 1, "once"


def test_rates_unused_for_long_are_not_polled_closely(
    claims: Claims, broker: Stand, clock: Clock
) -> None:
    broker.next = rated()
    claim(claims, 1, is_hungry=True)
    clock.turn(RATED_SECONDS + 1)
    claim(claims, 0, is_hungry=False)
    claim(claims, 1, is_hungry=False)
    assert broker.asked == [1, 0]


def test_late_job_gets_its_attempt_back(
    claims: Claims, broker: Stand, flights: Flights, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[Any] = []
    monkeypatch.setattr(broker, "settle", lambda _, again, **__: returned.extend(again) or set())
    late = rated()[0]._replace(attempt=3, crashes=1)
    broker.next = [late]
    claim(claims, 1, is_hungry=True)
    clock.turn(PERMIT_SECONDS)
    flights.release_late()
    claims.release()
    assert [(one.lease, one.attempts, one.crashes) for one in returned] == [(late.lease, 2, 1)]
    assert len(flights) == 0


def test_permits_become_longer_if_jobs_start_late(
    claims: Claims, broker: Stand, flights: Flights, clock: Clock
) -> None:
    """Otherwise no rated job would ever start on a slow database or a busy host."""

    def start_after(seconds: float) -> None:
        """Start a job whose permit lasts as long as was asked for."""
        broker.next = [make_delivery()._replace(permit_seconds=flights.permits.seconds)]
        claim(claims, 1, is_hungry=True)
        clock.turn(seconds)
        flights.release_late()
        for flight in flights.send_permitted(0, 1):
            clock.turn(3.0)
            report = (flight.number, clock.now - 3.0, clock.now, "worker", ("succeeded", b""))
            flights.report(0, report)

    for seconds in (0.01, 0.024, 0.026, 9.0, 0.03, 0.04):
        start_after(seconds)
    assert broker.permits == [0.02, 0.02, 0.0264, 0.0286, 0.06292, 0.06292], (
        "a job that waited very long is ignored"
    )
    for _ in range(REMEMBERED):
        start_after(0.01)
    assert flights.permits.seconds == 0.02


def test_unused_long_permit_does_not_lengthen_the_next() -> None:
    permits = Permits()
    permits.note(asked_seconds=0.02, left_seconds=0.5)
    assert permits.seconds == 0.02
    for _ in range(20):
        permits.note(asked_seconds=permits.seconds, left_seconds=permits.seconds - 0.3)
    assert permits.seconds == pytest.approx(0.33)
    for _ in range(2 * REMEMBERED):
        permits.note(asked_seconds=permits.seconds, left_seconds=permits.seconds - 0.95)
    assert permits.seconds == 1.0


def test_single_late_start_does_not_lengthen_all_permits() -> None:
    permits = Permits()
    for _ in range(REMEMBERED - 1):
        permits.note(asked_seconds=0.02, left_seconds=0.01)
    permits.note(asked_seconds=0.02, left_seconds=-0.004)
    assert permits.seconds == pytest.approx(1.1 * 0.024)
    permits.note(asked_seconds=0.026, left_seconds=-0.024)
    assert permits.seconds == pytest.approx(1.1 * 0.024), "one late start in 64 costs less"
    permits.note(asked_seconds=0.026, left_seconds=-0.024)
    permits.note(asked_seconds=0.026, left_seconds=-0.024)
    assert permits.seconds == pytest.approx(1.1 * 0.05)


def test_claimed_jobs_are_handed_out_before_the_next_query(
    claims: Claims, broker: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(broker, "next_due_seconds", lambda *, rated: asked.append(rated))
    broker.next = rated()
    claims.claim(10, is_hungry=True, prompt_room=lambda: 1)
    assert asked == []
    claims.look_ahead()
    claims.look_ahead()
    assert asked == [True], "once"
