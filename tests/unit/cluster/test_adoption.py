"""The jobs that a new pusher takes over from a dead one."""

import socket
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from stoker.brokers.contract import Delivery
from stoker.cluster import board as place
from stoker.cluster.board import Board, Occupied, lease_mark
from stoker.cluster.channel import Stream, socket_pair
from stoker.cluster.crew import Death
from stoker.cluster.pusher.flights import Flights
from stoker.cluster.pusher.leases import GREETING_SECONDS, Adoption
from stoker.cluster.pusher.roster import LOST_REPORT, Recall, Roster
from stoker.cluster.wire import Job, Report, open_outcome, pack_job
from stoker.jobs.outcomes import Crashed

from tests.unit.cluster.parts import Clock, finish, make_delivery, make_report, occupy

pytestmark = pytest.mark.unit

Make = Callable[..., list[Delivery]]


@pytest.fixture
def flights() -> Flights:
    """The previous pusher gave out numbers up to 10."""
    return Flights(last_number=10)


@pytest.fixture
def adoption(
    flights: Flights, roster: Roster, recall: Recall, board: Board, clock: Clock
) -> Adoption:
    return Adoption(flights, roster, recall, board)


@pytest.fixture
def arrive(roster: Roster, board: Board) -> Iterator[Callable[..., None]]:
    opened: list[socket.socket] = []

    def come(worker: int, incarnation: int = 1) -> None:
        ours, theirs = socket_pair()
        opened.extend([ours, theirs])
        roster.welcome(worker, incarnation, Stream(ours))
        board.set_worker(worker, place.INCARNATION, incarnation)

    yield come
    for end in opened:
        end.close()


def job(number: int, delivery: Delivery) -> Job:
    return pack_job(number, delivery)


def report(number: int) -> Report:
    return make_report(number)


def died(worker: int, number: int, delivery: Delivery, lease: int | None = None) -> Death:
    mark = lease_mark(delivery.lease_id) if lease is None else lease
    running = ((number, delivery.job_id.bytes, 1.0, mark),)
    return Death(worker, 1, -9, "crash", 0, running, "how", number)


def test_jobs_of_workers_are_adopted_and_the_rest_released(
    adoption: Adoption, flights: Flights, deliveries: Make, arrive: Callable[[int], None]
) -> None:
    running, finished, never_sent = deliveries(3)
    adoption.take([running, finished, never_sent], 1.0)
    adoption.expect([(0, 1), (1, 1)])
    arrive(0)
    arrive(1)
    assert adoption.hello(0, [(job(4, running), None)]) == ([], [])
    adoption.close_when_complete()
    assert flights.to_release() == [], "the other worker may have it"
    reported, stray = adoption.hello(1, [(job(5, finished), report(5))])
    assert [flight.delivery for flight in reported] == [finished]
    assert stray == []
    adoption.close_when_complete()
    assert [flight.delivery for flight in flights.to_release()] == [never_sent]
    assert [flight.delivery for flight in flights.with_worker(0).values()] == [running]
    assert len(flights) == 3


def test_nothing_is_released_before_the_workers_are_known(
    adoption: Adoption, flights: Flights, deliveries: Make
) -> None:
    adoption.take(deliveries(1), 1.0)
    adoption.close_when_complete()
    assert flights.to_release() == []


def test_worker_that_died_before_its_hello_is_judged_by_its_board(
    adoption: Adoption, flights: Flights, roster: Roster, deliveries: Make
) -> None:
    running, never_sent = deliveries(2)
    adoption.take([running, never_sent], 1.0)
    adoption.expect([(0, 1)])
    death = died(0, 4, running)
    adoption.settle(death)
    judged, _ = roster.settle(death)
    assert [flight.delivery for flight in judged] == [running]
    adoption.close_when_complete()
    assert [flight.delivery for flight in flights.to_release()] == [never_sent]


def test_finished_job_of_a_gone_worker_gets_a_report(
    adoption: Adoption, flights: Flights, board: Board, deliveries: Make
) -> None:
    """Worker and pusher have died, so only the list on the board shows it."""
    finished, never_sent = deliveries(2)
    adoption.take([finished, never_sent], 1.0)
    finish(board, 0, 4, finished)
    finish(board, 0, 5, never_sent._replace(lease_id=12345))
    adoption.expect([(0, 2)])
    assert adoption.close_when_complete() == [], "the new worker has not been heard"
    adoption.settle(Death(0, 2, 0, "exit", 0, (), "how"))
    (judged,) = adoption.close_when_complete()
    assert judged.delivery == finished
    assert judged.report is not None
    assert open_outcome(judged.report[4]) == Crashed(LOST_REPORT)
    assert [flight.delivery for flight in flights.to_release()] == [never_sent]
    assert adoption.close_when_complete() == []


def test_finished_job_of_a_silent_worker_waits_for_its_report(
    adoption: Adoption,
    flights: Flights,
    board: Board,
    deliveries: Make,
    arrive: Callable[[int], None],
    clock: Clock,
) -> None:
    (finished,) = deliveries(1)
    adoption.take([finished], 1.0)
    finish(board, 0, 4, finished)
    board.set_worker(0, place.LAST_STARTED, 4)
    adoption.expect([(0, 1)])
    arrive(0)
    clock.turn(GREETING_SECONDS)
    assert adoption.close_when_complete() == []
    assert flights.to_release() == []
    reported, stray = adoption.hello(0, [(job(4, finished), report(4))])
    assert [flight.delivery for flight in reported] == [finished]
    assert stray == []


def test_job_that_the_predecessor_of_a_silent_worker_finished_gets_a_report(
    adoption: Adoption,
    flights: Flights,
    roster: Roster,
    recall: Recall,
    board: Board,
    deliveries: Make,
    arrive: Callable[..., None],
    clock: Clock,
) -> None:
    """The new worker is slow to start, so it sends no greeting in time."""
    (finished,) = deliveries(1)
    adoption.take([finished], 1.0)
    finish(board, 0, 5, finished)
    adoption.expect([(0, 2)])
    arrive(0, incarnation=2)
    clock.turn(GREETING_SECONDS)
    (judged,) = adoption.close_when_complete()
    assert judged.report is not None
    assert open_outcome(judged.report[4]) == Crashed(LOST_REPORT)
    for _ in range(2):
        clock.turn(0.3)
        recall.recall_late()
    assert flights.to_release() == []
    assert not flights.waiting
    assert not roster.links[0].is_silent


def test_greeting_after_the_wait_ends_jobs_that_the_predecessor_finished(
    adoption: Adoption,
    flights: Flights,
    board: Board,
    deliveries: Make,
    arrive: Callable[..., None],
    clock: Clock,
) -> None:
    """The new worker has run jobs with higher numbers, and was stopped then."""
    finished, running = deliveries(2)
    adoption.take([finished, running], 1.0)
    finish(board, 0, 5, finished)
    adoption.expect([(0, 2)])
    arrive(0, incarnation=2)
    board.set_worker(0, place.LAST_STARTED, 8)
    occupy(board, 0, 0, Occupied(8, running.job_id, 1, 1, 0, lease_mark(running.lease_id)))
    clock.turn(GREETING_SECONDS)
    assert adoption.close_when_complete() == []
    (judged,), stray = adoption.hello(0, [(job(8, running), None)])
    assert judged.delivery == finished
    assert judged.report is not None
    assert open_outcome(judged.report[4]) == Crashed(LOST_REPORT)
    assert stray == []
    assert [flight.delivery for flight in flights.with_worker(0).values()] == [running]
    assert flights.to_release() == []


def test_greeting_after_the_wait_returns_a_job_that_was_skipped(
    adoption: Adoption,
    flights: Flights,
    board: Board,
    deliveries: Make,
    arrive: Callable[..., None],
    clock: Clock,
) -> None:
    """The worker was stopped while its slot showed the job, and found the recall later."""
    (skipped,) = deliveries(1)
    adoption.take([skipped], 1.0)
    adoption.expect([(0, 1)])
    arrive(0)
    board.set_worker(0, place.LAST_STARTED, 4)
    occupy(board, 0, 0, Occupied(4, skipped.job_id, 1, 1, 0, lease_mark(skipped.lease_id)))
    clock.turn(GREETING_SECONDS)
    adoption.close_when_complete()
    board.slot(0, 0).vacate()
    assert adoption.hello(0, []) == ([], [])
    assert not flights.with_worker(0)
    assert [flight.delivery for flight in flights.waiting] == [skipped]


def test_death_of_a_worker_does_not_count_for_a_job_claimed_again_since(
    adoption: Adoption, flights: Flights, deliveries: Make
) -> None:
    """The dead pusher had settled the death, and the job was claimed again."""
    (again,) = deliveries(1)
    adoption.take([again], 1.0)
    adoption.expect([(1, 1)])
    adoption.settle(died(0, 4, again, lease=12345))
    assert not flights.with_worker(0)
    assert again.job_id in flights.orphans


def test_report_of_a_job_without_a_lease_is_confirmed_and_dropped(
    adoption: Adoption, roster: Roster, deliveries: Make, arrive: Callable[[int], None]
) -> None:
    adoption.expect([(0, 1)])
    arrive(0)
    (recorded,) = deliveries(1)
    assert adoption.hello(0, [(job(4, recorded), report(4))]) == ([], [])
    assert roster.links[0].has_outgoing


def test_job_without_a_lease_is_recalled_or_stopped(
    adoption: Adoption,
    flights: Flights,
    board: Board,
    deliveries: Make,
    arrive: Callable[[int], None],
) -> None:
    running, waiting = deliveries(2)
    adoption.expect([(0, 1)])
    arrive(0)
    board.set_worker(0, place.LAST_STARTED, 4)
    reported, stray = adoption.hello(0, [(job(4, running), None), (job(5, waiting), None)])
    assert reported == []
    assert stray == [4]
    assert board.worker(0, place.RECALLED_THROUGH) == 5
    assert len(flights) == 0


def test_recalled_job_belongs_to_its_next_worker(
    adoption: Adoption, board: Board, deliveries: Make, arrive: Callable[[int], None]
) -> None:
    """The old pusher had recalled it from the first worker, which has not reached it yet."""
    running, moved = deliveries(2)
    adoption.take([running, moved], 1.0)
    adoption.expect([(0, 1), (1, 1)])
    arrive(0)
    arrive(1)
    board.set_worker(0, place.LAST_STARTED, 3)
    board.set_worker(0, place.RECALLED_THROUGH, 4)
    occupy(board, 0, 0, Occupied(3, running.job_id, 1, 1, 0, lease_mark(running.lease_id)))
    assert adoption.hello(0, [(job(3, running), None), (job(4, moved), None)]) == ([], [])
    reported, stray = adoption.hello(1, [(job(5, moved), report(5))])
    assert [flight.number for flight in reported] == [5]
    assert stray == []


def test_recalled_job_that_had_begun_is_adopted(
    adoption: Adoption,
    flights: Flights,
    board: Board,
    deliveries: Make,
    arrive: Callable[[int], None],
) -> None:
    running, finished = deliveries(2)
    adoption.take([running, finished], 1.0)
    adoption.expect([(0, 1)])
    arrive(0)
    board.set_worker(0, place.RECALLED_THROUGH, 4)
    occupy(board, 0, 0, Occupied(4, running.job_id, 1, 1, 0, lease_mark(running.lease_id)))
    finish(board, 0, 3, finished)
    adoption.hello(0, [(job(3, finished), None), (job(4, running), None)])
    assert list(flights.with_worker(0)) == [3, 4]


def test_job_under_another_lease_is_not_adopted(
    adoption: Adoption, flights: Flights, arrive: Callable[[int], None]
) -> None:
    ours = make_delivery()
    stale = make_delivery(job_id=ours.job_id)
    adoption.take([ours], 1.0)
    adoption.expect([(0, 1)])
    arrive(0)
    adoption.hello(0, [(job(4, stale), None)])
    assert not flights.with_worker(0)
    assert ours.job_id in flights.orphans


def test_silent_worker_is_judged_by_its_board_after_a_while(
    adoption: Adoption,
    flights: Flights,
    board: Board,
    deliveries: Make,
    clock: Clock,
    arrive: Callable[[int], None],
) -> None:
    """Its user code blocks all other threads, but the board shows what it runs."""
    running, elsewhere = deliveries(2)
    adoption.take([running, elsewhere], clock.now)
    adoption.expect([(0, 1)])
    arrive(0)
    mark = lease_mark(running.lease_id)
    occupy(board, 0, 0, Occupied(4, running.job_id, 1, 1, 0, mark))
    clock.turn(GREETING_SECONDS - 0.1)
    adoption.close_when_complete()
    assert adoption.is_open
    clock.turn(0.2)
    adoption.close_when_complete()
    assert not adoption.is_open
    assert adoption.closes_at == float("inf"), "the pusher's loop has nothing more to wait for"
    assert board.worker(0, place.RECALLED_THROUGH) == 10, "all its jobs are recalled"
    assert [flight.delivery for flight in flights.with_worker(0).values()] == [running]
    assert [flight.delivery for flight in flights.to_release()] == [elsewhere]
    reported, stray = adoption.hello(0, [(job(4, running), report(4))])
    assert [flight.delivery for flight in reported] == [running]
    assert stray == []


def test_first_pusher_waits_for_no_worker(adoption: Adoption) -> None:
    adoption.expect([])
    assert not adoption.is_open
    assert adoption.closes_at == float("inf")


def test_adoption_does_not_wait_for_new_workers(
    adoption: Adoption, deliveries: Make, arrive: Callable[[int], None], flights: Flights
) -> None:
    adoption.take(deliveries(1), 1.0)
    adoption.expect([(0, 1)])
    arrive(0)
    arrive(1)
    adoption.hello(0, [])
    adoption.close_when_complete()
    assert len(flights.to_release()) == 1
    assert uuid4() not in flights.orphans


def test_greeting_with_many_recalled_jobs_reads_the_finished_ones_once(
    adoption: Adoption,
    board: Board,
    deliveries: Make,
    arrive: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With many workers, one read takes a second: then the new pusher would count as hung."""
    recalled = deliveries(9)
    adoption.take(recalled, 1.0)
    adoption.expect([(0, 1)])
    arrive(0)
    board.set_worker(0, place.RECALLED_THROUGH, 9)
    reads, read = [], Board.finished
    monkeypatch.setattr(Board, "finished", lambda self: reads.append(1) or read(self))
    jobs = [job(number, one) for number, one in enumerate(recalled, 1)]
    assert adoption.hello(0, [(one, None) for one in jobs]) == ([], [])
    assert len(reads) == 1
