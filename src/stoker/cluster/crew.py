"""The sentinel's children: start, connect and replace them."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from importlib import import_module
from multiprocessing.connection import wait
from typing import Any

from django.db import connections

from stoker.brokers.adapters import adapter_class
from stoker.cluster.wire import socket_pair
from stoker.signals import tell

from . import board as place
from .board import Board
from .plan import Plan
from .process import ENTRANCES, Started, start_method
from .watch import Death, Watch, describe_exit

LOOK_SECONDS = 0.05

PUSHER: Key = ("pusher", 0)
MONITOR: Key = ("monitor", 0)
SCHEDULER: Key = ("scheduler", 0)


class Crew:
    """All processes of a cluster except the sentinel."""

    def __init__(self, plan: Plan, board: Board, watch: Watch) -> None:
        self._plan = plan
        self._board = board
        self._watch = watch
        self._restarts = Restarts()
        self._members: dict[Key, Started] = {}
        self._incarnations: dict[Key, int] = {}
        self.is_stopping = False

    def __iter__(self) -> Iterator[Started]:
        yield from list(self._members.values())

    def get(self, role: str, number: int = 0) -> Started | None:
        return self._members.get((role, number))

    def tell_all(self, *message: Any) -> None:
        for started in self:
            started.tell(*message)

    # -- starting ---------------------------------------------------------------------------------

    def start_all(self) -> None:
        share_code(self._plan)
        for key in (MONITOR, PUSHER, SCHEDULER):
            self._start(key)
        for number in range(self._plan.settings.workers):
            self._start(("worker", number))

    def start_missing(self) -> None:
        """Restart dead processes after their pause. A stopping cluster needs no workers."""
        for key in self._restarts.due():
            if not (self.is_stopping and key[0] == "worker"):
                self._start(key)

    def _start(self, key: Key) -> None:
        role, number = key
        incarnation = self._incarnations[key] = self._incarnations.get(key, 0) + 1
        if role == "worker":
            self._board.clear_worker(number)
            self._board.set_worker(number, place.INCARNATION, incarnation)
        elif role in self._watch.beats:
            self._board[self._watch.beats[role]] = time.monotonic_ns()
        connections.close_all()  # nobody may inherit one; somebody's ready() may have opened it
        try:
            started = Started(role, number, incarnation, self._plan, self._board)
        except OSError as error:  # no memory, no process or no descriptor left: perhaps later
            tell("process_not_started", role=role, error=error)
            self._restarts.plan(key, 0.0, is_failure=True)
            return
        self._members[key] = started
        if key == PUSHER:
            self._introduce(started)
        elif key == MONITOR:
            self._connect(started)
        elif role == "worker":
            self._board.set_worker(number, place.PID, started.process.pid or 0)
            self._connect(started)

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
            self._connect(started)
        if self.is_stopping:
            pusher.tell("stop")

    def _connect(self, started: Started) -> None:
        """Connect a worker or the monitor with the pusher."""
        pusher = self.get(*PUSHER)
        if pusher is None:
            return
        one, other = socket_pair()
        with one, other:
            started.tell("pusher", descriptor=one.fileno())
            pusher.tell(
                started.role, started.number, started.incarnation, descriptor=other.fileno()
            )

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
            # What kills it is what it runs: that is for the attempts to count, not for a pause.
            is_failure = is_failure and not death.last_started
            self._report(death)
            self._board.clear_worker(started.number)
        elif is_failure or not self.is_stopping:
            tell("process_died", role=started.role, how=describe_exit(code))
        self._restarts.plan(key, lived_seconds, is_failure=is_failure)

    def _report(self, death: Death) -> None:
        pusher = self.get(*PUSHER)
        if pusher is not None:
            pusher.tell("died", *death)

    def kill_worker(self, number: int, why: str, delivery: int) -> None:
        """Kill a worker because of a delivery, once. The pusher learns the reason when it is
        dead."""
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
        for role in ("worker", "scheduler", "pusher", "monitor"):
            members = [started for started in self if started.role == role]
            for started in members:
                started.tell("exit")
            until = time.monotonic() + within_seconds
            # Not by join(), which what a task has forked and left behind can hold up.
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
LONGEST_PAUSE_SECONDS = 10.0

Key = tuple[str, int]


def share_code(plan: Plan) -> None:
    """Import the code and the driver of all roles once, so that forked processes share its
    memory."""
    if start_method(plan) != "fork":
        return
    for module in ENTRANCES.values():
        import_module(module)
    adapter_class(plan.settings)
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
