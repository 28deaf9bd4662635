"""Waiting: when to look again."""

from datetime import timedelta

import pytest

from stoker import waiting

pytestmark = pytest.mark.unit


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    return now


def test_pauses_grow_up_to_the_longest() -> None:
    pauses = waiting.pauses(None, 0.5)
    taken = [next(pauses) for _ in range(20)]
    assert taken[0] == 0.005
    assert taken == sorted(taken)
    assert taken[-1] == 0.5


def test_a_longest_pause_below_the_first_is_kept() -> None:
    assert next(waiting.pauses(None, 0.001)) == 0.001


@pytest.mark.parametrize("timeout", [2, timedelta(seconds=2)])
def test_pauses_end_with_the_time_and_one_look_more(clock: list[float], timeout: float) -> None:
    total, taken = 0.0, []
    for pause in waiting.pauses(timeout, 0.5):
        taken.append(pause)
        total += pause
        clock[0] += pause
    assert total == pytest.approx(2)
    assert taken[-1] == 0


def test_no_time_at_all_is_one_look(clock: list[float]) -> None:
    assert list(waiting.pauses(0, 0.5)) == [0.0]
