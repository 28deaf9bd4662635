"""Which due ticks are fired, compared with a model that visits all of them."""

import random
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.values.cron import CronRule, IntervalRule, Rule
from stoker.values.ticks import (
    MOST_AT_ONCE,
    MOST_COUNTED,
    MOST_EARLIER,
    PROMPT_US,
    Course,
    Misfire,
    longest_jitter_seconds,
    plan,
)

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

    def lateness(moment: int) -> int:
        """Return the delay after the moment at which this tick and all before it were due."""
        at = course.after(moment - jitter * SECOND - 1)
        dues = [course.due(moment)]
        while at is not None and at < moment:
            dues.append(course.due(at))
            at = course.after(at)
        return now - max(dues)

    decided = plan(course, Misfire(policy, cap, grace * SECOND), first, now)

    prompt = min(PROMPT_US, grace * SECOND) if policy == "skip" else PROMPT_US
    if jitter and len(due) > 1 and lateness(first) <= prompt:
        kept, wanted = due, due[:MOST_AT_ONCE]
        assert decided.next_us == [*due, *later, None][len(wanted)]
    elif policy == "all":
        kept = due[-cap:]
        wanted = kept[:MOST_AT_ONCE]
        assert decided.next_us == [*kept, *later, None][len(wanted)]
    else:
        is_late = policy == "skip" and lateness(due[-1]) > grace * SECOND
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


@pytest.mark.parametrize("policy", ["once", "skip", "all"])
@pytest.mark.parametrize(("period", "jitter"), [(60, 600), (60, 45), (1, 30), (3600, 600)])
def test_healthy_clusters_fire_every_tick_of_a_schedule_with_jitter(
    policy: str, period: int, jitter: int, seed: int
) -> None:
    chance = random.Random(seed)
    course = Course(
        UUID(int=chance.getrandbits(128)),
        IntervalRule(period, "seconds"),
        jitter_us=jitter * SECOND,
    )
    misfire, now = Misfire(policy, 1, 2 * SECOND), NEW_YEAR
    moment = course.after(now)
    fired = []
    while len(fired) < 300:
        assert moment is not None
        now = max(now, course.due(moment)) + chance.randrange(SECOND)
        decided = plan(course, misfire, moment, now)
        assert decided.missed is None
        fired += decided.fire_us
        moment = decided.next_us
    assert [after - before for before, after in pairwise(fired)] == [period * SECOND] * (
        len(fired) - 1
    )


@pytest.mark.parametrize("policy", ["once", "skip", "all"])
def test_healthy_clusters_fire_every_tick_of_a_schedule_with_the_longest_jitter(
    policy: str, seed: int
) -> None:
    """A scheduler looks for due schedules twice a second."""
    schedule_id = UUID(int=random.Random(seed).getrandbits(128))
    rule = IntervalRule(2, "seconds")
    jitter_us = round(longest_jitter_seconds(rule) * SECOND)
    course = Course(schedule_id, rule, jitter_us=jitter_us)
    misfire, now = Misfire(policy, 1, 60 * SECOND), NEW_YEAR
    moment, fired = course.after(now), 0
    while fired < 4000:
        assert moment is not None
        now = max(now + SECOND // 2, course.due(moment))
        decided = plan(course, misfire, moment, now)
        assert decided.missed is None
        fired += len(decided.fire_us)
        moment = decided.next_us


@pytest.mark.parametrize(
    ("rule", "seconds"),
    [
        (CronRule("0 3 * * *"), 3_600_000),
        (CronRule("0 * * * *"), 3_600_000),
        (CronRule("0,30 * * * *"), 1_800_000),
        (CronRule("* 3 * * *"), 60_000),
        (CronRule("*/2 * * * * *"), 2000),
        (IntervalRule(1, "weeks"), 86_400_000),
    ],
)
def test_longest_jitter_is_short_only_for_rules_with_many_ticks_in_an_hour(
    rule: Rule, seconds: int
) -> None:
    assert longest_jitter_seconds(rule) == seconds


def test_plan_looks_at_few_ticks_though_the_jitter_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    due = Course.due

    def note(course: Course, moment_us: int) -> int:
        looks.append(moment_us)
        return due(course, moment_us)

    monkeypatch.setattr(Course, "due", note)
    course = Course(UUID(int=1), IntervalRule(1, "seconds"), jitter_us=86_400 * SECOND)
    for policy in ("once", "skip"):
        plan(course, Misfire(policy, 10, 60 * SECOND), NEW_YEAR, NEW_YEAR + 30 * SECOND)
    assert len(looks) < 5 * MOST_EARLIER


@pytest.mark.parametrize(("policy", "jobs"), [("once", 1), ("skip", 1), ("all", 2)])
def test_outage_longer_than_the_jitter_makes_the_jobs_of_the_policy(
    policy: str, jobs: int, seed: int
) -> None:
    schedule_id = UUID(int=random.Random(seed).getrandbits(128))
    course = Course(schedule_id, IntervalRule(60, "seconds"), jitter_us=90 * SECOND)
    first = course.after(NEW_YEAR)
    assert first is not None
    decided = plan(course, Misfire(policy, 2, 600 * SECOND), first, NEW_YEAR + 3600 * SECOND)
    assert len(decided.fire_us) == jobs
    assert decided.missed is not None
    assert decided.missed.count >= 55


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
