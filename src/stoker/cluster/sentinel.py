"""The sentinel: start, watch, replace and stop the other processes.

It uses no database and no broker and runs no tasks, so nothing can make it hang. It reads the state
of workers from the board, and tells the pusher which jobs a dead worker was running and how it
died.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from stoker.cluster.channel import who_is_readable
from stoker.signals import tell

from . import board as place
from .board import STORE, Board, board_path, fence_margin_ns, store_mark
from .console import log_to_console
from .crew import Crew, Watch
from .loops import Loops
from .plan import Plan
from .process import Started
from .reload import Reloader

TICK_SECONDS = 0.1
CALM_SECONDS = 0.25
"""Length of a turn while no job runs and no time-out is pending; other events interrupt it."""
COUNT_SECONDS = 0.5
"""Interval between checks which processes are alive. The sentinel also sees when the connection to
a worker closes, but not if a process that a task has forked keeps the connection open."""
EXIT_SECONDS = 5.0
"""Time for a process to end when it has nothing left to do."""
RECORD_SECONDS = 15.0
"""Time for writing outcomes and releases to the store after the shutdown deadline."""


class Sentinel:
    """The sentinel of one cluster."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.settings = plan.settings
        self.reloader = Reloader(watches_files=plan.reload)
        self.board = Board.create(
            board_path(plan.cluster_id), self.settings.most_workers, self.settings.concurrency
        )
        self.board[STORE] = store_mark(self.settings)
        self.watch = Watch(self.settings, self.board)
        self.crew = Crew(plan, self.board, self.watch)
        self.service_manager = ServiceManager(self.board, self.watch.loops)
        self.stop_at: float | None = None
        self.reload_requested = False
        self._signals: list[int] = []
        self._handlers: dict[int, Any] = {}
        """Signal -> its handler before the sentinel listened to it."""
        self._has_stop_signal = False
        """Whether SIGTERM or SIGINT has been received."""
        self._stopped = False
        self._count_at = 0.0
        margin_seconds = fence_margin_ns(self.settings) / 1e9
        self._calm_seconds = max(TICK_SECONDS, min(CALM_SECONDS, margin_seconds / 2))
        self._wake_reader, self._wake_writer = socket.socketpair()

    def run(self) -> bool:
        """Run until stopped. Return True if the cluster should restart with new code."""
        if self.plan.console:
            log_to_console(self.plan.log_level, as_json=self.plan.logs_json)
        self._listen_to_signals()
        try:
            self.crew.start_all()
            self.service_manager.begin()
            self._announce()
            while not self._is_over():
                self._turn()
            self.crew.dismiss(EXIT_SECONDS)
        finally:
            self.crew.kill_all()
            self.reloader.close()
            self._leave_board()
            self._stop_listening()
        tell("cluster_stopped", name=self.settings.cluster)
        return self.reload_requested

    # -- the loop ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        watched = [started.process.sentinel for started in self.crew]
        lines = [started.control for started in self.crew if not started.is_deaf]
        seconds = self._calm_seconds if self.watch.is_calm() else TICK_SECONDS
        ready = who_is_readable(seconds, *watched, *lines, self._wake_reader)
        self._obey_signals()
        for started in self.crew:
            if started.control.fileno() in ready:
                for message in started.heard():
                    self._hear(started, message)
            started.tell_the_rest()
        if not set(watched).isdisjoint(ready) or time.monotonic() >= self._count_at:
            self._count_at = time.monotonic() + COUNT_SECONDS
            self.crew.replace_dead()
        self.crew.start_missing()
        self._kill_what_must_end()
        self.service_manager.turn()
        if self.stop_at is None and self.reloader.has_changed():
            self.reload(self.reloader.why)

    def _hear(self, started: Started, message: tuple[Any, ...]) -> None:
        match message:
            case ("ready",):
                started.is_ready = True
            case ("stopped",):
                self._stopped = True
            case ("drained",):
                self.stop()
            case ("stop_requested",):
                self._stop_for_good()
            case ("revoked", worker, delivery):
                is_running = any(job.delivery == delivery for job in self.board.occupied(worker))
                if is_running and not self.board.is_completing(worker, delivery):
                    self.crew.kill_worker(worker, "lost", delivery)
            case ("cancel", worker, delivery, reason):
                self.watch.note_cancelled(delivery, reason)
                worker_process = self.crew.get("worker", worker)
                if worker_process is not None:
                    worker_process.tell("cancel", delivery, reason)
            case ("settled", worker, incarnation):
                self.watch.unsettled.pop((worker, incarnation), None)
            case ("resize", workers):
                self.crew.resize(workers)
            case ("replace", worker, incarnation):
                self.crew.replace(worker, incarnation)
            case ("recycle", why):
                tell("worker_recycled", worker=started.number, why=why)

    def _is_over(self) -> bool:
        if self.stop_at is None:
            return False
        return self._stopped or time.monotonic() > self.stop_at + RECORD_SECONDS

    # -- ending -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let running jobs finish within ``SHUTDOWN_SECONDS``. A further call has no effect."""
        if self.stop_at is None:
            self.stop_at = time.monotonic() + self.settings.shutdown_seconds
            tell("cluster_stopping", seconds=self.settings.shutdown_seconds)
            self.service_manager.stop(is_reload=self.reload_requested)
            self.crew.is_stopping = True
            self.crew.tell_all("stop")

    def _kill_what_must_end(self) -> None:
        for number, why, delivery in self.watch.overdue():
            self.crew.kill_worker(number, why, delivery)
        before = time.monotonic() - self.settings.start_seconds
        for started in self.crew:
            if started.role == "worker" and not started.is_ready and started.started < before:
                self.crew.kill_worker(started.number, "start", 0)
        for role, seconds in self.watch.loops.hung():
            hung = self.crew.get(role)
            if hung is not None:
                tell("process_hung", role=role, seconds=seconds)
                hung.kill()
        if self.stop_at is not None and time.monotonic() > self.stop_at:
            self._interrupt()

    def _interrupt(self) -> None:
        busy = [
            number
            for number in range(self.board[place.WORKERS])
            if self.crew.get("worker", number) and any(self.board.occupied(number))
        ]
        if busy and not self.watch.interrupted:
            count = sum(len(list(self.board.occupied(number))) for number in busy)
            tell("shutdown_deadline", count=count)
        self.watch.interrupted.update(busy)
        for number in busy:
            self.crew.kill_worker(number, "stop", 0)

    def _leave_board(self) -> None:
        """Close the board. Keep its file if some jobs could not be released in time: the next
        cluster on this host reads them."""
        if self._stopped:
            self.board.remove()
        else:
            self.board.close()

    # -- signals ----------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
            self._handlers[number] = signal.signal(
                number, lambda number, _frame: self._signals.append(number)
            )
        # Handle a SIGHUP that arrived while this process restarted, see reload.py.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def _obey_signals(self) -> None:
        with suppress(BlockingIOError):
            self._wake_reader.recv(4096)
        while self._signals:
            number = self._signals.pop(0)
            if number == signal.SIGHUP:
                self.reloader.ask("asked by SIGHUP")
            elif number == signal.SIGTSTP:
                self.crew.suspend()
            elif self._has_stop_signal and self.stop_at is not None:
                self.stop_at = min(self.stop_at, time.monotonic())  # interrupt running jobs now
            else:
                self._has_stop_signal = True
                self.reload_requested = False  # a running stop becomes final
                self.stop()

    def _stop_for_good(self) -> None:
        """Stop on a request through the store. A new pusher may report the same request again,
        which has no effect."""
        self.reload_requested = False
        self.stop()

    def _stop_listening(self) -> None:
        """Restore the handlers of signals, except of SIGHUP. Earlier signals are still
        processed."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGTSTP, signal.SIGINT):
            signal.signal(number, self._handlers[number] or signal.SIG_DFL)
        self._wake_reader.close()
        self._wake_writer.close()
        if {signal.SIGTERM, signal.SIGINT}.intersection(self._signals):
            self.reload_requested = False

    def reload(self, why: str) -> None:
        """Stop gracefully. The caller of ``run`` then starts the cluster again."""
        if self.stop_at is None:
            tell("cluster_reloading", why=why)
            self.reload_requested = True
            self.stop()

    def _announce(self) -> None:
        tell(
            "cluster_started",
            name=self.settings.cluster,
            host=self.plan.host,
            workers=self.settings.workers,
            queues=", ".join(self.plan.served_queues) or "all",
            pid=os.getpid(),
        )


class ServiceManager:
    """Reports the cluster's state to a service manager such as systemd, if one is configured."""

    def __init__(
        self, board: Board, loops: Loops, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._board = board
        self._loops = loops
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._watchdog_seconds = _watchdog_seconds(environment)
        self._first_beats: dict[str, int] = {}
        self._is_ready = False
        self._watchdog_at = 0.0

    def begin(self) -> None:
        """Note the heartbeats of the started processes. The cluster is ready when all have
        changed."""
        self._first_beats = {role: self._board[beat] for role, beat in self._loops.beats.items()}

    def turn(self) -> None:
        """Send due notifications. Called by the sentinel's loop, so a hanging loop sends none."""
        if not self._address:
            return
        if not self._is_ready and self._have_begun():
            self._is_ready = True
            self._tell("READY=1", "STATUS=The cluster runs.")
        now = time.monotonic()
        if self._watchdog_seconds and now >= self._watchdog_at and self._loops.all_turn():
            self._watchdog_at = now + self._watchdog_seconds / 3
            self._tell("WATCHDOG=1")

    def stop(self, *, is_reload: bool) -> None:
        """Send that the cluster is stopping, or reloading."""
        self._is_ready = True  # send no READY from now on
        if is_reload:
            self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        else:
            self._tell("STOPPING=1", "STATUS=Running jobs may finish.")

    def _have_begun(self) -> bool:
        have_turned = all(
            self._board[self._loops.beats[role]] != beat for role, beat in self._first_beats.items()
        )
        workers = range(self._board[place.WORKERS])
        return have_turned and any(self._board.worker(number, place.PID) for number in workers)

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):  # in the abstract namespace
            address = "\0" + address[1:]
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.setblocking(False)
            line.sendto("\n".join(lines).encode(), address)


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """Return how often the service manager expects a notification from this process; 0 = never."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return int(environment.get("WATCHDOG_USEC", "0")) / 1e6
    except ValueError:
        return 0.0
