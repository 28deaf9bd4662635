"""The sentinel's children: start, connect and replace them, and watch for overdue jobs and dead
workers."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from importlib import import_module
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from django.apps import apps
from django.db import connections

from stoker.brokers.adapters import adapter_class
from stoker.cluster import board as place
from stoker.cluster.board import Board, Occupied, is_fenced
from stoker.cluster.channel import socket_pair
from stoker.cluster.loops import LONGEST_PAUSE_SECONDS, LOOPS, Loops, loops_of
from stoker.cluster.plan import Plan
from stoker.cluster.process import ENTRANCES, Started, drop_caches, start_method
from stoker.conf import Settings
from stoker.jobs.package import sealer_for
from stoker.signals import tell

LOOK_SECONDS = 0.05

PUSHER: Key = ("pusher", 0)
MONITOR: Key = ("monitor", 0)
SCHEDULER: Key = ("scheduler", 0)
CORE: Key = ("core", 0)
"""The process with these three as threads, in a cluster that runs with ``--single``."""


class Crew:
    """All processes of a cluster except the sentinel."""

    def __init__(self, plan: Plan, board: Board, watch: Watch) -> None:
        self._plan = plan
        self._board = board
        self._watch = watch
        self._restarts = Restarts()
        self._members: dict[Key, Started] = {}
        self._incarnations: dict[Key, int] = {}
        self._pusher = CORE if plan.single else PUSHER
        """The process with the pusher."""
        self._workers = plan.settings.workers
        """The number of workers to run."""
        self.is_stopping = False

    def __iter__(self) -> Iterator[Started]:
        yield from list(self._members.values())

    def get(self, role: str, number: int = 0) -> Started | None:
        """Return the process that has this role, if it lives."""
        key = CORE if self._plan.single and role in LOOPS else (role, number)
        return self._members.get(key)

    def tell_all(self, *message: Any) -> None:
        for started in self:
            started.tell(*message)

    # -- starting ---------------------------------------------------------------------------------

    def start_all(self) -> None:
        share_code(self._plan)
        for key in (CORE,) if self._plan.single else (MONITOR, PUSHER, SCHEDULER):
            self._start(key)
        for number in range(self._workers):
            self._start(("worker", number))

    def start_missing(self) -> None:
        """Restart dead processes after their pause. Do not restart the workers of a stopping
        cluster, and those above the number of workers that an operator has set."""
        for key in self._restarts.due():
            role, number = key
            if role != "worker" or (not self.is_stopping and number < self._workers):
                self._start(key)

    def _start(self, key: Key) -> None:
        role, number = key
        incarnation = self._incarnations[key] = self._incarnations.get(key, 0) + 1
        if role == "worker":
            self._board.clear_worker(number)
            self._board.set_worker(number, place.INCARNATION, incarnation)
        for loop in loops_of(role):
            self._watch.loops.note_start(loop)
        # Children must not inherit a connection, which an AppConfig.ready() may have opened.
        connections.close_all()
        drop_caches()
        try:
            started = Started(role, number, incarnation, self._plan, self._board)
        except OSError as error:  # memory, processes or descriptors are used up: try again later
            tell("process_not_started", role=role, error=error)
            self._restarts.plan(key, 0.0, is_failure=True)
            return
        self._members[key] = started
        if role in PIDS:
            self._board[PIDS[role]] = started.process.pid or 0
        if role == "worker":
            self._board.set_worker(number, place.PID, started.process.pid or 0)
        if key == self._pusher:
            self._introduce(started)
        elif (key == MONITOR or role == "worker") and not self._connect(started):
            started.kill()  # it is started again later

    def _introduce(self, pusher: Started) -> None:
        """Tell a new pusher which workers died and which live, and connect it with these.

        The deaths are sent first, because a new worker may have the number of a dead one.
        """
        for death in self._watch.unsettled.values():
            pusher.tell("died", *death)
        others = [started for started in self if started.role in ("monitor", "worker")]
        workers = [started for started in others if started.role == "worker"]
        pusher.tell("expect", [(worker.number, worker.incarnation) for worker in workers])
        for started in others:
            if not self._connect(started):
                pusher.kill()  # the next one is connected with all of them
                break
        if self.is_stopping:
            pusher.tell("stop")

    def _connect(self, started: Started) -> bool:
        """Connect a worker or the monitor with the pusher. Return False if no descriptor is left
        for that."""
        pusher = self.get("pusher")
        if pusher is None:
            return True
        try:
            one, other = socket_pair()
            with one, other:
                started.tell("pusher", descriptor=one.fileno())
                pusher.tell(
                    started.role, started.number, started.incarnation, descriptor=other.fileno()
                )
        except OSError as error:
            tell("process_not_connected", role=started.role, error=error)
            return False
        return True

    def resize(self, workers: int | None) -> None:
        """Change the number of workers. The last ones finish their running jobs and exit.

        Args:
            workers: the new number, limited by the size of the board; None = as at the start.
        """
        wanted = self._plan.settings.workers if workers is None else workers
        before, self._workers = self._workers, max(1, min(wanted, self._board[place.WORKERS]))
        if self._workers == before:
            return
        tell("cluster_resized", workers=self._workers, before=before)
        for started in self:
            if started.role == "worker" and started.number >= self._workers:
                started.tell("leave")
        for number in range(before, self._workers):
            if self.get("worker", number) is None:
                self._restarts.plan(("worker", number), 0.0, is_failure=False)

    def replace(self, number: int, incarnation: int) -> None:
        """Let a worker finish its running jobs and exit, so that a new process takes its place. Do
        nothing if another process has taken it before."""
        started = self.get("worker", number)
        if started is not None and started.incarnation == incarnation:
            tell("worker_recycled", worker=number, why="an operator asked for it")
            started.tell("leave")

    # -- ending -----------------------------------------------------------------------------------

    def replace_dead(self) -> None:
        for started in self:
            if not started.process.is_alive():
                self._replace(started)

    def _replace(self, started: Started) -> None:
        key = (started.role, started.number)
        lived_seconds = time.monotonic() - started.started
        code = started.bury()
        del self._members[key]
        is_failure = code != 0
        if started.role == "worker":
            death = self._watch.explain(started.number, started.incarnation, code)
            if death.why != "exit":
                started.kill_children()
            # A worker dies because of its job. That limits the job's attempts, and needs no pause.
            is_failure = is_failure and not death.last_started
            self._report(death)
            self._board.clear_worker(started.number)
        elif is_failure or not self.is_stopping:
            tell("process_died", role=started.role, how=describe_exit(code))
        self._restarts.plan(key, lived_seconds, is_failure=is_failure)

    def _report(self, death: Death) -> None:
        pusher = self.get("pusher")
        if pusher is not None:
            pusher.tell("died", *death)

    def kill_worker(self, number: int, why: str, delivery: int) -> None:
        """Kill a worker because of a delivery, unless it is being killed already. The pusher learns
        the reason after the worker's death."""
        started = self.get("worker", number)
        if started is not None and self._watch.blame(number, started.incarnation, why, delivery):
            started.kill()

    def suspend(self) -> None:
        """Stop this process and the workers, as for Ctrl-Z, until they are continued. A terminal
        reaches only the sentinel's own process group."""
        workers = [started for started in self if started.role == "worker"]
        for worker in workers:
            worker.send_signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for worker in workers:
            worker.send_signal(signal.SIGCONT)

    def dismiss(self, within_seconds: float) -> None:
        """Let all processes end normally, within this time for each role."""
        for role in ("worker", "scheduler", "pusher", "monitor", "core"):
            members = [started for started in self if started.role == role]
            for started in members:
                started.tell("exit")
            until = time.monotonic() + within_seconds * max(1, len(loops_of(role)))
            # join() would also wait for processes that a task has forked and left behind.
            while members := [started for started in members if started.process.is_alive()]:
                wait([started.process.sentinel for started in members], LOOK_SECONDS)
                if time.monotonic() > until:
                    break

    def kill_all(self) -> None:
        for started in self:
            started.kill()
        for started in self:
            started.bury()
        self._members.clear()


SHORT_LIFE_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.1

Key = tuple[str, int]

USED_LATER = ("encodings.ascii", "encodings.idna", "importlib.readers")
"""Modules that Python imports when a process first opens a connection and reads an SQL file."""


def share_code(plan: Plan) -> None:
    """Import the code and the driver of all roles once, so that forked processes share its
    memory."""
    if start_method(plan) != "fork":
        return
    for module in (*ENTRANCES.values(), *USED_LATER):
        import_module(module)
    adapter_class(plan.settings)
    connection = connections[plan.settings.database]
    connection.ops.compiler("SQLCompiler")  # Django imports it when used
    connection.get_connection_params()  # makes the driver's adapters, which all connections share
    sealer_for(plan.settings)
    for model in apps.get_app_config("stoker").get_models():
        # Django registers a model's fields, relations and lookups when it is first filtered.
        model._default_manager.using(plan.settings.database).filter(pk=1).exclude(pk=2)
    gc.collect()
    gc.freeze()


class Restarts:
    """The processes to restart, each with its time."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._short_lives: dict[Key, int] = {}

    def plan(self, key: Key, lived_seconds: float, *, is_failure: bool) -> None:
        """Plan to restart ``key``: at once after a long life or a clean end, after growing pauses
        otherwise."""
        if lived_seconds >= SHORT_LIFE_SECONDS or not is_failure:
            self._short_lives.pop(key, None)
        else:
            self._short_lives[key] = self._short_lives.get(key, 0) + 1
        short_lives = self._short_lives.get(key, 0)
        pause = 0.0
        if short_lives > 1:
            pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (short_lives - 2))
        self._due[key] = time.monotonic() + pause

    def due(self) -> list[Key]:
        """Return the processes to restart now. Each is returned once."""
        now = time.monotonic()
        keys = [key for key, moment in self._due.items() if moment <= now]
        for key in keys:
            del self._due[key]
        return keys


PIDS = {"monitor": place.MONITOR_PID, "scheduler": place.SCHEDULER_PID}
"""Role -> index in the board of the id of its process, which the pusher does not know."""


MOST_CANCELLED = 10_000
"""Number of cancelled deliveries to remember."""

Running = tuple[int, bytes, float, int]
"""Delivery number, job id, run time in seconds, and the mark of the lease."""


class Death(NamedTuple):
    """The death of a worker, as reported to the pusher."""

    worker: int
    incarnation: int
    exit_code: int
    why: str
    """crash, timeout, cancel, lost, fence, stop, start, or exit (on purpose)."""
    blamed: int
    """Number of the delivery that caused the kill; 0 = none."""
    running: tuple[Running, ...]
    detail: str
    last_started: int = 0
    """The last delivery that the worker started; 0 = none."""
    unbegun: tuple[int, ...] = ()
    """Running deliveries whose task had not been called."""


class Watch:
    """Finds the processes of one cluster that must be killed, and explains deaths of workers."""

    def __init__(self, settings: Settings, board: Board) -> None:
        self._settings = settings
        self._board = board
        self._blamed: dict[tuple[int, int], tuple[str, int]] = {}
        self.interrupted: set[int] = set()
        self.unsettled: dict[tuple[int, int], Death] = {}
        """Worker and incarnation -> its death during a job, until the pusher has recorded the
        effect. A new pusher needs it if the old one died before."""
        self._cancelled: dict[int, tuple[int, str]] = {}
        """Delivery -> when its worker was asked to stop it, in nanoseconds, and why."""
        self.loops = Loops(settings, board)

    def overdue(self) -> Iterator[tuple[int, str, int]]:
        """Yield the workers to kill now: number, reason, delivery."""
        now_ns = time.monotonic_ns()
        must_stop = is_fenced(self._board, self._settings)
        for number in range(self._board[place.WORKERS]):
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
        workers = range(self._board[place.WORKERS])
        return not any(map(any, map(self._board.occupied, workers)))

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

    def blame(self, worker: int, incarnation: int, why: str, delivery: int) -> bool:
        """Record why this worker is about to be killed. Return False if a reason was recorded
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


REASONS = {
    "timeout": "its job continued after the time-out",
    "cancel": "its job continued after it was cancelled",
    "lost": "the lease of its job is lost, or cannot be extended",
    "fence": "the lease of its job could not be extended and is about to end",
    "stop": "SHUTDOWN_SECONDS had passed after a stop",
    "start": "it did not start within START_SECONDS",
    "exit": "it left on purpose",
}


def describe_exit(exit_code: int) -> str:
    """Describe an exit code in words."""
    if exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = f"signal {-exit_code}"
        hint = " (the kernel does this when memory runs out)" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"
    return f"exit code {exit_code}"
