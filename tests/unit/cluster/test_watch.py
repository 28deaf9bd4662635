"""What the sentinel reads from the board."""

import signal
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from stoker.cluster import board as place
from stoker.cluster.board import Board, Occupied, is_fenced
from stoker.cluster.crew import Watch, describe_exit
from stoker.cluster.loops import LOOPS
from stoker.cluster.plan import Plan
from stoker.signals import event

from tests.unit.cluster.parts import Clock, occupy

pytestmark = pytest.mark.unit


@pytest.fixture
def watch(plan: Plan, board: Board, clock: Clock) -> Watch:
    return Watch(plan.settings, board)


@pytest.fixture
def told() -> Iterator[list[str]]:
    names: list[str] = []

    def hear(name: str, **_: Any) -> None:
        names.append(name)

    event.connect(hear)
    yield names
    event.disconnect(hear)


def run_in(board: Board, clock: Clock, *, deadline_in: float | None = None, slot: int = 0) -> None:
    deadline = 0 if deadline_in is None else round((clock.now + deadline_in) * 1e9)
    occupy(board, 0, slot, Occupied(5 + slot, uuid4(), 1, clock.monotonic_ns(), deadline, 77))


def test_job_is_overdue_at_its_deadline(watch: Watch, board: Board, clock: Clock) -> None:
    run_in(board, clock, deadline_in=2.0)
    clock.turn(1.999)
    assert list(watch.overdue()) == []
    clock.turn(0.001)
    assert list(watch.overdue()) == [(0, "timeout", 5)]


def test_job_without_a_time_out_is_never_overdue(watch: Watch, board: Board, clock: Clock) -> None:
    run_in(board, clock)
    clock.turn(1e6)
    assert list(watch.overdue()) == []


def test_running_jobs_are_stopped_before_the_first_lease_ends(
    watch: Watch, board: Board, clock: Clock, plan: Plan
) -> None:
    """With a lease of 60 s they are stopped 5 s before it ends."""
    run_in(board, clock)
    board[place.FENCE_NS] = round((clock.now + 60) * 1e9)
    clock.turn(54.9)
    assert list(watch.overdue()) == []
    assert not is_fenced(board, plan.settings)
    clock.turn(0.2)
    assert list(watch.overdue()) == [(0, "fence", 5)]
    assert is_fenced(board, plan.settings)


def test_suspended_machine_is_fenced(watch: Watch, board: Board, clock: Clock, plan: Plan) -> None:
    """Linux's monotonic clock stops during a suspension, and so do the time-outs of jobs."""
    run_in(board, clock, deadline_in=10.0)
    board[place.FENCE_NS] = round((clock.now + 60) * 1e9)
    clock.suspended_seconds = 100.0
    assert is_fenced(board, plan.settings)
    assert list(watch.overdue()) == [(0, "fence", 5)]


def test_worker_that_ends_itself_at_the_fence_has_not_crashed(
    watch: Watch, board: Board, clock: Clock, told: list[str]
) -> None:
    run_in(board, clock)
    board.note_fenced(0, 1)
    assert watch.explain(0, 1, -signal.SIGKILL).why == "fence"
    assert told == ["worker_killed"]
    run_in(board, clock)
    assert watch.explain(0, 2, -signal.SIGKILL).why == "crash", "the next worker has crashed"


def test_no_leases_mean_no_fence(watch: Watch, board: Board, clock: Clock, plan: Plan) -> None:
    board[place.FENCE_NS] = 0
    assert not is_fenced(board, plan.settings)


def test_hanging_process_is_reported_once(watch: Watch, board: Board, clock: Clock) -> None:
    for beat in watch.loops.beats.values():
        board[beat] = clock.monotonic_ns()
    assert hung_within(38, watch, clock) == []
    board[place.MONITOR_BEAT_NS] = clock.monotonic_ns()
    assert sorted(hung_within(1, watch, clock)) == [("pusher", 38.0), ("scheduler", 38.0)]
    assert hung_within(1, watch, clock) == []


def test_loops_get_new_time_when_the_sentinel_was_suspended(
    watch: Watch, board: Board, clock: Clock
) -> None:
    """All processes of a paused container go on at the same time, in any order."""
    for beat in watch.loops.beats.values():
        board[beat] = clock.monotonic_ns()
    clock.turn(60)
    assert list(watch.loops.hung()) == []
    assert watch.loops.all_turn()
    board[place.MONITOR_BEAT_NS] = clock.monotonic_ns()
    assert hung_within(33, watch, clock) == [], "the suspension counts for 5 s"
    board[place.SCHEDULER_BEAT_NS] = clock.monotonic_ns()
    assert hung_within(1, watch, clock) == [("pusher", 38.0)]
    assert hung_within(5, watch, clock) == [("monitor", 38.0)]


def test_sentinel_that_is_always_late_still_finds_loops_that_hang(
    watch: Watch, board: Board, clock: Clock
) -> None:
    """It looks every 6 s, for example because the machine is overloaded. Each look counts for 5 s
    of silence, so after the eighth the loops have been silent for more than 38 s."""
    for beat in watch.loops.beats.values():
        board[beat] = clock.monotonic_ns()
    for _ in range(7):
        clock.turn(6.0)
        board[place.MONITOR_BEAT_NS] = clock.monotonic_ns()
        assert list(watch.loops.hung()) == []
        assert watch.loops.all_turn()
    clock.turn(6.0)
    assert not watch.loops.all_turn()
    assert sorted(watch.loops.hung()) == [("pusher", 38.0), ("scheduler", 38.0)]


def hung_within(seconds: int, watch: Watch, clock: Clock) -> list[tuple[str, float]]:
    """Look for hung loops every second, as the sentinel does even more often."""
    found = []
    for _ in range(seconds):
        clock.turn(1.0)
        found += watch.loops.hung()
    return found


def test_hang_limit_is_longer_than_database_deadlines(watch: Watch, plan: Plan) -> None:
    """A call may open a new connection first, and each step has the deadline."""
    assert watch.loops.hang_seconds > 2 * plan.settings.database_seconds


def test_death_during_a_job_is_a_crash_and_kept_until_settled(
    watch: Watch, board: Board, clock: Clock, told: list[str]
) -> None:
    board.set_worker(0, place.LAST_STARTED, 5)
    run_in(board, clock)
    clock.turn(3.0)
    death = watch.explain(0, 1, -signal.SIGKILL)
    assert (death.why, death.exit_code, death.last_started) == ("crash", -9, 5)
    assert [(number, seconds, lease) for number, _, seconds, lease in death.running] == [
        (5, 3.0, 77)
    ]
    assert "SIGKILL" in death.detail
    assert watch.unsettled == {(0, 1): death}
    assert told == ["worker_died"]


def test_death_says_which_jobs_had_not_begun(watch: Watch, board: Board) -> None:
    occupy(board, 0, 0, Occupied(5, uuid4(), 1, 1, place.OPENING))
    occupy(board, 0, 1, Occupied(6, uuid4(), 1, 1, 0))
    assert list(watch.overdue()) == []
    assert watch.explain(0, 1, -signal.SIGKILL).unbegun == (5,)


def test_exit_with_code_0_during_a_job_is_a_crash(watch: Watch, board: Board, clock: Clock) -> None:
    run_in(board, clock)
    assert watch.explain(0, 1, 0).why == "crash"


def test_exit_with_code_0_between_jobs_is_planned(watch: Watch, told: list[str]) -> None:
    death = watch.explain(0, 1, 0)
    assert (death.why, death.running) == ("exit", ())
    assert watch.unsettled == {}
    assert told == []


def test_death_of_a_killed_worker_has_the_recorded_reason(
    watch: Watch, board: Board, clock: Clock, told: list[str]
) -> None:
    run_in(board, clock)
    assert watch.blame(0, 1, "timeout", 5)
    assert not watch.blame(0, 1, "timeout", 5), "only once"
    death = watch.explain(0, 1, -signal.SIGKILL)
    assert (death.why, death.blamed) == ("timeout", 5)
    assert told == ["worker_killed"]


def test_reason_recorded_for_a_worker_does_not_apply_to_its_successor(watch: Watch) -> None:
    watch.blame(0, 1, "timeout", 5)
    assert watch.blame(0, 2, "lost", 6)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-15, "killed by SIGTERM"),
        (-9, "killed by SIGKILL (the kernel does this when memory runs out)"),
        (-250, "killed by signal 250"),
    ],
)
def test_describe_exit_names_codes_and_signals(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_loop_may_take_longer_until_its_first_turn(
    watch: Watch, board: Board, clock: Clock
) -> None:
    """Receivers of post_spawn may load a model before it."""
    for role in LOOPS:
        watch.loops.note_start(role)
    assert hung_within(119, watch, clock) == []
    assert watch.loops.all_turn()
    board[place.MONITOR_BEAT_NS] = clock.monotonic_ns()
    hung = [("monitor", 38.0), ("pusher", 120.0), ("scheduler", 120.0)]
    assert sorted(hung_within(39, watch, clock)) == hung
