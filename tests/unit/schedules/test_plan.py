"""Which due ticks are fired, compared with a model that visits all of them."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.values.cron import CronRule, IntervalRule, Rule
from stoker.values.ticks import MOST_AT_ONCE, MOST_COUNTED, Course, Misfire, plan

from tests.examples import examples

pytestmark = pytest.mark.unit

SECOND = 1_000_000
NEW_YEAR = 1_767_225_600 * SECOND
"""1 January 2026."""


@settings(max_examples=examples(200), deadline=None)
@given(
    period=st.integers(1, 90),
    passed=st.integers(0, 4000),
    jitter=st.sampled_from([0, 0, 5, 60]),
    policy=st.sampled_from(["once", "skip", "all"]),
    cap=st.integers(1, 40),
    grace=st.integers(0, 100),
    left=st.none() | st.integers(0, 4000),
)
def test_ticks_are_fired_or_missed_as_the_policy_says(
    period: int,
    passed: int,
    jitter: int,
    policy: str,
    cap: int,
    grace: int,
    left: int | None,
) -> None:
    end = None if left is None else NEW_YEAR + left * SECOND
    rule = IntervalRule(period, "seconds")
    course = Course(UUID(int=period), rule, None, end, jitter * SECOND)
    first = course.after(NEW_YEAR)
    if first is None or course.due(first) > NEW_YEAR + passed * SECOND:
        return
    now = NEW_YEAR + passed * SECOND
    moments = [first]
    while (following := course.after(moments[-1])) is not None:
        moments.append(following)
        if following > now + 100 * SECOND:
            break
    number = next((n for n, one in enumerate(moments) if course.due(one) > now), len(moments))
    due, later = moments[:number], moments[number:]

    decided = plan(course, Misfire(policy, cap, grace * SECOND), first, now)

    if policy == "all":
        kept = due[-cap:]
        wanted = kept[:MOST_AT_ONCE]
        assert decided.next_us == [*kept, *later, None][len(wanted)]
    else:
        is_late = policy == "skip" and now - course.due(due[-1]) > grace * SECOND
        kept = wanted = [] if is_late else due[-1:]
        assert decided.next_us == [*later, None][0]
    assert list(decided.fire_us) == wanted
    missed = len(due) - len(kept)
    if not missed:
        assert decided.missed is None
    else:
        assert decided.missed is not None
        assert decided.missed.first_us == first
        assert decided.missed.count == min(missed, MOST_COUNTED)


RULES: list[Rule] = [
    CronRule("30 2 * * *", "Europe/Berlin"),
    CronRule("*/20 * * * *", "Australia/Lord_Howe"),
    CronRule("0 0 31 * *", "Pacific/Apia"),
    IntervalRule(7, "seconds"),
    IntervalRule(1, "days", "America/Sao_Paulo"),
    IntervalRule(1, "months", "Europe/Berlin"),
]


@settings(max_examples=examples(200), deadline=None)
@given(rule=st.sampled_from(RULES), since=st.integers(NEW_YEAR, 2 * NEW_YEAR))
def test_nearest_moment_is_the_closer_one_of_both_neighbours(rule: Rule, since: int) -> None:
    course = Course(UUID(int=1), rule)
    first = course.after(since)
    assert first is not None
    assert course.nearest(first) == first
    second = course.after(first)
    assert second is not None
    middle = (first + second) // 2
    assert course.nearest(middle - 1) == first
    assert course.nearest(middle + 1) == second
    assert Course(UUID(int=1), rule, second).nearest(first + 1) == second
    assert Course(UUID(int=1), rule, None, first).nearest(first + 1) == first + 1
