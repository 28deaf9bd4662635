"""The scheduler process: its heartbeat."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from stoker.cluster import board as place
from stoker.cluster.board import Board
from stoker.cluster.loops import Loops
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler import scheduler as scheduler_module
from stoker.cluster.scheduler.scheduler import Scheduler

from tests.unit.cluster.parts import Clock

pytestmark = pytest.mark.unit


@pytest.fixture
def scheduler(plan: Plan, board: Board, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    """A scheduler that turns its loop once, and whose other threads do not run."""
    monkeypatch.setattr(scheduler_module, "time", clock)
    names = "set_deadlines broker_for Upkeep Ticks Callbacks Relays call_project_with threading"
    for name in names.split():
        monkeypatch.setattr(scheduler_module, name, MagicMock())
    scheduler = Scheduler(SimpleNamespace(plan=plan, board=board))  # type: ignore[arg-type] # only this of it is used
    monkeypatch.setattr(scheduler, "_listen", MagicMock(side_effect=[False, True]))
    return scheduler


def test_scheduler_does_not_count_as_hung_after_slow_imports(
    scheduler: Scheduler,
    plan: Plan,
    board: Board,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other loop may beat only later, so the first heartbeat has the time of the start of
    both."""
    loops = Loops(plan.settings, board)
    for role in loops.beats:
        loops.note_start(role)

    def import_slowly() -> None:
        for _ in range(round(loops.hang_seconds) + 22):
            clock.turn(1.0)
            assert not list(loops.hung())

    monkeypatch.setattr(scheduler_module, "import_tasks", import_slowly)
    scheduler.run()
    assert board[place.SCHEDULER_BEAT_NS] == clock.monotonic_ns()
    assert "scheduler" not in dict(loops.hung())


@pytest.mark.parametrize("is_cleaned_up", [True, False])
def test_drain_does_not_wait_for_the_sweep_of_guards_at_the_start(
    scheduler: Scheduler, board: Board, is_cleaned_up: bool
) -> None:
    """The sweep may take long. The drain waits only until jobs of silent clusters are rescued."""
    shown: list[int] = []
    upkeep = MagicMock(is_cleaned_up=is_cleaned_up)
    upkeep.tidy_at_start.side_effect = lambda: shown.append(board[place.CLEANED_UP])
    scheduler.upkeep = upkeep
    scheduler._do_upkeep()
    assert shown == [is_cleaned_up]
