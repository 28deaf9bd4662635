"""Rules of schedules compared with the local time of zones, minute by minute."""

import calendar
from bisect import bisect_right
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from stoker.values.cron import CALENDAR_DAYS, CALENDAR_MONTHS, CronRule, IntervalRule, Rule

from tests.unit.schedules.oracle import ALL, LAST, changes, first_showing, minutes, zones

pytestmark = pytest.mark.unit

EXAMPLES = 60 if ALL else 6
MOMENTS = 12 if ALL else 5
FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


@st.composite
def fields(draw: st.DrawFn, low: int, high: int, *, is_busy: bool) -> tuple[str, frozenset[int]]:
    """Draw a field of a cron rule and the numbers that it matches."""
    kinds = ["*"] if is_busy else ["*", "step", "one", "range", "list"]
    kind = draw(st.sampled_from(kinds))
    number = st.integers(low, high)
    if kind == "step":
        step = draw(st.integers(1, (high - low) // 2 + 1))
        return f"*/{step}", frozenset(range(low, high + 1, step))
    if kind == "one":
        one = draw(number)
        return str(one), frozenset([one])
    if kind == "range":
        first, last = sorted([draw(number), draw(number)])
        return f"{first}-{last}", frozenset(range(first, last + 1))
    if kind == "list":
        some = draw(st.lists(number, min_size=1, max_size=4))
        return ",".join(map(str, some)), frozenset(some)
    return "*", frozenset(range(low, high + 1))


def matches(expression: str, sets: list[frozenset[int]], wall: datetime) -> bool:
    minute, hour, day, month, weekday = sets
    by_day, by_weekday = wall.day in day, (wall.weekday() + 1) % 7 in weekday
    starred = any(expression.split()[place].startswith("*") for place in (2, 4))
    is_day = by_day and by_weekday if starred else by_day or by_weekday
    return wall.minute in minute and wall.hour in hour and wall.month in month and is_day


def expected(
    zone: str, change: datetime, expression: str, sets: list[frozenset[int]]
) -> list[datetime]:
    """Return every matching instant within two days of the clock change."""
    known = minutes(zone, change, 2)
    if any(expression.split()[place].startswith("*") for place in (0, 1)):
        return [at for at, wall in known if matches(expression, sets, wall)]
    found = set()
    wall = known[0][1]
    for at, shown in known:
        while wall <= shown:  # skipped times fire at the first time after the gap
            if matches(expression, sets, wall):
                found.add(at)
            wall += timedelta(minutes=1)
    return sorted(found)


@pytest.mark.parametrize("zone", zones())
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_cron_rules_agree_with_the_wall_clock(zone: str, data: DataObject) -> None:
    change = data.draw(st.sampled_from(changes(zone)), label="change")
    dates_are_rare = data.draw(st.booleans(), label="dates")
    drawn = [
        data.draw(fields(low, high, is_busy=place > 1 and not dates_are_rare))
        for place, (low, high) in enumerate(FIELDS)
    ]
    expression = " ".join(text for text, _ in drawn)
    try:
        rule = CronRule(expression, zone)
    except ValueError:  # no date matches it
        assume(False)
    moments = expected(zone, change, expression, [numbers for _, numbers in drawn])
    start = change - timedelta(days=2)
    offset = data.draw(st.integers(0, 4 * 86_400 - 1), label="seconds")
    assert_agrees(rule, moments, start + timedelta(seconds=offset), change + timedelta(days=2))
    assert_agrees(rule, moments, change - timedelta(seconds=1), change + timedelta(days=2))


@pytest.mark.parametrize("zone", zones())
@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(data=st.data())
def test_calendar_intervals_agree_with_the_wall_clock(zone: str, data: DataObject) -> None:
    change = data.draw(st.sampled_from(changes(zone)), label="change")
    unit = data.draw(st.sampled_from([*CALENDAR_DAYS, *CALENDAR_MONTHS]), label="unit")
    count = data.draw(st.integers(1, 4), label="count")
    shown = next(wall for at, wall in minutes(zone, change, 1) if at == change)
    near = data.draw(st.integers(-120, 60), label="minutes from the change")
    anchor = (shown + timedelta(minutes=near)).replace(day=data.draw(st.integers(1, 28)))
    if data.draw(st.booleans(), label="at the end of a long month"):
        anchor = anchor.replace(month=data.draw(st.sampled_from([1, 3, 5, 7, 8, 10, 12])), day=31)
    rule = IntervalRule(count, unit, zone, anchor)
    moments = sorted({first_showing(wall, zone) for wall in walls(anchor, unit, count)})
    assert_agrees(rule, moments, moments[0] - timedelta(seconds=1), moments[-1])


def walls(anchor: datetime, unit: str, count: int) -> list[datetime]:
    """Return the first local times of the interval."""
    if unit in CALENDAR_DAYS:
        days = timedelta(days=count * CALENDAR_DAYS[unit])
        return [anchor + number * days for number in range(MOMENTS)]
    found = []
    year, month = anchor.year, anchor.month
    for _ in range(MOMENTS):
        day = anchor.day
        while day > calendar.monthrange(year, month)[1]:
            day -= 1
        found.append(anchor.replace(year=year, month=month, day=day))
        for _ in range(count * CALENDAR_MONTHS[unit]):
            year, month = (year + 1, 1) if month == 12 else (year, month + 1)
    return [wall for wall in found if wall.year < LAST.year]


@pytest.mark.parametrize("zone", zones())
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_time_intervals_have_equal_steps_across_clock_changes(zone: str, data: DataObject) -> None:
    """The steps are equal in elapsed time, although the clock changes."""
    change = data.draw(st.sampled_from(changes(zone)), label="change")
    unit, seconds = data.draw(st.sampled_from([("seconds", 1), ("minutes", 60), ("hours", 3600)]))
    count = data.draw(st.integers(1, 100), label="count")
    anchor = data.draw(st.datetimes(datetime(2019, 1, 1), datetime(2030, 1, 1)), label="anchor")
    rule = IntervalRule(count, unit, zone, anchor)
    moment = change - timedelta(seconds=1)
    for _ in range(3):
        found = rule.next_after(moment)
        assert found is not None
        assert moment < found <= moment + timedelta(seconds=count * seconds)
        steps = (found - first_showing(anchor, zone)) / timedelta(seconds=count * seconds)
        assert steps == int(steps)
        moment = found


def assert_agrees(rule: Rule, moments: list[datetime], start: datetime, end: datetime) -> None:
    """Assert that the rule fires at exactly these instants, forwards and backwards."""
    at = start
    for wanted in moments[bisect_right(moments, start) :][:40]:
        found = rule.next_after(at)
        assert found == wanted, f"after {at}: {found} and not {wanted}"
        assert found.tzinfo is UTC
        at = found
    if at > start:
        middle = at + (end - at) / 2
        newest = moments[bisect_right(moments, middle) - 1]
        assert rule.newest_until(middle) == newest
