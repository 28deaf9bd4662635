"""What a worker writes to the board, and how it obeys the sentinel."""

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from stoker.cluster import board as place
from stoker.cluster.board import Board, job_lease
from stoker.cluster.channel import Stream, socket_pair
from stoker.cluster.wire import open_job, pack_job
from stoker.cluster.worker.worker import Worker
from stoker.jobs.outcomes import Attempted, Succeeded

from tests.unit.cluster.parts import make_delivery

pytestmark = pytest.mark.unit

LARGE_BYTES = 1 << 20
"""More than the buffers of a connection can hold."""


@pytest.fixture
def line() -> Iterator[tuple[Stream, Stream]]:
    """The worker's and the pusher's end of a connection."""
    ours, theirs = map(Stream, socket_pair())
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def continued(worker: Worker) -> Iterator[Worker]:
    """A worker that looks at its fence when it is continued."""
    before = signal.getsignal(signal.SIGCONT)
    worker.look_at_fence_when_continued()
    yield worker
    signal.signal(signal.SIGCONT, before)


def test_ended_job_leaves_its_slot_though_the_pusher_reads_nothing(
    worker: Worker, board: Board, line: tuple[Stream, Stream]
) -> None:
    """Otherwise it would be stopped at the fence, and run again."""
    ours, theirs = line
    delivery = make_delivery()._replace(package=bytes(LARGE_BYTES))
    worker.workload.meet(ours)
    theirs.receive(block=True)
    job = pack_job(7, delivery)
    worker.workload.take_in(ours, [("jobs", [job])])
    assert worker.begin(0) is not None

    second, unread = socket_pair()
    meeting = threading.Thread(target=worker.workload.meet, args=(Stream(second),), daemon=True)
    meeting.start()
    while not unread.recv(1):  # the greeting is being sent
        pass
    attempted = Attempted(open_job(job), Succeeded(b"value"), "worker", 1.0, 2.0)
    ending = threading.Thread(target=worker.end, args=(0, 7, attempted), daemon=True)
    ending.start()
    until = time.monotonic() + 10
    while (is_in_slot := any(board.occupied(0))) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_in_slot
    assert job_lease(delivery) in board.finished()
    assert ending.is_alive(), "its report waits for the greeting"

    unread.close()
    meeting.join()
    ending.join()
    assert worker.workload.is_unrecorded(7)


def test_process_forked_by_a_task_can_be_continued(continued: Worker) -> None:
    continued._be_no_worker()
    signal.raise_signal(signal.SIGCONT)
    assert signal.getsignal(signal.SIGCONT) is signal.SIG_DFL


def test_request_to_cancel_a_job_that_has_ended_is_forgotten(worker: Worker, board: Board) -> None:
    board.set_worker(0, place.LAST_STARTED, 7)
    for number in (7, 8):
        worker._obey(("cancel", number, "why"), None)
    worker._remind()
    assert list(worker._to_cancel) == [8], "this job may still arrive"


def test_request_to_cancel_a_job_that_is_being_opened_is_kept(
    worker: Worker, line: tuple[Stream, Stream]
) -> None:
    worker.workload.meet(line[0])
    job = pack_job(7, make_delivery())
    worker.workload.take_in(line[0], [("jobs", [job])])
    assert worker.begin(0) is not None
    worker._obey(("cancel", 7, "why"), None)
    worker._remind()
    assert list(worker._to_cancel) == [7]
