"""A cluster's parts without its processes: a board in a file and a clock set by hand."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.brokers.contract import Delivery
from stoker.cluster.board import Board
from stoker.cluster.channel import Control, Stream, socket_pair
from stoker.cluster.monitor import monitor as monitor_module
from stoker.cluster.monitor.monitor import Monitor
from stoker.cluster.plan import Plan
from stoker.cluster.pusher.flights import Flights
from stoker.cluster.pusher.roster import Recall, Roster
from stoker.cluster.wire import Reported
from stoker.cluster.worker.worker import Worker
from stoker.jobs.outcomes import Attempted, Succeeded

from tests.unit.cluster.monitoring import Store, reported
from tests.unit.cluster.parts import SLOTS, WORKERS, Clock, make_delivery

TIMED = (
    "store.engines.sessions", "cluster.board", "cluster.crew", "cluster.loops",
    "cluster.pusher.claims", "cluster.pusher.flights", "cluster.pusher.leases",
    "cluster.pusher.requests",
    "cluster.pusher.roster", "cluster.monitor.unsettled", "cluster.worker.workload",
)  # fmt: skip
"""Modules of the cluster that read the clock."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for name in TIMED:
        monkeypatch.setattr(f"stoker.{name}.time", clock)
    return clock


@pytest.fixture
def plan() -> Plan:
    options = (("workers", WORKERS), ("concurrency", 1), ("lease_seconds", 60.0), ("prefetch", 10))
    return Plan(overrides=options)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    board = Board.create(tmp_path / "cluster.board", WORKERS, SLOTS)
    yield board
    board.close()


@pytest.fixture
def flights() -> Flights:
    return Flights(last_number=0)


@pytest.fixture
def roster(plan: Plan, flights: Flights, board: Board) -> Roster:
    return Roster(plan, flights, board)


@pytest.fixture
def recall(roster: Roster, flights: Flights, board: Board) -> Recall:
    return Recall(roster, flights, board)


@pytest.fixture
def worker(plan: Plan, board: Board, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """The worker 0, whose threads do not run."""
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    ours, theirs = socket.socketpair()
    child = SimpleNamespace(plan=plan, board=board, number=0, incarnation=1, control=Control(ours))
    worker = Worker(child)  # type: ignore[arg-type] # only this of it is used
    yield worker
    os.close(worker._wake_reader)
    os.close(worker._wake_writer)
    ours.close()
    theirs.close()


@pytest.fixture
def deliveries() -> Callable[..., list[Delivery]]:
    """Return a function that makes fresh deliveries."""

    def make(count: int, **changes: Any) -> list[Delivery]:
        return [make_delivery(**changes) for _ in range(count)]

    return make


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(monitor_module, "Recorder", lambda *_: store)
    return store


@pytest.fixture
def ends() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for end in opened:
        end.close()


@pytest.fixture
def pusher(ends: list[socket.socket]) -> tuple[Stream, Stream]:
    """Return the monitor's and the pusher's end of the connection."""
    first, second = socket_pair()
    ends += [first, second]
    return Stream(first), Stream(second)


@pytest.fixture
def monitor(
    store: Store,
    plan: Plan,
    board: Board,
    clock: Clock,
    pusher: tuple[Stream, Stream],
    ends: list[socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> Monitor:
    monkeypatch.setattr(monitor_module, "time", clock)
    monkeypatch.setattr(monitor_module, "set_deadlines", lambda _, **__: None)
    monkeypatch.setattr(monitor_module, "broker_for", lambda _: SimpleNamespace(
        ping=store.ping_both, close=lambda: None, begin_settle=store.begin_settle,
        broker=SimpleNamespace(ping=store.ping_both, answers_for=store.answers_for),
        store=SimpleNamespace(ping=store.ping),
        is_inside=store.inside.__contains__,
    ))  # fmt: skip
    ours, theirs = socket.socketpair()
    ends += [ours, theirs]
    monitor = Monitor(SimpleNamespace(plan=plan, board=board, control=Control(ours)))  # type: ignore[arg-type] # only this of it is used
    monitor.pusher = pusher[0]
    return monitor


@pytest.fixture
def batch(deliveries: Callable[[int], list[Delivery]]) -> list[Reported]:
    return [
        reported(number, Attempted(delivery, Succeeded(b"value"), "worker", 1.0, 2.0))
        for number, delivery in enumerate(deliveries(8), 1)
    ]
