"""Rules of schedules in words."""

from __future__ import annotations

from datetime import datetime

from cronsim import CronSim

from .cron import ANCHOR, CronRule, IntervalRule, OnceRule, Rule, fields_of

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip


def in_words(rule: Rule) -> str:
    """As in "every month on day 31 (or its last) at 09:00, Europe/Berlin"."""
    if isinstance(rule, CronRule):
        words = CronSim(" ".join(fields_of(rule.expression)), ANCHOR).explain()
        return f"{words[:1].lower()}{words[1:]}, {rule.zone}"
    if isinstance(rule, IntervalRule):
        return _of_interval(rule)
    assert isinstance(rule, OnceRule)
    return f"once at {rule.at:%Y-%m-%d %H:%M:%S} UTC"


def _of_interval(rule: IntervalRule) -> str:
    one = rule.unit.removesuffix("s")
    often = f"every {one}" if rule.count == 1 else f"every {rule.count} {rule.unit}"
    at, zone = _clock(rule.anchor), rule.zone
    if rule.unit in ("seconds", "minutes", "hours"):
        begin = "" if rule.anchor == ANCHOR else f", counted from {rule.anchor:%Y-%m-%d} {at}"
        return f"{often}{begin}" + (f", {zone}" if begin else "")
    if rule.unit == "days":
        return f"{often} at {at}, {zone}"
    if rule.unit == "weeks":
        return f"{often} on {DAYS[rule.anchor.weekday()]} at {at}, {zone}"
    day = f"day {rule.anchor.day}" + (" (or the month's last)" if rule.anchor.day > 28 else "")
    if rule.unit == "months":
        return f"{often} on {day} at {at}, {zone}"
    return f"{often} from {MONTHS[rule.anchor.month - 1]} on, on {day} at {at}, {zone}"


def _clock(wall: datetime) -> str:
    return f"{wall:%H:%M:%S}" if wall.second else f"{wall:%H:%M}"
