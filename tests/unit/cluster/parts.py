"""Helpers shared by the tests of a cluster's parts."""

import struct
from uuid import UUID

from stoker.brokers.contract import Delivery
from stoker.cluster.board import Board, Occupied, lease_mark
from stoker.cluster.wire import Report
from stoker.jobs.package import JOB
from stoker.values import codec
from stoker.values.ids import new_job_id, new_lease_id

TASK = "app.tasks.task"
OTHER_TASK = "app.tasks.other"
WORKERS = 2
SLOTS = 3


class Clock:
    """Replaces the module `time`; it advances only by turn() and sleep()."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.suspended_seconds = 0.0
        """How long the machine was suspended."""

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return round(self.now * 1e9)

    def clock_gettime_ns(self, _clock: int) -> int:
        """CLOCK_BOOTTIME."""
        return round((self.now + self.suspended_seconds) * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    turn = sleep


def occupy(board: Board, worker: int, slot: int, job: Occupied) -> None:
    board.slot(worker, slot).occupy(job.delivery, job.job_id.bytes, *job[2:])


def finish(board: Board, worker: int, number: int, delivery: Delivery) -> None:
    """Let a worker list this delivery as finished."""
    finished = board.finished_of(worker, lambda _number: False)
    halves = struct.unpack(">qq", delivery.job_id.bytes)
    finished.add((number, *halves, lease_mark(delivery.lease_id)))


def make_package(task: str = TASK, max_attempts: int = 3) -> bytes:
    """Build a package of which only the beginning can be read."""
    options = [max_attempts, 3, None, None]
    return JOB.plain + codec.write(["0" * 32, task, "default", 0, 1.0, options])


def make_delivery(
    job_id: UUID | None = None,
    lease_id: int | str | None = None,
    attempt: int = 1,
    task: str = TASK,
) -> Delivery:
    return Delivery(
        job_id or new_job_id(),
        lease_id or new_lease_id(),
        make_package(task),
        "default",
        0,
        attempt,
    )


def make_report(number: int, seconds: float = 1.0, task: str = TASK) -> Report:
    """Report a success that took so long."""
    return (number, 1.0, 1.0 + seconds, "worker", ("succeeded", b""), task, None)
