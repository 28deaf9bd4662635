"""Rules of schedules at unusual dates."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from stoker.tasks.schedules import every
from stoker.values.cron import CronRule, IntervalRule, OnceRule, Rule, change_between

pytestmark = pytest.mark.unit

BERLIN = "Europe/Berlin"
SPRING = datetime(2026, 3, 28, 12, tzinfo=UTC)
"""The clocks go from 02:00 to 03:00 on the 29th."""
AUTUMN = datetime(2026, 10, 24, 12, tzinfo=UTC)
"""The clocks go from 03:00 to 02:00 on the 25th."""


def shown(rule: Rule, start: datetime, count: int, zone: str = BERLIN) -> list[str]:
    found, at = [], start
    for _ in range(count):
        moment = rule.next_after(at)
        if moment is None:
            break
        found.append(moment.astimezone(ZoneInfo(zone)).strftime("%d %H:%M%z"))
        at = moment
    return found


def test_time_in_the_gap_fires_at_its_end_that_day_only() -> None:
    rule = CronRule("30 2 * * *", BERLIN)
    assert shown(rule, SPRING, 2) == ["29 03:00+0200", "30 02:30+0200"]
    daily = IntervalRule(1, "days", BERLIN, datetime(2026, 1, 1, 2, 30))
    assert shown(daily, SPRING, 2) == ["29 03:00+0200", "30 02:30+0200"]


def test_several_times_in_one_gap_fire_once() -> None:
    assert shown(CronRule("0,15,30 2,3 * * *", BERLIN), SPRING, 3) == [
        "29 03:00+0200",
        "29 03:15+0200",
        "29 03:30+0200",
    ]


def test_repeated_time_fires_once() -> None:
    rule = CronRule("30 2 * * *", BERLIN)
    assert shown(rule, AUTUMN, 2) == ["25 02:30+0200", "26 02:30+0100"]
    after_the_first = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # the second 02:10
    assert shown(rule, after_the_first, 1) == ["26 02:30+0100"]


def test_interval_like_cron_rule_fires_in_every_repeated_hour() -> None:
    start = datetime(2026, 10, 24, 23, 59, tzinfo=UTC)
    assert shown(CronRule("*/30 * * * *", BERLIN), start, 4) == [
        "25 02:00+0200",
        "25 02:30+0200",
        "25 02:00+0100",
        "25 02:30+0100",
    ]
    assert shown(CronRule("0 * * * *", BERLIN), datetime(2026, 3, 28, 23, 59, tzinfo=UTC), 3) == [
        "29 01:00+0100",
        "29 03:00+0200",
        "29 04:00+0200",
    ]


def test_half_hour_clock_change_fires_repeated_times_once() -> None:
    """On Lord Howe Island, 01:30 to 02:00 is repeated."""
    start = datetime(2026, 4, 4, 14, 20, tzinfo=UTC)
    zone = "Australia/Lord_Howe"
    assert shown(CronRule("*/15 2 * * *", zone), start, 4, zone) == [
        "05 02:00+1030",
        "05 02:15+1030",
        "05 02:30+1030",
        "05 02:45+1030",
    ]


def test_monthly_rule_of_the_31st_returns_to_the_31st() -> None:
    rule = IntervalRule(1, "months", "UTC", datetime(2026, 1, 31, 9))
    found, at = [], datetime(2026, 1, 31, 9, tzinfo=UTC)
    for _ in range(4):
        at = rule.next_after(at) or at
        found.append((at.month, at.day))
    assert found == [(2, 28), (3, 31), (4, 30), (5, 31)]


def test_yearly_rule_of_29_february_fires_on_the_28th_in_other_years() -> None:
    rule = IntervalRule(1, "years", "UTC", datetime(2024, 2, 29))
    at, found = datetime(2024, 3, 1, tzinfo=UTC), []
    for _ in range(4):
        at = rule.next_after(at) or at
        found.append((at.year, at.day))
    assert found == [(2025, 28), (2026, 28), (2027, 28), (2028, 29)]
    leap = CronRule("0 0 29 2 *").next_after(datetime(2097, 1, 1, tzinfo=UTC))
    assert leap == datetime(2104, 2, 29, tzinfo=UTC)  # 2100 is no leap year


def test_rules_continue_across_years() -> None:
    quarters = IntervalRule(1, "quarters", BERLIN, datetime(2025, 11, 30, 23, 59))
    assert quarters.next_after(datetime(2025, 12, 1, tzinfo=UTC)) == datetime(
        2026, 2, 28, 22, 59, tzinfo=UTC
    )
    cron = CronRule("59 59 23 31 12 *", "UTC")
    assert cron.next_after(datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)) == datetime(
        2027, 12, 31, 23, 59, 59, tzinfo=UTC
    )


def test_six_field_cron_rule_begins_with_seconds() -> None:
    rule = CronRule("*/20 * * * * *")
    at = datetime(2026, 1, 1, 0, 0, 41, 5, tzinfo=UTC)
    assert rule.next_after(at) == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert CronRule("0 30 2 * * *", BERLIN).next_after(AUTUMN) == datetime(
        2026, 10, 25, 0, 30, tzinfo=UTC
    )


def test_cron_name_equals_its_expression() -> None:
    assert CronRule("@daily").next_after(AUTUMN) == CronRule("0 0 * * *").next_after(AUTUMN)


def test_once_rule_fires_once() -> None:
    rule = OnceRule(AUTUMN)
    assert rule.next_after(AUTUMN - timedelta(days=9)) == AUTUMN
    assert rule.next_after(AUTUMN) is None
    assert rule.newest_until(AUTUMN + timedelta(days=400)) == AUTUMN
    assert rule.newest_until(AUTUMN - timedelta(days=1)) is None


def test_newest_until_includes_the_given_moment() -> None:
    assert OnceRule(AUTUMN).newest_until(AUTUMN) == AUTUMN
    noon = CronRule("0 12 * * *", "UTC")
    assert noon.newest_until(AUTUMN) == AUTUMN
    assert noon.newest_until(AUTUMN - timedelta(microseconds=1)) == AUTUMN - timedelta(days=1)


def test_newest_until_stops_after_centuries_or_at_the_calendars_end() -> None:
    assert OnceRule(datetime(1400, 1, 1, tzinfo=UTC)).newest_until(AUTUMN) is None
    assert OnceRule(AUTUMN).newest_until(datetime(1, 6, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("days", "2026-10-25"),
        ("weeks", "2026-10-29"),
        ("months", "2026-11-08"),
        ("quarters", "2026-11-08"),
        ("years", "2027-02-08"),
    ],
)
def test_interval_accepts_an_anchor_in_other_years(unit: str, expected: str) -> None:
    """An anchor on a Thursday long ago, and one in the future, give the same moments."""
    for year in (1996, 2036 if unit != "weeks" else 1996):
        rule = IntervalRule(1, unit, "UTC", datetime(year, 2, 8))
        found = rule.next_after(AUTUMN)
        assert found is not None
        assert f"{found:%Y-%m-%d}" == expected


@pytest.mark.parametrize(
    ("unit", "count", "expected"),
    [
        ("hours", 6, ["25 02:30+0100", "25 08:30+0100", "25 14:30+0100"]),
        ("minutes", 20, ["25 02:30+0100", "25 02:50+0100", "25 03:10+0100"]),
        ("days", 1, ["26 02:30+0100", "27 02:30+0100", "28 02:30+0100"]),
    ],
)
def test_interval_accepts_an_instant_in_the_repeated_hour_as_anchor(
    unit: str, count: int, expected: list[str]
) -> None:
    anchor = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    rule = every(**{unit: count}, anchor=anchor, tz=BERLIN).rule("UTC")  # type: ignore[arg-type]
    assert shown(rule, anchor - timedelta(seconds=1), 3) == expected


def test_newest_until_skips_millions_of_ticks() -> None:
    now = datetime(2036, 5, 6, 7, 8, 9, 500, tzinfo=UTC)
    assert IntervalRule(1, "seconds").newest_until(now) == now.replace(microsecond=0)
    assert CronRule("* * 9 * * *").newest_until(now) == datetime(2036, 5, 5, 9, 59, 59, tzinfo=UTC)


def test_rules_end_with_the_calendar() -> None:
    late = datetime(9999, 12, 31, 23, tzinfo=UTC)
    assert CronRule("0 0 1 1 *").next_after(late) is None
    assert IntervalRule(1, "years").next_after(late) is None


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("61 * * * *", "bad minute"),
        ("* * *", "five fields"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("@reboot", "the names are"),
        ("MON#1/2 * * * *", "not a cron rule"),
        ("", "five fields"),
    ],
)
def test_invalid_cron_rule_is_refused(expression: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        CronRule(expression)


def test_interval_count_above_a_million_is_refused() -> None:
    assert IntervalRule(1_000_000, "seconds").count == 1_000_000
    with pytest.raises(ValueError, match="from 1 to 1,000,000"):
        IntervalRule(1_000_001, "seconds")


def test_invalid_interval_is_refused() -> None:
    for count, unit, zone in ((0, "days", "UTC"), (1.5, "days", "UTC"), (1, "eons", "UTC")):
        with pytest.raises(ValueError, match=r"write one of|whole number"):
            IntervalRule(count, unit, zone)  # type: ignore[arg-type] # on purpose
    with pytest.raises(ValueError, match="no time zone 'Mars/Olympus'"):
        IntervalRule(1, "days", "Mars/Olympus")


@pytest.mark.parametrize("seconds", [1, 2, 3, 5, 86_399])
def test_change_of_the_clock_is_found_to_the_second(seconds: int) -> None:
    """However many seconds before it the search starts."""
    zone, change = ZoneInfo("Europe/Berlin"), datetime(2026, 3, 29, 1, tzinfo=UTC)
    for end in (change, change + timedelta(seconds=1), change + timedelta(hours=7)):
        assert change_between(change - timedelta(seconds=seconds), end, zone) == change
    assert change_between(change, change + timedelta(hours=7), zone) is None
