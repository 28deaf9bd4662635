"""What dies is started again; what dies as soon as it lives, later and later."""

import pytest

from stoker.cluster.crew import LONGEST_PAUSE_SECONDS, Restarts

from tests.unit.cluster.parts import Clock

pytestmark = pytest.mark.unit

KEY = ("worker", 1)


def pauses_of(restarts: Restarts, clock: Clock, lives: list[float]) -> list[float]:
    """How long each life's successor is waited for."""
    pauses = []
    for lived_seconds in lives:
        restarts.plan(KEY, lived_seconds, is_failure=True)
        began = clock.now
        while not restarts.due():
            clock.turn(0.0125)
        pauses.append(round(clock.now - began, 1))
    return pauses


def test_the_first_death_is_mended_at_once(clock: Clock) -> None:
    restarts = Restarts()
    restarts.plan(KEY, 100.0, is_failure=True)
    assert restarts.due() == [KEY]
    assert restarts.due() == []


def test_short_lives_are_paused_longer_and_longer_but_not_for_ever(clock: Clock) -> None:
    pauses = pauses_of(Restarts(), clock, [0.1] * 12)
    assert pauses[:5] == [0.0, 0.1, 0.2, 0.4, 0.8]
    assert max(pauses) <= LONGEST_PAUSE_SECONDS + 0.1
    assert pauses[-1] >= LONGEST_PAUSE_SECONDS


def test_a_long_life_forgives(clock: Clock) -> None:
    assert pauses_of(Restarts(), clock, [0.1, 0.1, 0.1, 60.0, 0.1]) == [0.0, 0.1, 0.2, 0.0, 0.0]


def test_an_end_on_purpose_is_no_short_life(clock: Clock) -> None:
    restarts = Restarts()
    for _ in range(10):
        restarts.plan(KEY, 0.01, is_failure=False)
        assert restarts.due() == [KEY]


def test_each_is_counted_by_itself(clock: Clock) -> None:
    restarts = Restarts()
    pauses_of(restarts, clock, [0.1] * 8)
    restarts.plan(("pusher", 0), 0.1, is_failure=True)
    assert restarts.due() == [("pusher", 0)]
