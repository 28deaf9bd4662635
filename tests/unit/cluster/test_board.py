"""The board: which worker runs which job, readable even after all processes died."""

import errno
import fcntl
import os
import threading
import time
from pathlib import Path
from uuid import uuid4

import pytest

from stoker.cluster import board as place
from stoker.cluster.board import FINISHED, Board, Occupied, lease_mark
from stoker.values.ids import new_job_id, new_lease_id

from tests.unit.cluster.parts import SLOTS, WORKERS, finish, make_delivery, occupy

pytestmark = pytest.mark.unit


def test_slot_shows_its_running_job(board: Board) -> None:
    job = Occupied(7, new_job_id(), 2, 123, 456, new_lease_id())
    occupy(board, 1, 2, job)
    assert list(board.occupied(1)) == [job]
    assert list(board.occupied(0)) == []
    with board.slot(1, 2).deadline(60.0):
        assert next(board.occupied(1)).deadline_ns > time.monotonic_ns()
    assert next(board.occupied(1)).deadline_ns == 0
    board.slot(1, 2).vacate()
    assert list(board.occupied(1)) == []


def test_board_closed_twice_closes_no_other_file(tmp_path: Path) -> None:
    """Each child that a task forks closes it, also one that a child has forked."""
    board = Board.create(tmp_path / "twice.board", WORKERS, SLOTS)
    board.close()
    with (tmp_path / "other").open("w") as other:  # it gets the descriptor's number
        board.close()
        os.fstat(other.fileno())


def test_disk_space_of_the_board_is_reserved(board: Board) -> None:
    """Otherwise a full disk would kill the process that writes to a new page of the file."""
    status = board.path.stat()
    assert status.st_blocks * 512 >= status.st_size


def test_full_disk_is_reported_when_the_board_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(OSError, match=r"No space left on device\. Free disk space there, or set"):
        Board.create(tmp_path / "new.board", WORKERS, SLOTS)
    assert not list(tmp_path.iterdir())


def test_board_is_created_where_space_cannot_be_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    board = Board.create(tmp_path / "new.board", WORKERS, SLOTS)
    assert board.is_whole()
    board.close()


def test_board_is_created_though_a_health_check_reads_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment the check has the lock of the file."""
    path, lock = tmp_path / "new.board", fcntl.flock

    def lock_after_a_check(descriptor: int, operation: int) -> None:
        reader = os.open(path, os.O_RDWR)
        lock(reader, fcntl.LOCK_SH | fcntl.LOCK_NB)
        ended = threading.Timer(0.05, os.close, [reader])
        ended.start()
        try:
            lock(descriptor, operation)
        finally:
            ended.join()

    monkeypatch.setattr(fcntl, "flock", lock_after_a_check)
    board = Board.create(path, WORKERS, SLOTS)
    monkeypatch.undo()
    assert Board.of_the_dead(path) is None, "the lock is held"
    board.remove()


def test_slots_of_all_workers_are_separate(board: Board) -> None:
    jobs = {
        (worker, slot): Occupied(10 * worker + slot + 1, uuid4(), worker, slot, 5, 6)
        for worker in range(WORKERS)
        for slot in range(SLOTS)
    }
    for (worker, slot), job in jobs.items():
        occupy(board, worker, slot, job)
        board.set_worker(worker, place.PID, worker + 100)
    for worker in range(WORKERS):
        assert list(board.occupied(worker)) == [jobs[worker, slot] for slot in range(SLOTS)]
        assert board.worker(worker, place.PID) == worker + 100
    assert board.pids_of_running_jobs() == {job.job_id: key[0] + 100 for key, job in jobs.items()}


def test_clearing_a_worker_keeps_its_neighbour(board: Board) -> None:
    for worker in range(WORKERS):
        board.set_worker(worker, place.INCARNATION, 3)
        occupy(board, worker, 0, Occupied(1, uuid4(), 1, 1, 1))
    board.clear_worker(0)
    assert board.worker(0, place.INCARNATION) == 0
    assert list(board.occupied(0)) == []
    assert board.worker(1, place.INCARNATION) == 3
    assert len(list(board.occupied(1))) == 1


def test_finished_jobs_are_listed_after_their_worker_died(tmp_path: Path) -> None:
    board = Board.create(tmp_path / "dead.board", WORKERS, SLOTS)
    deliveries = [make_delivery() for _ in range(WORKERS)]
    for worker, delivery in enumerate(deliveries):
        finish(board, worker, 7 + worker, delivery)
        board.clear_worker(worker)
    board.close()
    found = Board.of_the_dead(tmp_path / "dead.board")
    assert found is not None
    assert found.finished() == {
        (delivery.job_id.bytes, delivery.lease_id): (worker, 7 + worker)
        for worker, delivery in enumerate(deliveries)
    }
    found.remove()


def test_running_jobs_of_cleared_worker_are_listed_as_begun(board: Board) -> None:
    """Their ends may be unrecorded, and they must not be taken for jobs that never began."""
    jobs = [Occupied(7 + slot, uuid4(), 1, 1, 1, new_lease_id()) for slot in range(SLOTS)]
    for slot, job in enumerate(jobs):
        occupy(board, 1, slot, job)
    begun = board.begun()
    board.clear_worker(1)
    assert begun == {(job.job_id.bytes, job.lease) for job in jobs}
    assert board.begun() == begun
    assert {ended.delivery for ended in board.finished().values()} == {7, 8, 9}
    assert {ended.worker for ended in board.finished().values()} == {1}


def test_unrecorded_jobs_keep_their_place_in_the_list(board: Board) -> None:
    """Even if a new worker continues the list."""
    unrecorded = {1, 3}
    finished = board.finished_of(0, lambda number: number in unrecorded)
    for number in range(1, FINISHED + 2):
        finished.add((number, 0, number, 1))
    listed = {ended.delivery for ended in board.finished().values()}
    assert listed == set(range(1, FINISHED + 2)) - {2}
    successor = board.finished_of(0, lambda number: number in unrecorded)
    for number in range(FINISHED + 2, 2 * FINISHED + 2):
        successor.add((number, 0, number, 1))
    listed = {ended.delivery for ended in board.finished().values()}
    assert listed == unrecorded | set(range(FINISHED + 4, 2 * FINISHED + 2))


def test_full_list_of_unrecorded_jobs_still_takes_a_job(board: Board) -> None:
    """The job finished last must be listed, even if more jobs run at once than the list holds."""
    finished = board.finished_of(0, lambda number: number > 0)
    for number in range(1, FINISHED + 2):
        finished.add((number, 0, number, 1))
    assert FINISHED + 1 in {ended.delivery for ended in board.finished().values()}


def test_board_of_another_version_is_not_read(tmp_path: Path) -> None:
    board = Board.create(tmp_path / "old.board", WORKERS, SLOTS)
    os.ftruncate(board.descriptor, 8 * 100)
    board.close()
    assert Board.of_the_dead(tmp_path / "old.board") is None


def test_board_from_before_a_restart_of_the_machine_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut, the disk may have an old state of it, without jobs that had started."""
    path = tmp_path / "old.board"
    Board.create(path, 1, 1).close()
    monkeypatch.setattr("stoker.cluster.board.boot_mark", lambda: 1)
    assert Board.of_the_dead(path) is None
    assert not path.exists()


def test_incarnation_is_the_first_field_that_clearing_resets() -> None:
    """So a reader that finds the incarnation unchanged can trust what it read before."""
    assert place.INCARNATION == 0


def test_board_is_shared_between_processes(board: Board) -> None:
    same = Board(os.dup(board.descriptor), board.path)
    same[place.FENCE_NS] = 42
    assert board[place.FENCE_NS] == 42
    same.close()


def test_board_of_a_living_cluster_is_not_opened_as_dead(board: Board) -> None:
    assert Board.of_the_dead(board.path) is None


def test_board_of_a_dead_cluster_lists_its_running_jobs(tmp_path: Path) -> None:
    board = Board.create(tmp_path / "dead.board", WORKERS, SLOTS)
    job = Occupied(7, new_job_id(), 2, 123, 456)
    occupy(board, 0, 0, job)
    board.set_worker(0, place.PID, 4711)
    board.close()
    found = Board.of_the_dead(tmp_path / "dead.board")
    assert found is not None
    assert found.pids_of_running_jobs() == {job.job_id: 4711}
    assert Board.of_the_dead(tmp_path / "dead.board") is None, "only one finder at a time"
    found.remove()
    assert not (tmp_path / "dead.board").exists()


def test_cluster_is_alive_while_one_process_holds_its_board(tmp_path: Path) -> None:
    board = Board.create(tmp_path / "half.board", WORKERS, SLOTS)
    inherited = os.dup(board.descriptor)
    board.close()
    assert Board.of_the_dead(tmp_path / "half.board") is None
    os.close(inherited)
    found = Board.of_the_dead(tmp_path / "half.board")
    assert found is not None
    found.close()


@pytest.mark.parametrize("name", ["", "missing.board", "empty.board"])
def test_invalid_board_file_is_ignored(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.board").touch()
    assert Board.of_the_dead(tmp_path / name) is None
    with (tmp_path / "empty.board").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_lease_mark_identifies_a_lease() -> None:
    lease_id = new_lease_id()
    assert lease_mark(lease_id) == lease_id
    assert lease_mark("receipt-1") == lease_mark("receipt-1") != lease_mark("receipt-2")
    assert 0 <= lease_mark("receipt-1") < 2**63
