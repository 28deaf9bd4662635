"""Waiting for a result: the pauses between checks, and outages."""

from datetime import timedelta

import pytest
from django.db import connections

from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.jobs import results as waiting

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


def test_longest_pause_below_the_first_is_respected() -> None:
    assert next(waiting.pauses(None, 0.001)) == 0.001


@pytest.mark.parametrize("timeout", [2, timedelta(seconds=2)])
def test_pauses_end_at_the_timeout_with_one_last_check(clock: list[float], timeout: float) -> None:
    total, taken = 0.0, []
    for pause in waiting.pauses(timeout, 0.5):
        taken.append(pause)
        total += pause
        clock[0] += pause
    assert total == pytest.approx(2)
    assert taken[-1] == 0


def test_timeout_of_zero_is_one_check(clock: list[float]) -> None:
    assert list(waiting.pauses(0, 0.5)) == [0.0]


def test_outage_without_a_timeout_raises_after_a_while(clock: list[float]) -> None:
    state, error = waiting.WaitState(settings_for(), None), BrokerUnavailable("away")
    state.goes_on(error)
    clock[0] += waiting.OUTAGE_SECONDS - 1
    state.goes_on(error)
    assert state.error is error
    clock[0] += 1
    with pytest.raises(BrokerUnavailable):
        state.goes_on(error)


def test_outages_are_counted_separately(clock: list[float]) -> None:
    state, error = waiting.WaitState(settings_for(), None), BrokerUnavailable("away")
    for _ in range(3):
        state.goes_on(error)
        clock[0] += waiting.OUTAGE_SECONDS - 1
        state.is_over()
        assert state.error is None


def test_outage_with_a_timeout_does_not_raise_earlier(clock: list[float]) -> None:
    state, error = waiting.WaitState(settings_for(), 3600), BrokerUnavailable("away")
    state.goes_on(error)
    clock[0] += 2 * waiting.OUTAGE_SECONDS
    state.goes_on(error)
    assert state.error is error


def test_outage_inside_a_transaction_raises_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is lost with its connection, so the wait must not continue."""
    monkeypatch.setattr(connections["default"], "in_atomic_block", True)
    with pytest.raises(BrokerUnavailable):
        waiting.WaitState(settings_for(), 60).goes_on(BrokerUnavailable("away"))
