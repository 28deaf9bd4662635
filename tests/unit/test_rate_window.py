"""Rates: no window has too many starts, and hardly any start is lost."""

import random
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.values.rates import (
    CLOCK_US,
    ENTRIES,
    LONGEST_MARGIN_US,
    RateRule,
    State,
    cost,
    free,
    margin_us,
    next_us,
    take,
)

from tests.examples import examples

pytestmark = pytest.mark.unit

SECOND_US = 1_000_000
NOON_US = 1_800_000_000 * SECOND_US

Start = tuple[int, int]
"""Time and weight."""

limits = st.integers(1, 40)
periods = st.sampled_from([SECOND_US // 2, SECOND_US, 10 * SECOND_US, 60 * SECOND_US])
windows = st.builds(RateRule, limits, periods)
buckets = st.builds(RateRule, limits, periods, st.integers(1, 40))
states = st.lists(st.tuples(st.integers(-(10**7), 10**7), st.integers(0, 30)), max_size=10).map(
    lambda entries: [[NOON_US + offset, weight] for offset, weight in entries]
)


@st.composite
def histories(draw: st.DrawFn, rules: st.SearchStrategy[RateRule]) -> tuple[RateRule, list[Start]]:
    """Draw a rule and the starts of a caller that asks at random times. Starts follow their permits
    with random delays, and the clock is slightly wrong."""
    rule = draw(rules)
    chance = draw(st.randoms(use_true_random=False))
    slowness = draw(st.sampled_from([0, margin_us(rule), LONGEST_MARGIN_US]))
    longest_gap_us = rule.period_us // draw(st.sampled_from([1, 4, 30]))
    state: State = []
    starts: list[Start] = []
    now_us = NOON_US
    for _ in range(draw(st.integers(1, 120))):
        clock_us = now_us - chance.randrange(CLOCK_US)
        weight = min(free(rule, state, clock_us), chance.randint(1, 2 * rule.whole))
        if weight:
            state = take(rule, state, clock_us, weight, at_least_us=slowness)
            longest_us = margin_us(rule, slowness)
            late_us = chance.choice([0, longest_us, chance.randint(0, longest_us)])
            starts.append((now_us + late_us, weight))
            if chance.random() < 0.5:
                now_us = max(now_us, next_us(rule, state, clock_us))
        now_us += chance.choice([0, chance.randint(0, longest_gap_us)])
    return rule, sorted(starts)


@settings(deadline=None, max_examples=examples())
@given(histories(windows))
def test_no_window_has_more_starts_than_the_limit(history: tuple[RateRule, list[Start]]) -> None:
    rule, starts = history
    assert most_in_a_window(starts, rule.period_us) <= rule.starts


@settings(deadline=None, max_examples=examples())
@given(histories(buckets))
def test_bucket_gives_no_more_than_its_burst_and_refill(
    history: tuple[RateRule, list[Start]],
) -> None:
    rule, starts = history
    for first, (began_us, _) in enumerate(starts):
        weight = 0
        for moment_us, weight_of_start in starts[first:]:
            weight += weight_of_start
            came_back = (moment_us - began_us) * rule.starts
            assert weight * rule.period_us <= rule.burst * rule.period_us + came_back


@pytest.mark.parametrize("seconds", [1, 10, 60])
@pytest.mark.parametrize("limit", [1, 20, 100, 1000])
def test_eager_caller_gets_nearly_the_whole_rate(seconds: int, limit: int) -> None:
    assert eager_share(RateRule(limit, seconds * SECOND_US)) >= 0.95


@settings(deadline=None, max_examples=examples())
@given(windows.filter(lambda rule: rule.period_us >= SECOND_US), st.randoms())
def test_eager_caller_gets_nearly_the_whole_rate_after_random_starts(
    rule: RateRule, chance: random.Random
) -> None:
    state: State = []
    moments = sorted(chance.randrange(rule.period_us) for _ in range(rule.starts))
    for moment_us in moments:
        if free(rule, state, NOON_US + moment_us):
            state = take(rule, state, NOON_US + moment_us, 1)
    assert eager_share(rule, state, NOON_US + rule.period_us) >= 0.95


@pytest.mark.parametrize(
    "rule",
    [
        RateRule(20, SECOND_US, burst=2),
        RateRule(100, SECOND_US, burst=5),
        RateRule(100, 60 * SECOND_US, burst=1),
        RateRule(3, 10 * SECOND_US, burst=50),
        RateRule(7, SECOND_US, burst=3),
    ],
)
def test_bucket_gives_nearly_the_whole_rate(rule: RateRule) -> None:
    assert eager_share(rule) >= 0.95


@settings(deadline=None, max_examples=examples())
@given(st.one_of(windows, buckets), states, st.integers(1, 100))
def test_next_us_is_the_earliest_possible_start(rule: RateRule, state: State, weight: int) -> None:
    moment_us = next_us(rule, state, NOON_US, weight)
    # Later the clock does not go back, so no entry lies in the future.
    state = take(rule, state, NOON_US, 0)
    assert free(rule, state, moment_us) >= cost(rule, weight)
    if moment_us > NOON_US:
        assert free(rule, state, moment_us - 1) < cost(rule, weight)
    else:
        assert moment_us == NOON_US


@settings(deadline=None, max_examples=examples())
@given(st.one_of(windows, buckets), states)
def test_normalized_state_counts_the_same(rule: RateRule, state: State) -> None:
    tidy = take(rule, state, NOON_US, 0)
    assert free(rule, tidy, NOON_US) == free(rule, state, NOON_US)
    assert take(rule, tidy, NOON_US, 0) == tidy


@settings(deadline=None, max_examples=examples(20))
@given(st.one_of(windows, buckets))
def test_state_stays_small_after_many_starts(rule: RateRule) -> None:
    state: State = []
    for step in range(2000):
        now_us = NOON_US + step * 1000
        state = take(rule, state, now_us, 1, at_least_us=LONGEST_MARGIN_US if step == 0 else 0)
    assert len(state) <= 4 * ENTRIES


def test_job_heavier_than_the_limit_takes_all_of_it() -> None:
    rule = RateRule(5, SECOND_US)
    assert cost(rule, 80) == 5
    assert next_us(rule, [], NOON_US, 80) == NOON_US
    state = take(rule, [], NOON_US, 80)
    assert free(rule, state, NOON_US) == 0
    after_us = next_us(rule, state, NOON_US, 80)
    assert free(rule, state, after_us) == 5


def test_rate_of_zero_is_checked_again_after_a_period() -> None:
    for rule in (RateRule(0, SECOND_US), RateRule(0, SECOND_US, burst=3)):
        assert free(rule, [], NOON_US) == 0
        assert next_us(rule, [[NOON_US - 1, 2]], NOON_US) == NOON_US + SECOND_US
        assert take(rule, [[NOON_US - 1, 2]], NOON_US, 0) == [[NOON_US - 1, 2]]


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        "x",
        3,
        [3],
        [[1]],
        [["a", 1]],
        [[NOON_US, 1.5]],
        [[NOON_US, -4]],
        [[NOON_US, True]],
    ],
)
@pytest.mark.parametrize("rule", [RateRule(20, SECOND_US), RateRule(20, SECOND_US, burst=5)])
def test_unreadable_state_counts_as_fully_used(rule: RateRule, state: Any) -> None:
    assert free(rule, state, NOON_US) == 0
    state = take(rule, state, NOON_US, 0)
    assert free(rule, state, NOON_US + LONGEST_MARGIN_US) == 0
    assert free(rule, state, next_us(rule, state, NOON_US, rule.whole)) == rule.whole


@pytest.mark.parametrize("rule", [RateRule(20, SECOND_US), RateRule(20, SECOND_US, burst=20)])
def test_clock_set_back_delays_starts_by_one_period(
    rule: RateRule,
) -> None:
    state = take(rule, [], NOON_US, 20)
    back_us = NOON_US - 3600 * SECOND_US
    assert free(rule, state, back_us) == 0
    state = take(rule, state, back_us, 0)
    assert free(rule, state, back_us + LONGEST_MARGIN_US) == 0
    assert free(rule, state, back_us + SECOND_US + LONGEST_MARGIN_US + 2 * CLOCK_US) == 20


def test_lowered_limit_counts_earlier_starts() -> None:
    state = take(RateRule(20, SECOND_US), [], NOON_US, 15)
    assert free(RateRule(10, SECOND_US), state, NOON_US) == 0
    assert free(RateRule(16, SECOND_US), state, NOON_US) == 1
    assert free(RateRule(30, SECOND_US), state, NOON_US) == 15
    assert next_us(RateRule(10, SECOND_US), state, NOON_US) > NOON_US + SECOND_US


@settings(deadline=None, max_examples=examples())
@given(st.one_of(windows, buckets), st.one_of(windows, buckets), st.randoms())
def test_changed_rule_applies_at_once(
    before: RateRule, after: RateRule, chance: random.Random
) -> None:
    state: State = []
    now_us = NOON_US
    for _ in range(20):
        now_us += chance.randint(0, before.period_us // 4)
        state = take(before, state, now_us, min(free(before, state, now_us), chance.randint(0, 3)))
    given_out = free(after, state, now_us)
    assert given_out <= after.whole
    state = take(after, state, now_us, given_out)
    assert free(after, state, now_us) == 0
    later_us = next_us(after, state, now_us, after.whole)
    assert free(after, state, later_us) == after.whole


# -- counting --------------------------------------------------------------------------------------


def most_in_a_window(starts: Iterable[Start], period_us: int) -> int:
    """Return the most starts in any window, without its end."""
    inside: list[Start] = []
    most = 0
    for moment_us, weight in starts:
        inside = [start for start in inside if start[0] > moment_us - period_us]
        inside.append((moment_us, weight))
        most = max(most, sum(weight for _, weight in inside))
    return most


def eager_share(rule: RateRule, state: State | None = None, now_us: int = NOON_US) -> float:
    """Return the part of the rate that a caller gets if it takes each start as early as possible,
    after the initial burst."""
    state = take(rule, state or [], now_us, free(rule, state or [], now_us))
    starts = [(now_us, 0)]
    until_us = now_us + max(20 * rule.period_us, 50 * rule.period_us // rule.starts)
    while (now_us := next_us(rule, state, now_us)) <= until_us:
        weight = free(rule, state, now_us)
        state = take(rule, state, now_us, weight)
        starts.append((now_us, weight))
    assert all(before < after for (before, _), (after, _) in pairwise(starts))
    seconds = (starts[-1][0] - starts[0][0]) / SECOND_US
    return (
        sum(weight for _, weight in starts) / seconds / (rule.starts / rule.period_us * SECOND_US)
    )
