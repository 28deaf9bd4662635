"""Dead processes are restarted; those that die at once with growing pauses."""

import pytest

from stoker.cluster.crew import Restarts
from stoker.cluster.loops import LONGEST_PAUSE_SECONDS

from tests.unit.cluster.parts import Clock

pytestmark = pytest.mark.unit

KEY = ("worker", 1)


def pauses_of(restarts: Restarts, clock: Clock, lives: list[float]) -> list[float]:
    """Return the pause before each restart."""
    pauses = []
    for lived_seconds in lives:
        restarts.plan(KEY, lived_seconds, is_failure=True)
        began = clock.now
        while not restarts.due():
            clock.turn(0.0125)
        pauses.append(round(clock.now - began, 1))
    return pauses


def test_first_death_is_followed_by_an_immediate_restart(clock: Clock) -> None:
    restarts = Restarts()
    restarts.plan(KEY, 100.0, is_failure=True)
    assert restarts.due() == [KEY]
    assert restarts.due() == []


def test_short_lives_have_growing_but_bounded_pauses(clock: Clock) -> None:
    pauses = pauses_of(Restarts(), clock, [0.1] * 12)
    assert pauses[:5] == [0.0, 0.1, 0.2, 0.4, 0.8]
    assert max(pauses) <= LONGEST_PAUSE_SECONDS + 0.1
    assert pauses[-1] >= LONGEST_PAUSE_SECONDS


def test_long_life_resets_the_pauses(clock: Clock) -> None:
    assert pauses_of(Restarts(), clock, [0.1, 0.1, 0.1, 60.0, 0.1]) == [0.0, 0.1, 0.2, 0.0, 0.0]


def test_planned_end_has_no_pause(clock: Clock) -> None:
    restarts = Restarts()
    for _ in range(10):
        restarts.plan(KEY, 0.01, is_failure=False)
        assert restarts.due() == [KEY]


def test_processes_are_counted_separately(clock: Clock) -> None:
    restarts = Restarts()
    pauses_of(restarts, clock, [0.1] * 8)
    restarts.plan(("pusher", 0), 0.1, is_failure=True)
    assert restarts.due() == [("pusher", 0)]
