"""What the tests of a cluster's parts have in common."""

from uuid import UUID

from stoker.brokers.base import Delivery
from stoker.cluster.board import Board, Occupied
from stoker.ids import new_job_id, new_lease_id

WORKERS = 2
SLOTS = 3


class Clock:
    """In the place of the module `time`: it goes on only when somebody turns it or sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return round(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    turn = sleep


def occupy(board: Board, worker: int, slot: int, job: Occupied) -> None:
    board.slot(worker, slot).occupy(job.delivery, job.job_id.bytes, *job[2:])


def make_delivery(
    job_id: UUID | None = None, lease_id: int | str | None = None, attempt: int = 1
) -> Delivery:
    return Delivery(
        job_id or new_job_id(), lease_id or new_lease_id(), b"package", "default", 0, attempt
    )
