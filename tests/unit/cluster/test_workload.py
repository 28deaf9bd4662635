"""A worker's jobs and reports across pushers: none is doubled and none is lost."""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.brokers.contract import Delivery
from stoker.cluster.board import MOST_UNRECORDED, Board
from stoker.cluster.channel import Closed, Stream, socket_pair
from stoker.cluster.loops import LOOPS, Loops, recovery_seconds
from stoker.cluster.plan import Plan
from stoker.cluster.wire import Job, Report, pack_job
from stoker.cluster.worker.worker import SerialRunner, Worker
from stoker.cluster.worker.workload import Workload

from tests.unit.cluster.parts import Clock

pytestmark = pytest.mark.unit

Pusher = Stream
NEW_PUSHER_SECONDS = 180.0


@pytest.fixture
def plan(plan: Plan, request: pytest.FixtureRequest) -> Plan:
    """Its parameter says whether the cluster runs with ``--single``."""
    return replace(plan, single=getattr(request, "param", False))


@pytest.fixture
def workload() -> Workload:
    return Workload(NEW_PUSHER_SECONDS)


@pytest.fixture
def new_pusher(workload: Workload) -> Iterator[Callable[[], Pusher]]:
    """Return a function that connects a pusher and returns its end of the line."""
    lines: list[Stream] = []

    def come() -> Pusher:
        ours, theirs = map(Stream, socket_pair())
        lines.extend([ours, theirs])
        workload.meet(ours)
        return theirs

    yield come
    for line in lines:
        line.close()


@pytest.fixture
def jobs(deliveries: Callable[[int], list[Delivery]]) -> list[Job]:
    return [pack_job(number, delivery) for number, delivery in enumerate(deliveries(4), 1)]


def report(number: int) -> Report:
    return (number, 1.0, 2.0, "worker", ("succeeded", b""))


def take_in(workload: Workload) -> None:
    """Read the current line like the main thread."""
    line = workload.follow()
    assert line is not None
    workload.take_in(line, line.receive(block=True))


def frames(pusher: Pusher) -> list[Any]:
    return pusher.receive(block=False)


def test_new_pusher_gets_all_jobs_and_unrecorded_reports(
    workload: Workload, new_pusher: Callable[[], Pusher], jobs: list[Job]
) -> None:
    pusher = new_pusher()
    pusher.send(("jobs", jobs[:3]))
    take_in(workload)
    workload.next()
    workload.finish(1, report(1))
    workload.next()
    assert frames(pusher) == [("hello", [])]
    second = new_pusher()
    assert frames(second) == [("hello", [(jobs[0], report(1)), (jobs[1], None), (jobs[2], None)])]
    workload.finish(2, report(2))
    workload.flush()
    assert frames(second) == [("reports", [report(2)])], "an earlier report is not sent again"


def test_no_job_starts_while_too_many_reports_are_unrecorded(
    workload: Workload, new_pusher: Callable[[], Pusher], jobs: list[Job]
) -> None:
    pusher = new_pusher()
    pusher.send(("jobs", jobs[:1]))
    take_in(workload)
    for number in range(100, 100 + MOST_UNRECORDED):
        workload.finish(number, report(number))
    assert not workload.has_next
    pusher.send(("recorded", [100]))
    take_in(workload)
    assert workload.has_next


def test_unrecorded_reports_of_the_previous_worker_are_known(
    workload: Workload, new_pusher: Callable[[], Pusher]
) -> None:
    pusher = new_pusher()
    pusher.send(("unrecorded", [4, 5]))
    take_in(workload)
    pusher.send(("recorded", [5]))
    take_in(workload)
    assert workload.is_unrecorded(4)
    assert not workload.is_unrecorded(5)
    new_pusher()
    assert not workload.is_unrecorded(4), "a new pusher sends its own list"


def test_jobs_sent_by_a_replaced_pusher_are_ignored(
    workload: Workload, new_pusher: Callable[[], Pusher], jobs: list[Job]
) -> None:
    """The new pusher does not know of them and gives them to another worker."""
    pusher = new_pusher()
    old_line = workload.follow()
    assert old_line is not None
    pusher.send(("jobs", jobs))
    second = new_pusher()
    assert frames(second) == [("hello", [])]
    workload.take_in(old_line, old_line.receive(block=True))
    assert workload.next() is None
    assert workload.is_idle


def test_new_pusher_ends_a_read_on_the_old_connection(
    workload: Workload, new_pusher: Callable[[], Pusher]
) -> None:
    new_pusher()
    old_line = workload.follow()
    assert old_line is not None
    new_pusher()
    with pytest.raises(Closed):
        old_line.receive(block=True)
    workload.lose(old_line)
    assert workload.line is not None, "the new line stays when the old one is lost"


def test_late_loss_of_the_old_connection_keeps_the_jobs_reported_to_the_new_pusher(
    workload: Workload, new_pusher: Callable[[], Pusher], jobs: list[Job]
) -> None:
    """The main thread notices the old line's end only after the hello to the new pusher."""
    pusher = new_pusher()
    old_line = workload.follow()
    assert old_line is not None
    pusher.send(("jobs", jobs[:2]))
    take_in(workload)
    second = new_pusher()
    workload.lose(old_line)
    assert frames(second) == [("hello", [(jobs[0], None), (jobs[1], None)])]
    assert [workload.next(), workload.next()] == jobs[:2]


def test_reports_are_kept_until_they_are_recorded(
    workload: Workload, new_pusher: Callable[[], Pusher], jobs: list[Job]
) -> None:
    pusher = new_pusher()
    pusher.send(("jobs", jobs[:1]))
    take_in(workload)
    workload.next()
    workload.finish(1, report(1))
    workload.flush()
    assert not workload.is_idle
    pusher.send(("recorded", [1]))
    take_in(workload)
    assert workload.is_idle


def test_recorded_jobs_leave_no_memory(
    workload: Workload, new_pusher: Callable[[], Pusher], jobs: list[Job]
) -> None:
    new_pusher()
    line = workload.follow()
    assert line is not None
    for first in range(1, 100_001, 500):
        numbers = range(first, first + 500)
        workload.take_in(line, [("jobs", [(number, *jobs[0][1:]) for number in numbers])])
        for number in numbers:
            workload.next()
            workload.finish(number, report(number))
        workload._unsent.clear()
        workload.take_in(line, [("recorded", list(numbers))])
    assert workload.is_idle
    assert not workload._reports
    assert not workload.has_next


def test_skipped_job_is_reported_and_removed(
    workload: Workload, new_pusher: Callable[[], Pusher], jobs: list[Job]
) -> None:
    pusher = new_pusher()
    pusher.send(("jobs", jobs[:1]))
    take_in(workload)
    workload.next()
    workload.skip(1)
    workload.flush(older_than_seconds=60)
    assert frames(pusher) == [("hello", []), ("skipped", [1])]
    assert workload.is_idle


def test_leaving_worker_reports_its_running_jobs_and_starts_no_more(
    workload: Workload, new_pusher: Callable[[], Pusher], jobs: list[Job]
) -> None:
    pusher = new_pusher()
    pusher.send(("jobs", jobs[:3]))
    take_in(workload)
    workload.next()
    workload.finish(1, report(1))
    workload.next()
    workload.leave()
    assert frames(pusher) == [("hello", []), ("reports", [report(1)]), ("leaving", [2])]
    assert not workload.has_next
    pusher.send(("jobs", jobs[3:]))
    take_in(workload)
    assert workload.next() is None, "the pusher takes back jobs that were on their way"
    second = new_pusher()
    assert frames(second) == [
        ("hello", [(jobs[0], report(1)), (jobs[1], None)]),
        ("leaving", [2]),
    ]


def test_leaving_worker_waits_until_the_next_pusher_confirms_its_reports(
    workload: Workload, new_pusher: Callable[[], Pusher], jobs: list[Job]
) -> None:
    first = new_pusher()
    first.send(("jobs", jobs[:1]))
    take_in(workload)
    workload.next()
    workload.finish(1, report(1))
    workload.leave()
    leaver = threading.Thread(target=workload.wait_until_recorded, args=(600.0,))
    leaver.start()
    first.close()
    second = new_pusher()
    second.send(("recorded", [1]))
    leaver.join(120)
    assert not leaver.is_alive()


def test_broken_connection_loses_no_report(
    workload: Workload, new_pusher: Callable[[], Pusher], jobs: list[Job]
) -> None:
    pusher = new_pusher()
    pusher.send(("jobs", jobs[:1]))
    take_in(workload)
    workload.next()
    pusher.close()
    workload.finish(1, report(1))
    workload.flush()
    assert workload.line is None
    second = new_pusher()
    assert frames(second) == [("hello", [(jobs[0], report(1))])]


def test_leave_ends_the_wait_for_a_connection(workload: Workload) -> None:
    found: list[Stream | None] = []
    waiter = threading.Thread(target=lambda: found.append(workload.wait_for_line()))
    waiter.start()
    workload.leave()
    waiter.join(120)
    assert found == [None]


def test_worker_leaves_though_its_last_job_is_skipped_meanwhile(
    workload: Workload, new_pusher: Callable[[], Pusher], jobs: list[Job]
) -> None:
    """No record follows a skipped job, so the pusher sends nothing that would wake the reader."""
    worker: Any = SimpleNamespace(workload=workload, should_be_replaced=lambda: False)

    def begin(_slot: int) -> None:
        job = workload.next()
        assert job is not None
        Worker._obey(worker, ("leave",), None)  # the other thread, while this one opens the job
        workload.skip(job[0])

    worker.begin = begin
    pusher = new_pusher()
    pusher.send(("jobs", jobs[:1]))
    runner = threading.Thread(target=SerialRunner(worker).run, daemon=True)
    runner.start()
    runner.join(10)
    assert not runner.is_alive()
    assert frames(pusher) == [("hello", []), ("leaving", [1]), ("skipped", [1])]


def test_forgotten_workload_sends_nothing(
    workload: Workload, new_pusher: Callable[[], Pusher], jobs: list[Job]
) -> None:
    pusher = new_pusher()
    pusher.send(("jobs", jobs[:2]))
    take_in(workload)
    workload.next()
    workload.forget()
    workload.finish(1, report(1))
    workload.flush()
    assert workload.next() is None
    assert workload.is_leaving
    assert frames(pusher) == [("hello", [])]


def test_unread_connection_is_closed_when_it_is_replaced_or_lost(
    workload: Workload, jobs: list[Job], new_pusher: Callable[[], Pusher]
) -> None:
    """A busy worker may not read the line before the pusher is gone or replaced."""
    new_pusher()
    first = workload.line
    second_pusher = new_pusher()
    second = workload.line
    assert first is not None
    assert first.fileno() == -1
    second_pusher.close()
    workload.finish(1, report(1))
    workload.flush()
    assert second is not None
    assert (workload.line, second.fileno()) == (None, -1)


def test_connection_in_use_is_closed_by_its_reader(
    workload: Workload, jobs: list[Job], new_pusher: Callable[[], Pusher]
) -> None:
    pusher = new_pusher()
    line = workload.wait_for_line()
    assert line is not None
    pusher.close()
    workload.finish(1, report(1))
    workload.flush()
    assert workload.line is None
    assert line.fileno() >= 0
    workload.lose(line)
    assert line.fileno() == -1


def test_leaving_worker_keeps_its_reports_until_there_is_a_pusher(
    workload: Workload,
    new_pusher: Callable[[], Pusher],
    jobs: list[Job],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, came = new_pusher(), list[Pusher]()
    first.send(("jobs", jobs[:1]))
    take_in(workload)
    workload.next()
    first.close()
    workload.finish(1, report(1))
    workload.leave()
    until = clock.now + 60

    def sleep(seconds: float) -> None:
        clock.turn(seconds)
        if clock.now >= until and not came:
            came.append(new_pusher())
            came[0].send(("recorded", [1]))

    monkeypatch.setattr(clock, "sleep", sleep)
    workload.wait_until_recorded(5.0)
    (second,) = came
    hello, _ = frames(second)
    assert hello == ("hello", [(jobs[0], report(1))])
    assert not workload.is_unrecorded(1)


@pytest.mark.parametrize(
    ("plan", "hangs"),
    [(False, "pusher"), (True, "pusher"), (True, "monitor"), (True, "scheduler")],
    indirect=["plan"],
    ids=["pusher", "pusher-single", "monitor-single", "scheduler-single"],
)
def test_leaving_worker_keeps_its_reports_while_the_pusher_hangs(
    worker: Worker,
    board: Board,
    jobs: list[Job],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    hangs: str,
) -> None:
    """The pusher has not read them, or has them alone, when it is killed, although it was
    connected. In a single cluster it is killed if another loop of its process hangs."""
    workload, began = worker.workload, clock.now
    ends = [[Stream(end) for end in socket_pair()] for _ in range(2)]
    (ours, first), (new, second) = ends

    def turn(loops: Iterable[str]) -> None:
        for loop in loops:
            board[LOOPS[loop]] = clock.monotonic_ns()

    turn(LOOPS)
    workload.meet(ours)
    first.send(("jobs", jobs[:1]))
    take_in(workload)
    workload.next()
    workload.finish(1, report(1))
    workload.leave()

    def wait(line: Stream, seconds: float) -> bool:
        clock.turn(seconds)
        turn(LOOPS.keys() - {hangs})
        if line is ours and clock.now >= began + 40:  # the sentinel replaces the process
            turn(LOOPS)
            workload.meet(new)
            second.send(("recorded", [1]))
            return False
        return line is new

    monkeypatch.setattr(Stream, "waits", wait)
    workload.wait_until_recorded(5.0)
    hello, _ = frames(second)
    assert hello == ("hello", [(jobs[0], report(1))])
    assert not workload.is_unrecorded(1)
    for end in [*ends[0], *ends[1]]:
        end.close()


@pytest.mark.parametrize("pusher_is_first", [False, True])
def test_leaving_worker_keeps_its_reports_when_all_processes_were_suspended(
    workload: Workload,
    new_pusher: Callable[[], Pusher],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    pusher_is_first: bool,
) -> None:
    """The monotonic clock goes on while a container is paused, here for longer than both limits."""
    pusher = new_pusher()
    beats = [clock.monotonic_ns()]
    workload.oldest_beat_ns = lambda: beats[-1]
    workload.finish(1, report(1))
    workload.leave()
    looks, last = [], 5 if pusher_is_first else 30

    def wait(line: Stream, seconds: float) -> bool:
        looks.append(clock.now)
        clock.turn(2 * NEW_PUSHER_SECONDS if len(looks) == 1 else seconds)
        if len(looks) > 25 or pusher_is_first:
            beats.append(clock.monotonic_ns())
        if len(looks) == last:
            pusher.send(("recorded", [1]))
        return len(looks) == last

    monkeypatch.setattr(Stream, "waits", wait)
    workload.wait_until_recorded(5.0)
    assert not workload.is_unrecorded(1)


@pytest.mark.parametrize(("hangs", "seconds"), [(False, 5.0), (True, NEW_PUSHER_SECONDS + 5.0)])
def test_leaving_worker_waits_no_longer_than_a_pusher_may_take(
    workload: Workload,
    new_pusher: Callable[[], Pusher],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    hangs: bool,
    seconds: float,
) -> None:
    new_pusher()
    workload.finish(1, report(1))
    workload.leave()
    began = clock.now
    workload.oldest_beat_ns = (lambda: 0) if hangs else clock.monotonic_ns
    monkeypatch.setattr(Stream, "waits", lambda _line, seconds: clock.turn(seconds))
    workload.wait_until_recorded(5.0)
    assert clock.now == pytest.approx(began + seconds, abs=1.0)


@pytest.mark.parametrize("database_seconds", [15.0, 120.0])
def test_worker_waits_for_longer_than_the_sentinel_takes_to_replace_a_pusher(
    plan: Plan, board: Board, clock: Clock, database_seconds: float
) -> None:
    settings = replace(plan.settings, database_seconds=database_seconds)
    loops, began = Loops(settings, board), clock.now

    def wait_for_kill() -> None:
        while "pusher" not in dict(loops.hung()):
            clock.turn(1.0)

    board[LOOPS["pusher"]] = clock.monotonic_ns()
    wait_for_kill()
    loops.note_start("pusher")
    wait_for_kill()
    assert recovery_seconds(settings) > clock.now - began


def test_worker_of_a_cluster_that_ends_does_not_wait_for_a_pusher(
    workload: Workload, clock: Clock
) -> None:
    workload.finish(1, report(1))
    workload.leave()
    workload.expects_pusher = False
    began = clock.now
    workload.wait_until_recorded(5.0)
    assert clock.now == pytest.approx(began + 5, abs=0.1)
