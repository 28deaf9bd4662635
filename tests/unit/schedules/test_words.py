"""Descriptions of schedule rules."""

from datetime import UTC, datetime

import pytest

from stoker.values.cron import ANCHOR, CronRule, IntervalRule, OnceRule, Rule, in_words

pytestmark = pytest.mark.unit


def wall(month: int, day: int, *clock: int) -> datetime:
    """Return a local time of 2026 in the rule's zone."""
    return datetime(2026, month, day, *clock)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (IntervalRule(1, "minutes"), "every minute"),
        (IntervalRule(5, "minutes", anchor=ANCHOR), "every 5 minutes"),
        (
            IntervalRule(2, "hours", anchor=wall(3, 4, 9), zone="Europe/Berlin"),
            "every 2 hours, counted from 2026-03-04 09:00, Europe/Berlin",
        ),
        (
            IntervalRule(30, "seconds", anchor=wall(3, 4)),
            "every 30 seconds, counted from 2026-03-04 00:00, UTC",
        ),
        (IntervalRule(1, "days", anchor=wall(3, 4, 9, 30, 15)), "every day at 09:30:15, UTC"),
        (
            IntervalRule(2, "weeks", anchor=wall(3, 4, 9)),
            "every 2 weeks on Wednesday at 09:00, UTC",
        ),
        (IntervalRule(1, "months", anchor=wall(3, 28)), "every month on day 28 at 00:00, UTC"),
        (
            IntervalRule(1, "months", anchor=wall(3, 29)),
            "every month on day 29 (or the month's last) at 00:00, UTC",
        ),
        (
            IntervalRule(1, "years", anchor=wall(12, 24, 18)),
            "every year from December on, on day 24 at 18:00, UTC",
        ),
        (CronRule("0 3 * * *", "Europe/Berlin"), "at 03:00 every day, Europe/Berlin"),
        (OnceRule(datetime(2026, 3, 4, 9, 30, 15, tzinfo=UTC)), "once at 2026-03-04 09:30:15 UTC"),
    ],
)
def test_in_words_describes_rules(rule: Rule, words: str) -> None:
    assert in_words(rule) == words
