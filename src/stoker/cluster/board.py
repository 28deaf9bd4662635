"""The board: a memory-mapped file in which the processes of a cluster write what they are doing.

The sentinel reads it. There are no locks: every number has one writer.

Workers also list the jobs that they finished last, because the board is the only other record of
them until the monitor has recorded them. If all processes that have the report die, the attempts
still count. For the same reason the sentinel lists the jobs that a dead worker was running before
it clears its slots.

The file also informs the next cluster on this host: all processes share one open file with an
exclusive ``flock``, which the kernel releases when the last of them has ended. A process that gets
the lock knows that none of them runs any more.

::

    numbers of 64 bits
    0  FENCE_NS          when the first lease held here ends, on the lease clock; 0 = none held
    1  PUSHER_BEAT_NS    2  MONITOR_BEAT_NS    3  SCHEDULER_BEAT_NS
    4  LAST_DELIVERY     the highest delivery number given out
    5  WORKERS           6  SLOTS (per worker)
    7  STORE             whose queues the cluster serves (see store_mark)
    8  MONITOR_PID       9  SCHEDULER_PID
    10 BOOT              the start of the machine (see boot_mark)
    11 CLEANED_UP        1 = upkeep has cleaned up after dead clusters (Upkeep.is_cleaned_up)
    12 per worker:       INCARNATION (0 = none), RECALLED_THROUGH, LAST_STARTED, JOBS_DONE, PID
       per slot:         DELIVERY (0 = idle), JOB (two numbers), ATTEMPT, STARTED_NS, DEADLINE_NS,
                         LEASE (see lease_mark), COMPLETING (the delivery that records itself now)
    per worker again:    FENCED (the incarnation that killed itself at the fence), NEXT (the place
                         of the next finished job)
       FINISHED times:   DELIVERY, JOB (two numbers), LEASE
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from django.db import connections

from stoker.conf import Settings

if sys.platform != "win32":  # no cluster runs there
    import fcntl

if TYPE_CHECKING:  # a started process reads the board before Django is set up
    from stoker.brokers.contract import Delivery
    from stoker.conf import Settings

FENCE_NS, PUSHER_BEAT_NS, MONITOR_BEAT_NS, SCHEDULER_BEAT_NS, LAST_DELIVERY, WORKERS, SLOTS = range(
    7
)
STORE, MONITOR_PID, SCHEDULER_PID, BOOT, CLEANED_UP = 7, 8, 9, 10, 11
_HEADER = 12
INCARNATION, RECALLED_THROUGH, LAST_STARTED, JOBS_DONE, PID = range(5)
_PER_WORKER = 5
DELIVERY, JOB_HIGH, JOB_LOW, ATTEMPT, STARTED_NS, DEADLINE_NS, LEASE, COMPLETING = range(8)
_PER_SLOT = 8
OPENING = -1
"""Value of a slot's deadline while the package is opened and the task has not been called."""

FENCED, NEXT = range(2)
_BEFORE_FINISHED = 2
FINISHED = 4096
"""Number of finished jobs to list per worker."""
MOST_UNRECORDED = FINISHED // 2
"""Number of unrecorded reports at which a worker starts no more jobs. The remaining places are for
the reports of the previous worker with the same number."""
_PER_FINISHED = 4
_PER_LIST = _BEFORE_FINISHED + FINISHED * _PER_FINISHED

_HALVES = struct.Struct(">qq")
_REST = struct.Struct("6q")
"""The fields from JOB_HIGH to LEASE."""
_REST_AT = 8 * JOB_HIGH
"""Offset in bytes within the slot."""
_ENDED = struct.Struct(f"{_PER_FINISHED}q")

_LEASE_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def lease_clock_ns() -> int:
    """Return nanoseconds on the lease clock, which measures the age of leases.

    Unlike Linux's monotonic clock it also counts while the machine is suspended.
    """
    return time.monotonic_ns() if _LEASE_CLOCK is None else time.clock_gettime_ns(_LEASE_CLOCK)


def lease_clock() -> float:
    """Return seconds on the lease clock, see ``lease_clock_ns``."""
    return lease_clock_ns() / 1e9


class Occupied(NamedTuple):
    """A slot of a worker with its running job."""

    delivery: int
    job_id: UUID
    attempt: int
    started_ns: int
    deadline_ns: int
    lease: int = 0


class FinishedDelivery(NamedTuple):
    """A finished job in the list of its worker."""

    worker: int
    delivery: int


Listing = tuple[int, int, int, int]
"""An entry of the list of finished jobs: delivery, job (two numbers), lease."""
JobLease = tuple[bytes, int]
"""Id of a job, and the mark of its lease."""


class Slot:
    """A slot, for the worker that owns it. Its position is computed once, not for each job."""

    def __init__(self, numbers: memoryview[int]) -> None:
        self._numbers = numbers

    def occupy(
        self,
        delivery: int,
        job_id: bytes,
        attempt: int,
        started_ns: int,
        deadline_ns: int,
        lease: int,
    ) -> None:
        """Write the job that starts. The delivery number is written last; until then readers treat
        the slot as idle."""
        high, low = _HALVES.unpack(job_id)
        _REST.pack_into(self._numbers, _REST_AT, high, low, attempt, started_ns, deadline_ns, lease)
        self._numbers[DELIVERY] = delivery

    def begin(self) -> None:
        """Mark that the task is about to be called. From here on the attempt counts."""
        self._numbers[DEADLINE_NS] = 0

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Let the sentinel kill the worker if the block takes longer than this."""
        self._numbers[DEADLINE_NS] = time.monotonic_ns() + round(seconds * 1e9)
        try:
            yield
        finally:
            with suppress(ValueError):  # a process that the task has forked has no board
                self._numbers[DEADLINE_NS] = 0

    def complete(self) -> None:
        """Mark that the running job is about to record itself and end its lease."""
        self._numbers[COMPLETING] = self._numbers[DELIVERY]

    def vacate(self) -> None:
        self._numbers[DELIVERY] = 0

    def listing(self) -> Listing:
        """Return the entry of this job for the list of finished jobs."""
        numbers = self._numbers
        return numbers[DELIVERY], numbers[JOB_HIGH], numbers[JOB_LOW], numbers[LEASE]


class Finished:
    """The list of a worker's last finished jobs. The worker writes it. While there is no worker,
    the sentinel writes it.

    Unrecorded jobs keep their place, even those of the previous worker with this number. Other
    entries are overwritten.

    Args:
        numbers: the worker's part of the board, starting with the field NEXT.
        is_unrecorded: returns whether the report of a delivery number is still to be recorded.
    """

    def __init__(self, numbers: memoryview[int], is_unrecorded: Callable[[int], bool]) -> None:
        self._numbers = numbers
        self._is_unrecorded = is_unrecorded

    def add(self, listing: Listing) -> None:
        """List a job, before its slot is vacated."""
        numbers, tries = self._numbers, FINISHED
        at = numbers[0]
        while tries and self._is_unrecorded(numbers[1 + at * _PER_FINISHED]):
            at, tries = (at + 1) % FINISHED, tries - 1
        _ENDED.pack_into(numbers, 8 + 8 * at * _PER_FINISHED, *listing)
        numbers[0] = (at + 1) % FINISHED


class Board:
    """The board of one cluster, mapped into this process."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor: int | None = descriptor
        self.path = path
        self._map = mmap.mmap(descriptor, 0)
        self._numbers = memoryview(self._map).cast("q")
        self._parts: list[memoryview[int]] = []

    @classmethod
    def create(cls, path: Path, workers: int, slots: int) -> Board:
        """Create a board. It is locked while any process of this cluster lives.

        Raises:
            OSError: the file cannot be created, or the disk is full.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # a health check may have the lock for a moment
        try:
            _reserve(descriptor, 8 * _length(workers, slots))
        except OSError as error:
            path.unlink()
            os.close(descriptor)
            raise OSError(
                f"The file {path} of the cluster cannot be created: {error.strerror}. Free disk "
                "space there, or set TMPDIR to another folder."
            ) from error
        board = cls(descriptor, path)
        board[WORKERS], board[SLOTS], board[BOOT] = workers, slots, boot_mark()
        return board

    @classmethod
    def of_the_dead(cls, path: Path) -> Board | None:
        """Return the board of a cluster without live processes.

        Returns None if a process lives, or if the board cannot be read, for example after an
        upgrade. A board from before the machine was restarted is removed: after a power cut, the
        disk may have an old state of it.
        """
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            board = cls(descriptor, path)
        except (OSError, ValueError):
            os.close(descriptor)
            return None
        if not board.is_whole():
            board.close()
            return None
        if board[BOOT] != boot_mark():
            board.remove()
            return None
        return board

    @classmethod
    def of_the_living(cls, path: Path) -> Board | None:
        """Return the board of a cluster with a live process, or None."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # a live process has the lock
            with suppress(OSError, ValueError):
                return cls(descriptor, path)
        os.close(descriptor)
        return None

    def is_whole(self) -> bool:
        """Return whether the file has the length of a board of this version."""
        count = len(self._numbers)
        return count > _HEADER and count == _length(self[WORKERS], self[SLOTS])

    def __getitem__(self, place: int) -> int:
        return self._numbers[place]

    def __setitem__(self, place: int, number: int) -> None:
        self._numbers[place] = number

    def worker(self, worker: int, place: int) -> int:
        return self._numbers[self._worker_start(worker) + place]

    def set_worker(self, worker: int, place: int, number: int) -> None:
        self._numbers[self._worker_start(worker) + place] = number

    def of_worker(self, worker: int) -> memoryview[int]:
        """Return the part of the board that a worker writes."""
        return self._part(self._worker_start(worker), _PER_WORKER)

    def slot(self, worker: int, slot: int) -> Slot:
        return Slot(self._part(self._slot_start(worker, slot), _PER_SLOT))

    def finished_of(self, worker: int, is_unrecorded: Callable[[int], bool]) -> Finished:
        """Return the list of finished jobs, for their worker."""
        start = self._list_start(worker) + NEXT
        return Finished(self._part(start, 1 + FINISHED * _PER_FINISHED), is_unrecorded)

    def finished(self) -> dict[JobLease, FinishedDelivery]:
        """Return the jobs that workers finished last or ran when they died. Most have been
        recorded."""
        found = {}
        for worker in range(self[WORKERS]):
            start = self._list_start(worker) + _BEFORE_FINISHED
            numbers = self._numbers[start : start + FINISHED * _PER_FINISHED]
            for delivery, high, low, lease in _ENDED.iter_unpack(numbers.cast("B")):
                if delivery:
                    found[_HALVES.pack(high, low), lease] = FinishedDelivery(worker, delivery)
            numbers.release()
        return found

    def begun(self) -> set[JobLease]:
        """Return the leases of all running jobs and of the jobs that workers finished last."""
        running = {
            (job.job_id.bytes, job.lease)
            for worker in range(self[WORKERS])
            for job in self.occupied(worker)
        }
        return running | set(self.finished())

    def note_fenced(self, worker: int, incarnation: int) -> None:
        """Record that this worker is about to kill itself, because its fence has been reached."""
        self._numbers[self._list_start(worker) + FENCED] = incarnation

    def was_fenced(self, worker: int, incarnation: int) -> bool:
        """Return whether this worker killed itself because its fence had been reached."""
        return self._numbers[self._list_start(worker) + FENCED] == incarnation

    def is_completing(self, worker: int, delivery: int) -> bool:
        """Return whether a delivery is recording itself, or was the last in its slot to do so."""
        starts = [self._slot_start(worker, slot) for slot in range(self[SLOTS])]
        return any(self._numbers[start + COMPLETING] == delivery for start in starts)

    def occupied(self, worker: int) -> Iterator[Occupied]:
        """Yield the running jobs of a worker."""
        numbers = self._numbers
        for slot in range(self[SLOTS]):
            start = self._slot_start(worker, slot)
            delivery = numbers[start + DELIVERY]
            if delivery:
                job_id = UUID(
                    bytes=_HALVES.pack(numbers[start + JOB_HIGH], numbers[start + JOB_LOW])
                )
                yield Occupied(
                    delivery,
                    job_id,
                    numbers[start + ATTEMPT],
                    numbers[start + STARTED_NS],
                    numbers[start + DEADLINE_NS],
                    numbers[start + LEASE],
                )

    def clear_worker(self, worker: int) -> None:
        """Clear the numbers of a dead worker, its identity first, and list its running jobs as
        finished.

        Finished jobs stay listed, because some may not be recorded yet.
        """
        self._list_running(worker)
        start = self._worker_start(worker)
        for place in range(start, start + _PER_WORKER + self[SLOTS] * _PER_SLOT):
            self._numbers[place] = 0

    def _list_running(self, worker: int) -> None:
        """Add the running jobs of a dead worker to the list of finished jobs."""
        if not any(self.occupied(worker)):
            return
        start = self._list_start(worker) + NEXT
        with self._numbers[start : start + 1 + FINISHED * _PER_FINISHED] as numbers:
            over = Finished(numbers, lambda _: False)
            for slot in range(self[SLOTS]):
                at = self._slot_start(worker, slot)
                with self._numbers[at : at + _PER_SLOT] as slot_numbers:
                    if slot_numbers[DELIVERY]:
                        over.add(Slot(slot_numbers).listing())

    def pids_of_running_jobs(self) -> dict[UUID, int]:
        """Return job id -> process id of its worker, for all running jobs. If the cluster is dead:
        for the jobs that ran when it died."""
        return {
            job.job_id: self.worker(worker, PID)
            for worker in range(self[WORKERS])
            for job in self.occupied(worker)
        }

    def close(self) -> None:
        """Close the board. The last process that does so releases the lock. A second call does
        nothing: another file may have the number of the descriptor by then."""
        for part in self._parts:
            part.release()
        self._numbers.release()
        self._map.close()
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def remove(self) -> None:
        """Delete the file. Called by the last process of the cluster, or by another cluster that
        found this one dead."""
        self.path.unlink(missing_ok=True)
        self.close()

    def _part(self, start: int, length: int) -> memoryview[int]:
        self._parts.append(self._numbers[start : start + length])
        return self._parts[-1]

    def _worker_start(self, worker: int) -> int:
        return _HEADER + worker * (_PER_WORKER + self._numbers[SLOTS] * _PER_SLOT)

    def _slot_start(self, worker: int, slot: int) -> int:
        return self._worker_start(worker) + _PER_WORKER + slot * _PER_SLOT

    def _list_start(self, worker: int) -> int:
        return self._worker_start(self._numbers[WORKERS]) + worker * _PER_LIST


def _reserve(descriptor: int, size: int) -> None:
    """Set the size of a file, and reserve its disk space if the system can do that. Without space a
    process would be killed when it writes to the mapped file."""
    os.ftruncate(descriptor, size)
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # not on this file system
                raise


def _length(workers: int, slots: int) -> int:
    """Return the length of a board in numbers."""
    return _HEADER + workers * (_PER_WORKER + slots * _PER_SLOT + _PER_LIST)


def lease_mark(lease_id: int | str) -> int:
    """Return a number that identifies the lease."""
    if isinstance(lease_id, int):
        return lease_id
    return int.from_bytes(hashlib.blake2b(lease_id.encode(), digest_size=8).digest()) >> 1


def store_mark(settings: Settings) -> int:
    """Return a number that identifies a backend and its store."""
    database = connections[settings.database].settings_dict
    parts = [settings.alias, settings.broker]
    parts += [str(database[name]) for name in ("ENGINE", "HOST", "PORT", "NAME")]
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def boot_mark() -> int:
    """Return a number that each start of the machine changes; 0 if it is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return 0
    return int.from_bytes(hashlib.blake2b(boot, digest_size=8).digest()) >> 1


def job_lease(delivery: Delivery) -> JobLease:
    """Return a delivery's key on the board: job id and lease mark."""
    return delivery.job_id.bytes, lease_mark(delivery.lease_id)


def board_path(cluster_id: UUID) -> Path:
    """Return the path of the board of a cluster of this user."""
    folder = Path(tempfile.gettempdir()) / f"stoker-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = folder.stat()
    if owner.st_uid != os.getuid():
        raise PermissionError(
            f"{folder} belongs to another user; set TMPDIR to a folder of your own."
        )
    return folder / f"cluster-{cluster_id}.board"


LONGEST_MARGIN_NS = 5_000_000_000


def is_fenced(board: Board, settings: Settings) -> bool:
    """Return whether the first lease held here is about to end because it was not extended.

    Then no job may run or start. The margin is the time that it takes to stop jobs.
    """
    fence_ns = board[FENCE_NS]
    left_ns = fence_ns - lease_clock_ns()
    return left_ns <= LONGEST_MARGIN_NS and bool(fence_ns) and left_ns <= fence_margin_ns(settings)


def fence_margin_ns(settings: Settings) -> int:
    return min(LONGEST_MARGIN_NS, round(settings.lease_seconds / 10 * 1e9))
