"""The sentinel's view of the board: overdue jobs, hung processes, and how workers died."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from stoker.conf import Settings
from stoker.signals import tell

from . import board as place
from .board import Board, Occupied, board_path, is_fenced, store_mark
from .plan import Plan

LOOPS = {
    "pusher": place.PUSHER_BEAT_NS,
    "monitor": place.MONITOR_BEAT_NS,
    "scheduler": place.SCHEDULER_BEAT_NS,
}
"""Role -> place of its heartbeat."""


def loop_ages(board: Board) -> dict[str, float]:
    """Return role -> seconds since the last turn of its loop."""
    now_ns = time.monotonic_ns()
    return {role: round(max(0, now_ns - board[beat]) / 1e9, 3) for role, beat in LOOPS.items()}


def local_clusters(settings: Settings) -> Iterator[tuple[Path, Mapping[str, float]]]:
    """Yield the boards of live clusters of this backend, host and user, with the ages of their
    loops."""
    mark = store_mark(settings)
    folder = board_path(Plan().cluster_id).parent
    for path in sorted(folder.glob("cluster-*.board")):
        board = Board.of_the_living(path)
        if board is not None:
            if board[place.STORE] == mark:
                yield path, loop_ages(board)
            board.close()


MOST_CANCELLED = 10_000
"""Number of cancelled deliveries to remember."""

Running = tuple[int, bytes, float, int]
"""Delivery number, job id, run time in seconds, and the mark of the lease."""


class Death(NamedTuple):
    """How a worker died, as reported to the pusher."""

    worker: int
    incarnation: int
    exit_code: int
    why: str
    """crash, timeout, cancel, lost, fence, stop, or exit (on purpose)."""
    blamed: int
    """Delivery for which the worker was killed; 0 = none."""
    running: tuple[Running, ...]
    detail: str
    last_started: int = 0
    """The last delivery that the worker started; 0 = none."""
    unbegun: tuple[int, ...] = ()
    """Running deliveries whose task had not been called."""


class Watch:
    """Watches the processes of one cluster."""

    def __init__(self, settings: Settings, board: Board) -> None:
        self._settings = settings
        self._board = board
        self._blamed: dict[tuple[int, int], tuple[str, int]] = {}
        self.interrupted: set[int] = set()
        self.unsettled: dict[tuple[int, int], Death] = {}
        """Deaths under a job, by worker and incarnation, until the pusher has recorded their
        effect. A new pusher needs them if the old one died before."""
        self._cancelled: dict[int, tuple[int, str]] = {}
        """Delivery -> when its worker was asked to stop it, in nanoseconds, and why."""
        self.hang_seconds = hang_seconds(settings)
        self.beats = LOOPS

    def overdue(self) -> Iterator[tuple[int, str, int]]:
        """Yield the workers to kill now: number, reason, delivery."""
        now_ns = time.monotonic_ns()
        must_stop = is_fenced(self._board, self._settings)
        for number in range(self._settings.workers):
            for job in self._board.occupied(number):
                if job.deadline_ns > 0 and now_ns >= job.deadline_ns:
                    yield number, "timeout", job.delivery
                    break
                if self._goes_on_though_cancelled(number, job, now_ns):
                    yield number, "cancel", job.delivery
                    break
                if must_stop:
                    yield number, "fence", job.delivery
                    break

    def is_calm(self) -> bool:
        """Return whether all workers are idle."""
        return not any(map(any, map(self._board.occupied, range(self._settings.workers))))

    def note_cancelled(self, delivery: int, reason: str) -> None:
        """Record that the worker is asked to stop this delivery, with the reason for a later
        kill."""
        while len(self._cancelled) >= MOST_CANCELLED:
            del self._cancelled[next(iter(self._cancelled))]
        self._cancelled[delivery] = (time.monotonic_ns(), reason)

    def _goes_on_though_cancelled(self, worker: int, job: Occupied, now_ns: int) -> bool:
        told_ns, _ = self._cancelled.get(job.delivery, (None, ""))
        if told_ns is None or self._board.is_completing(worker, job.delivery):
            return False
        grace_ns = round(self._settings.timeout_grace_seconds * 1e9)
        return now_ns >= max(told_ns, job.started_ns) + grace_ns

    def all_turn(self) -> bool:
        """Return whether every loop has turned within its time limit."""
        now_ns = time.monotonic_ns()
        ages_ns = [now_ns - self._board[beat] for beat in self.beats.values()]
        return max(ages_ns) <= self.hang_seconds * 1e9

    def hung(self) -> Iterator[str]:
        """Yield the roles whose loop has not turned for too long."""
        now_ns = time.monotonic_ns()
        for role, beat in self.beats.items():
            if now_ns - self._board[beat] > self.hang_seconds * 1e9:
                self._board[beat] = now_ns
                yield role

    def blame(self, worker: int, incarnation: int, why: str, delivery: int) -> bool:
        """Record why this worker is about to be killed. Return False if that was recorded
        before."""
        key = (worker, incarnation)
        if key in self._blamed:
            return False
        self._blamed[key] = (why, delivery)
        if why != "stop":
            tell("worker_killed", worker=worker, why=REASONS[why])
        return True

    def explain(self, worker: int, incarnation: int, exit_code: int) -> Death:
        """Return how a worker died, from its exit code, its slots and the recorded reason."""
        running = list(self._board.occupied(worker))
        why, blamed = self._blamed.pop((worker, incarnation), ("", 0))
        if not why and self._board.was_fenced(worker, incarnation):
            why = "fence"
            tell("worker_killed", worker=worker, why=REASONS[why])
        if not why:
            why = "exit" if exit_code == 0 and not running else "crash"
        how = describe_exit(exit_code)
        if why == "crash":
            jobs = ", ".join(str(job.job_id) for job in running)
            event = "worker_died" if running else "worker_idle_died"
            tell(event, worker=worker, how=how, jobs=jobs)
        now_ns = time.monotonic_ns()
        jobs_running = tuple(
            (job.delivery, job.job_id.bytes, (now_ns - job.started_ns) / 1e9, job.lease)
            for job in running
        )
        detail = f"the worker process died: {how}" if why == "crash" else REASONS.get(why, how)
        if why == "cancel":
            _, detail = self._cancelled.get(blamed, (0, detail))
        death = Death(
            worker,
            incarnation,
            exit_code,
            why,
            blamed,
            jobs_running,
            detail,
            self._board.worker(worker, place.LAST_STARTED),
            tuple(job.delivery for job in running if job.deadline_ns == place.OPENING),
        )
        if running:
            self.unsettled[worker, incarnation] = death
        return death


def hang_seconds(settings: Settings) -> float:
    """Return after how many seconds without a turn a process counts as hung."""
    return 2 * settings.database_seconds + 8.0


REASONS = {
    "timeout": "its job went on after the time-out",
    "cancel": "its job went on after it was cancelled",
    "lost": "the lease of its job is lost, another cluster has it",
    "fence": "the lease of its job could not be extended and is about to end",
    "stop": "the time to finish after a stop was over",
    "exit": "it left on purpose",
}


def describe_exit(exit_code: int) -> str:
    """Describe an exit code in words."""
    if exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = f"signal {-exit_code}"
        hint = (
            " (the kernel does this when memory runs out)" if exit_code == -signal.SIGKILL else ""
        )
        return f"killed by {name}{hint}"
    return f"exit code {exit_code}"
