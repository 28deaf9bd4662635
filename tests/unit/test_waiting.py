"""Waiting: when to look again."""

from datetime import timedelta

import pytest
from django.db import connections

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


def test_an_outage_is_borne_for_a_while_where_there_is_no_other_limit(clock: list[float]) -> None:
    outage, error = waiting.Outage("default", None), BrokerUnavailable("away")
    outage.goes_on(error)
    clock[0] += waiting.OUTAGE_SECONDS - 1
    outage.goes_on(error)
    assert outage.error is error
    clock[0] += 1
    with pytest.raises(BrokerUnavailable):
        outage.goes_on(error)


def test_each_outage_counts_for_itself(clock: list[float]) -> None:
    outage, error = waiting.Outage("default", None), BrokerUnavailable("away")
    for _ in range(3):
        outage.goes_on(error)
        clock[0] += waiting.OUTAGE_SECONDS - 1
        outage.is_over()
        assert outage.error is None


def test_with_a_timeout_its_end_is_the_only_limit(clock: list[float]) -> None:
    outage, error = waiting.Outage("default", 3600), BrokerUnavailable("away")
    outage.goes_on(error)
    clock[0] += 2 * waiting.OUTAGE_SECONDS
    outage.goes_on(error)
    assert outage.error is error


def test_an_outage_ends_a_wait_inside_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is lost with its connection: nothing may make it seem otherwise."""
    monkeypatch.setattr(connections["default"], "in_atomic_block", True)
    with pytest.raises(BrokerUnavailable):
        waiting.Outage("default", 60).goes_on(BrokerUnavailable("away"))
