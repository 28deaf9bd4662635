"""What the tests of a cluster's parts have in common."""

import struct
from uuid import UUID

from stoker.brokers.contract import Delivery
from stoker.cluster.board import Board, Occupied, lease_mark
from stoker.values.ids import new_job_id, new_lease_id

WORKERS = 2
SLOTS = 3


class Clock:
    """In the place of the module `time`: it goes on only when somebody turns it or sleeps."""

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


def make_delivery(
    job_id: UUID | None = None, lease_id: int | str | None = None, attempt: int = 1
) -> Delivery:
    return Delivery(
        job_id or new_job_id(), lease_id or new_lease_id(), b"package", "default", 0, attempt
    )
