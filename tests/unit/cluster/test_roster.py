"""How many jobs a worker gets, recalls, and the jobs of workers that died."""

import socket
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from stoker.brokers.contract import Delivery, Lease
from stoker.cluster import board as place
from stoker.cluster.board import Board, Occupied
from stoker.cluster.channel import Stream, socket_pair
from stoker.cluster.crew import Death
from stoker.cluster.pusher.estimates import PREFETCH_SECONDS, RunTimes, outline
from stoker.cluster.pusher.flights import Flights
from stoker.cluster.pusher.roster import (
    BEHIND_SECONDS,
    LOST_REPORT,
    SETTLES_SECONDS,
    SHOWN_JOBS,
    UNFAIR_SECONDS,
    Recall,
    Roster,
)
from stoker.cluster.wire import open_outcome
from stoker.jobs.outcomes import Crashed, TimedOut
from stoker.jobs.package import JobOptions, Package, Sealer

from tests.unit.cluster.parts import (
    OTHER_TASK,
    TASK,
    Clock,
    finish,
    make_delivery,
    make_package,
    make_report,
    occupy,
)

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("clock")]

Make = Callable[..., list[Delivery]]


@pytest.fixture
def ends() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for end in opened:
        end.close()


@pytest.fixture
def arrive(roster: Roster, board: Board, ends: list[socket.socket]) -> Callable[[int], Stream]:
    """Return a function that adds a worker and returns its end of the connection."""

    def come(worker: int) -> Stream:
        ours, theirs = socket_pair()
        ends.extend([ours, theirs])
        link = roster.welcome(worker, 1, Stream(ours))
        link.has_said_hello = True
        board.set_worker(worker, place.INCARNATION, 1)
        return Stream(theirs)

    return come


def start(board: Board, worker: int, number: int) -> None:
    board.set_worker(worker, place.LAST_STARTED, number)
    occupy(board, worker, 0, Occupied(number, uuid4(), 1, 1, 0))


def died(worker: int, why: str, running: tuple[int, ...], **changes: Any) -> Death:
    occupied = tuple((number, uuid4().bytes, 1.5, 7) for number in running)
    signal = -9 if why != "exit" else 0
    return Death(worker, 1, signal, why, changes.pop("blamed", 0), occupied, "how", **changes)


# -- handing out -----------------------------------------------------------------------------------


def test_worker_gets_no_job_before_its_hello(
    roster: Roster, flights: Flights, deliveries: Make, arrive: Callable[[int], Stream]
) -> None:
    arrive(0)
    roster.links[0].has_said_hello = False
    flights.add(deliveries(1), 1.0)
    assert roster.room() == 0
    roster.hand_out()
    assert len(flights.waiting) == 1


def test_jobs_are_spread_over_workers(
    roster: Roster, flights: Flights, deliveries: Make, arrive: Callable[[int], Stream]
) -> None:
    arrive(0)
    arrive(1)
    flights.add(deliveries(2), 1.0)
    roster.hand_out()
    assert [len(flights.with_worker(worker)) for worker in (0, 1)] == [1, 1]


def test_longer_jobs_mean_fewer_prefetched_jobs(
    roster: Roster, flights: Flights, deliveries: Make, arrive: Callable[[int], Stream]
) -> None:
    arrive(0)
    assert roster.room() == 1
    for seconds, room in ((0.0001, 11), (10.0, 1)):
        for _ in range(30):
            flights.add(deliveries(1), 1.0)
            (flight,) = flights.send(0, 1)
            roster.reported(0, [make_report(flight.number, seconds)])
            roster.recorded([flight.number])
        assert roster.room() == room


def test_slow_jobs_of_locks_take_no_turns_though_others_are_short(
    roster: Roster, flights: Flights, deliveries: Make, arrive: Callable[[int], Stream]
) -> None:
    def end(seconds: float, lock: UUID | None) -> None:
        flights.add([one._replace(turn=lock) for one in deliveries(1)], 1.0)
        (flight,) = flights.send(0, 1)
        roster.reported(0, [make_report(flight.number, seconds)])
        roster.recorded([flight.number])

    arrive(0)
    assert roster.turns() == 1
    end(0.004, None)
    assert roster.turns() == 12
    for _ in range(10):
        end(0.06, uuid4())
        for _ in range(30):
            end(0.001, None)
    assert roster.turns() == 1


def test_suspended_worker_gets_no_jobs_until_it_is_heard_of(
    roster: Roster,
    flights: Flights,
    recall: Recall,
    deliveries: Make,
    arrive: Callable[[int], Stream],
    clock: Clock,
) -> None:
    """The first worker starts nothing although its slot is free."""
    arrive(0)
    arrive(1)
    flights.add(deliveries(1), 1.0)
    roster.hand_out()
    assert list(flights.with_worker(0)) == [1]
    clock.turn(BEHIND_SECONDS)
    recall.recall_late()
    clock.turn(2 * SETTLES_SECONDS)
    recall.take_back()
    assert roster.room() == 1, "of the other worker"
    roster.hand_out()
    assert [len(flights.with_worker(worker)) for worker in (0, 1)] == [0, 1]
    roster.skipped(0, [1])
    flights.add(deliveries(1), 1.0)
    roster.hand_out()
    assert [len(flights.with_worker(worker)) for worker in (0, 1)] == [1, 1]


def test_worker_gets_jobs_again_when_its_long_job_has_ended(
    roster: Roster,
    flights: Flights,
    recall: Recall,
    board: Board,
    deliveries: Make,
    arrive: Callable[[int], Stream],
    clock: Clock,
) -> None:
    arrive(0)
    flights.add(deliveries(2), 1.0)
    flights.send(0, 2)
    start(board, 0, 1)
    clock.turn(BEHIND_SECONDS)
    recall.recall_late()
    clock.turn(2 * SETTLES_SECONDS)
    recall.take_back()
    roster.reported(0, [make_report(1)])
    assert roster.room() == 1


def test_leaving_worker_gets_no_jobs_and_returns_waiting_ones(
    roster: Roster, flights: Flights, deliveries: Make, arrive: Callable[[int], Stream]
) -> None:
    arrive(0)
    flights.add(deliveries(3), 1.0)
    flights.send(0, 3)
    roster.mark_leaving(0, [1])
    assert list(flights.with_worker(0)) == [1]
    assert len(flights.waiting) == 2
    assert roster.room() == 0
    roster.hand_out()
    assert len(flights.waiting) == 2


def test_report_of_a_recorded_job_is_confirmed_again(
    roster: Roster, arrive: Callable[[int], Stream]
) -> None:
    """The previous pusher may have died before it confirmed it."""
    theirs = arrive(0)
    assert roster.reported(0, [make_report(9)]) == []
    roster.links[0].flush()
    assert theirs.receive(block=True) == [("recorded", [9])]


# -- recall ----------------------------------------------------------------------------------------


@pytest.fixture
def behind_a_long_job(
    clock: Clock, flights: Flights, deliveries: Make, board: Board, arrive: Callable[[int], Stream]
) -> None:
    """Worker 0 runs job 1 and has jobs 2 and 3; worker 1 is idle."""
    arrive(0)
    arrive(1)
    flights.add(deliveries(3), 1.0)
    flights.send(0, 3)
    start(board, 0, 1)


@pytest.mark.usefixtures("behind_a_long_job")
def test_idle_worker_gets_jobs_that_wait_behind_a_long_one(
    recall: Recall, roster: Roster, flights: Flights, board: Board, clock: Clock
) -> None:
    recall.recall_late()
    assert board.worker(0, place.RECALLED_THROUGH) == 0, "the worker may still start it"
    clock.turn(UNFAIR_SECONDS + 0.001)
    recall.recall_late()
    assert board.worker(0, place.RECALLED_THROUGH) == 3
    assert not flights.waiting, "not before the recall has settled"
    clock.turn(2 * SETTLES_SECONDS)
    recall.recall_late()
    assert list(flights.with_worker(0)) == [1]
    roster.hand_out()
    assert len(flights.with_worker(1)) >= 1


@pytest.mark.usefixtures("behind_a_long_job")
def test_job_started_during_a_recall_is_not_taken_back(
    recall: Recall, flights: Flights, board: Board, clock: Clock
) -> None:
    recall.recall_all()
    start(board, 0, 2)
    clock.turn(2 * SETTLES_SECONDS)
    recall.take_back()
    assert list(flights.with_worker(0)) == [1, 2]


@pytest.mark.usefixtures("behind_a_long_job")
def test_job_sent_after_a_recall_is_not_taken_back(
    recall: Recall, flights: Flights, deliveries: Make, clock: Clock
) -> None:
    recall.recall_all()
    flights.add(deliveries(1), 1.0)
    flights.send(0, 1)
    clock.turn(2 * SETTLES_SECONDS)
    recall.take_back()
    assert list(flights.with_worker(0)) == [1, 4]


def test_started_job_with_a_permit_is_not_taken_back_when_a_plain_job_follows_it(
    recall: Recall, roster: Roster, flights: Flights, board: Board, arrive: Callable[[int], Stream],
    deliveries: Make, clock: Clock,
) -> None:  # fmt: skip
    """A job with a permit overtakes waiting jobs. Its report has not arrived when the idle worker
    asks for jobs."""
    arrive(0)
    let_jobs_take(0.001, TASK, roster, flights)
    (permitted,) = deliveries(1)
    flights.add([*deliveries(1), permitted._replace(permit_seconds=10.0)], clock.now)
    roster.hand_out()
    overtaking, plain = flights.with_worker(0)
    start(board, 0, overtaking)
    start(board, 0, plain)
    arrive(1)
    recall.recall_all()
    clock.turn(2 * SETTLES_SECONDS)
    recall.take_back()
    assert list(flights.with_worker(0)) == [overtaking, plain]
    assert flights.with_worker(0)[overtaking].delivery.job_id == permitted.job_id


@pytest.mark.usefixtures("behind_a_long_job")
def test_recall_takes_nothing_from_a_dead_worker(
    recall: Recall, flights: Flights, board: Board, clock: Clock
) -> None:
    """Its board is cleared and its death not reported yet, so it may have started all its jobs."""
    recall.recall_all()
    board.clear_worker(0)
    clock.turn(2 * SETTLES_SECONDS)
    recall.take_back()
    assert list(flights.with_worker(0)) == [1, 2, 3]


@pytest.mark.usefixtures("behind_a_long_job")
def test_skipped_job_is_taken_from_its_worker(
    roster: Roster, flights: Flights, board: Board
) -> None:
    start(board, 0, 2)
    roster.skipped(0, [2, 77])
    assert list(flights.with_worker(0)) == [1, 3]


def test_unstarted_jobs_of_a_lone_busy_worker_are_released(
    recall: Recall,
    roster: Roster,
    flights: Flights,
    deliveries: Make,
    board: Board,
    clock: Clock,
    arrive: Callable[[int], Stream],
) -> None:
    """No worker here is free: another cluster may have one."""
    arrive(0)
    flights.add(deliveries(3), 1.0)
    flights.send(0, 3)
    start(board, 0, 1)
    recall.recall_late()
    assert board.worker(0, place.RECALLED_THROUGH) == 0
    assert recall.next_look(clock.now) == clock.now + BEHIND_SECONDS
    clock.turn(BEHIND_SECONDS)
    recall.recall_late()
    clock.turn(2 * SETTLES_SECONDS)
    recall.recall_late()
    roster.hand_out()
    assert list(flights.with_worker(0)) == [1]
    assert len(flights.waiting) == 2
    flights.release_unstarted()
    assert not flights.to_release()
    clock.now = flights.keep_until()
    flights.release_unstarted()
    assert len(flights.to_release()) == 2
    assert flights.to_announce == {"default"}
    assert flights.keep_until() == float("inf")


# -- by task ---------------------------------------------------------------------------------------


def let_jobs_take(seconds: float, task: str, roster: Roster, flights: Flights) -> None:
    """Let worker 0 report a job of this task that took so long."""
    flights.add([make_delivery(task=task)], 1.0)
    (flight,) = flights.send(0, 1)
    roster.reported(0, [make_report(flight.number, seconds, task)])
    roster.recorded([flight.number])


def test_jobs_of_an_unknown_task_go_to_free_slots_only(
    roster: Roster, flights: Flights, arrive: Callable[[int], Stream]
) -> None:
    arrive(0)
    let_jobs_take(0.001, TASK, roster, flights)
    flights.add([make_delivery(task=OTHER_TASK) for _ in range(3)], 1.0)
    roster.hand_out()
    assert len(flights.with_worker(0)) == 1
    assert roster.room() == 0
    (number,) = flights.with_worker(0)
    roster.reported(0, [make_report(number, 0.001, OTHER_TASK)])
    roster.hand_out()
    assert len(flights.with_worker(0)) == 2, "now the task is known as a short one"


def test_nothing_is_sent_behind_a_job_of_a_long_task(
    roster: Roster, flights: Flights, arrive: Callable[[int], Stream]
) -> None:
    arrive(0)
    let_jobs_take(10.0, OTHER_TASK, roster, flights)
    for _ in range(30):
        let_jobs_take(0.001, TASK, roster, flights)
    flights.add([make_delivery(task=OTHER_TASK), make_delivery()], 1.0)
    roster.hand_out()
    assert len(flights.with_worker(0)) == 1
    assert len(flights.waiting) == 1


def test_nothing_is_sent_behind_a_short_task_that_takes_long(
    roster: Roster, flights: Flights, clock: Clock, arrive: Callable[[int], Stream]
) -> None:
    arrive(0)
    let_jobs_take(0.001, TASK, roster, flights)
    flights.add([make_delivery()], 1.0)
    roster.hand_out()
    assert roster.room() == 10
    clock.turn(2 * PREFETCH_SECONDS)
    assert roster.room() == 0
    flights.add([make_delivery()], 1.0)
    roster.hand_out()
    assert len(flights.with_worker(0)) == 1


def last_tries(count: int) -> list[Delivery]:
    package = make_package(max_attempts=1)
    return [make_delivery()._replace(package=package) for _ in range(count)]


def test_last_tries_go_to_free_slots_only_and_are_noted_first(
    roster: Roster, flights: Flights, arrive: Callable[[int], Stream]
) -> None:
    arrive(0)
    let_jobs_take(0.002, TASK, roster, flights)
    unnoted, *claimed = last_tries(3)
    flights.add([unnoted, *claimed], 1.0)
    roster.note_handed_out = list
    roster.hand_out()
    assert not flights.with_worker(0)
    assert [one.delivery for one in flights.to_release()] == [unnoted]
    noted: list[list[Lease]] = []
    roster.note_handed_out = lambda some: noted.append([one.delivery.lease for one in some]) or ()
    roster.hand_out()
    assert [one.delivery for one in flights.with_worker(0).values()] == claimed[:1]
    assert noted == [[claimed[0].lease]]
    (number,) = flights.with_worker(0)
    roster.reported(0, [make_report(number, 0.002)])
    roster.hand_out()
    assert [one.delivery for one in flights.with_worker(0).values()] == claimed[1:]


def test_last_tries_of_very_short_jobs_are_noted_together(
    roster: Roster, flights: Flights, arrive: Callable[[int], Stream]
) -> None:
    arrive(0)
    arrive(1)
    let_jobs_take(0.00001, TASK, roster, flights)
    roster.times.mean_seconds = 0.00001
    claimed = last_tries(50)
    flights.add(claimed, 1.0)
    noted: list[list[Lease]] = []
    roster.note_handed_out = lambda some: noted.append([one.delivery.lease for one in some]) or ()
    roster.hand_out()
    held = [one for worker in (0, 1) for one in flights.with_worker(worker).values()]
    assert len(held) == 22, "one for each slot, and PREFETCH"
    assert [{one.delivery.lease for one in held}] == [set(leases) for leases in noted]


@pytest.mark.parametrize(
    ("max_attempts", "attempt", "crashes", "is_last"),
    [(3, 1, 0, False), (3, 3, 0, True), (1, 1, 0, True), (9, 4, 2, True), (9, 4, 1, False)],
)
def test_attempt_is_the_last_if_a_crash_would_make_a_dead_letter(
    max_attempts: int, attempt: int, crashes: int, is_last: bool, roster: Roster
) -> None:
    delivery = make_delivery(attempt=attempt)._replace(
        package=make_package(max_attempts=max_attempts), crashes=crashes
    )
    assert roster.times.estimate(delivery) == (PREFETCH_SECONDS, is_last)


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize("compress_above_bytes", [None, 0])
@pytest.mark.parametrize("task", ["app.tasks.send", "app.t\u00e2ches.envoyer"])
@pytest.mark.parametrize("queue", ["", 'a",1,1.0,[1,2,b'])
def test_run_time_and_limits_are_found_by_the_package(
    serializer: str, compress_above_bytes: int | None, task: str, queue: str
) -> None:
    sealer = Sealer(
        ["secret"], "test", serializer=serializer, compress_above_bytes=compress_above_bytes
    )
    times = RunTimes(sealer)
    options = JobOptions(max_attempts=12, max_crashes=7, timeout_seconds=1.5)
    package = sealer.seal(Package(uuid4(), task, (1,) * 500, {}, queue, 0, 1.0, options))
    assert outline(sealer, package)[1:3] == (12, 7)
    delivery = make_delivery()._replace(package=package, queue=queue)
    assert times.estimate(delivery) == (PREFETCH_SECONDS, False)
    times.note([make_report(1, 0.002, task)])
    assert times.estimate(delivery) == (pytest.approx(0.002), False)
    other = sealer.seal(Package(uuid4(), task, (), {}, queue, 0, 1.0, JobOptions(1, 7)))
    assert times.estimate(delivery._replace(package=other)) == (PREFETCH_SECONDS, True)
    other = sealer.seal(Package(uuid4(), task, (), {}, queue + "x", 0, 1.0, JobOptions(1, 7)))
    assert times.estimate(delivery._replace(package=other)) == (PREFETCH_SECONDS, True)
    for package in (b"broken", b""):
        assert times.estimate(delivery._replace(package=package)) == (PREFETCH_SECONDS, True)


def test_heartbeat_names_what_a_worker_has_not_started(
    roster: Roster,
    flights: Flights,
    deliveries: Make,
    board: Board,
    arrive: Callable[[int], Stream],
) -> None:
    arrive(0)
    claimed = deliveries(SHOWN_JOBS + 5)
    flights.add(claimed, 1.0)
    flights.send(0, len(claimed))
    start(board, 0, 1)
    (worker,) = roster.information()
    assert worker["handed_out"] == [str(one.job_id) for one in claimed[1 : SHOWN_JOBS + 1]]
    assert not worker["leaving"]


def test_heartbeat_says_that_a_worker_leaves(
    roster: Roster, arrive: Callable[[int], Stream]
) -> None:
    arrive(0)
    arrive(1)
    roster.mark_leaving(1, [])
    assert [worker["leaving"] for worker in roster.information()] == [False, True]


# -- deaths ----------------------------------------------------------------------------------------


@pytest.fixture
def three_sent(flights: Flights, deliveries: Make, arrive: Callable[[int], Stream]) -> None:
    arrive(0)
    flights.add(deliveries(3), 1.0)
    flights.send(0, 3)


@pytest.mark.usefixtures("three_sent")
def test_crash_counts_for_running_but_not_for_waiting_jobs(
    roster: Roster, flights: Flights
) -> None:
    judged, released = roster.settle(died(0, "crash", (1,), last_started=1))
    assert [flight.number for flight in judged] == [1]
    assert released == []
    assert judged[0].report is not None
    assert open_outcome(judged[0].report[4]) == Crashed("how", None, 9)
    assert len(flights.waiting) == 2


@pytest.mark.usefixtures("three_sent")
def test_crash_while_package_is_opened_says_that_job_had_not_begun(roster: Roster) -> None:
    judged, _ = roster.settle(died(0, "crash", (1,), last_started=1, unbegun=(1,)))
    assert judged[0].report is not None
    assert open_outcome(judged[0].report[4]) == Crashed("how", None, 9, has_begun=False)


@pytest.mark.usefixtures("three_sent")
def test_crash_counts_for_finished_but_unreported_jobs(
    roster: Roster, flights: Flights, board: Board
) -> None:
    for number, flight in list(flights.with_worker(0).items())[:2]:
        finish(board, 0, number, flight.delivery)
    judged, _ = roster.settle(died(0, "crash", ()))
    assert [flight.number for flight in judged] == [1, 2]
    assert len(flights.waiting) == 1


@pytest.mark.usefixtures("three_sent")
@pytest.mark.parametrize("why", ["lost", "fence", "stop", "timeout", "exit"])
def test_finished_job_counts_for_every_kind_of_death(
    why: str, roster: Roster, flights: Flights, board: Board
) -> None:
    finish(board, 0, 1, flights.with_worker(0)[1].delivery)
    judged, released = roster.settle(died(0, why, (), last_started=2))
    assert [flight.number for flight in judged] == [1]
    assert judged[0].report is not None
    assert open_outcome(judged[0].report[4]) == Crashed(LOST_REPORT)
    assert released == []
    assert len(flights.waiting) == 2, "number 2 was begun and skipped, so it never ran"


@pytest.mark.usefixtures("three_sent")
def test_time_out_counts_only_for_its_own_job(roster: Roster, flights: Flights) -> None:
    judged, released = roster.settle(died(0, "timeout", (1, 2), blamed=2, last_started=2))
    assert [flight.delivery for flight in judged] == [flights.reported()[0].delivery]
    assert judged[0].report is not None
    assert isinstance(open_outcome(judged[0].report[4]), TimedOut)
    assert released == flights.to_release()
    assert len(released) == 1
    assert len(flights.waiting) == 1


@pytest.mark.usefixtures("three_sent")
@pytest.mark.parametrize("why", ["lost", "fence", "stop"])
def test_interrupted_job_is_released_uncounted(why: str, roster: Roster, flights: Flights) -> None:
    judged, released = roster.settle(died(0, why, (1,), last_started=1))
    assert judged == []
    assert released == flights.to_release()
    assert len(released) == 1
    assert len(flights.waiting) == 2


@pytest.mark.usefixtures("three_sent")
def test_dead_worker_has_no_jobs(roster: Roster, flights: Flights) -> None:
    roster.settle(died(0, "crash", (1,), last_started=1))
    assert not flights.with_worker(0)
