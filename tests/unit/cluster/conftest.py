"""A cluster's parts without its processes: a board in a file and a clock set by hand."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.brokers.contract import Delivery
from stoker.cluster.board import Board
from stoker.cluster.plan import Plan
from stoker.cluster.pusher.flights import Flights
from stoker.cluster.pusher.roster import Recall, Roster

from tests.unit.cluster.parts import SLOTS, WORKERS, Clock, make_delivery

TIMED = (
    "store.engines.sessions", "cluster.board", "cluster.crew",
    "cluster.pusher.claims", "cluster.pusher.flights", "cluster.pusher.leases",
    "cluster.pusher.requests",
    "cluster.pusher.roster", "cluster.worker.workload",
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
def deliveries() -> Callable[..., list[Delivery]]:
    """Return a function that makes fresh deliveries."""

    def make(count: int, **changes: Any) -> list[Delivery]:
        return [make_delivery(**changes) for _ in range(count)]

    return make
