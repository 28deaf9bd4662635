"""Rules of schedules: cron, intervals, wall clocks with summer time, and rules in words."""

from __future__ import annotations

import calendar
import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim

SECOND = timedelta(seconds=1)
STEP = timedelta(days=1)
"""No zone changes its clock twice within a day."""


@lru_cache(maxsize=1024)
def zone_named(name: str) -> ZoneInfo:
    """The time zone.

    Raises:
        ValueError: there is none of that name here.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            f"there is no time zone {name!r} here: write one such as 'Europe/Berlin', and keep the "
            "package tzdata up to date"
        ) from None


def wall_of(instant: datetime, zone: ZoneInfo) -> datetime:
    """What the clock shows then."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def offset_at(instant: datetime, zone: ZoneInfo) -> timedelta:
    """From UTC to the zone's clock."""
    return instant.astimezone(zone).utcoffset() or timedelta()


def instant_of(wall: datetime, zone: ZoneInfo) -> datetime:
    """When the clock shows that for the first time; in a gap, the first instant after it."""
    instant = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if wall_of(instant, zone) == wall:
        return instant
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return change_between(before, instant, zone) or instant


def change_between(start: datetime, end: datetime, zone: ZoneInfo) -> datetime | None:
    """The first instant after ``start``, and not after ``end``, from which on the clock is another
    one."""
    known = offset_at(start, zone)
    if zone.key == "UTC":
        return None
    while start < end:
        ahead = min(start + STEP, end)
        if offset_at(ahead, zone) != known:
            return _narrow_down(start, ahead, zone)
        start = ahead
    return None


def _narrow_down(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Changes come at whole seconds."""
    known = offset_at(before, zone)
    low, high = int(before.timestamp()), -int(-after.timestamp() // 1)
    while high - low > 1:
        middle = (low + high) // 2
        if offset_at(datetime.fromtimestamp(middle, UTC), zone) == known:
            low = middle
        else:
            high = middle
    return datetime.fromtimestamp(high, UTC)


NAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
ELAPSED_SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600}
"""Units that are time gone by, whatever the clock on the wall does."""
CALENDAR_DAYS = {"days": 1, "weeks": 7}
CALENDAR_MONTHS = {"months": 1, "quarters": 3, "years": 12}
UNITS = (*ELAPSED_SECONDS, *CALENDAR_DAYS, *CALENDAR_MONTHS)
ANCHOR = datetime(2001, 1, 1)  # noqa: DTZ001 - a wall time
"""A Monday, the first of a year: the anchor of intervals that have none of their own."""
LONGEST_COUNT = 1_000_000


class Rule(ABC):
    """When something is due, again and again."""

    @abstractmethod
    def next_after(self, moment: datetime) -> datetime | None:
        """The first moment after that one; None = there is none any more."""

    def newest_until(self, moment: datetime) -> datetime | None:
        """The last moment that is not after that one; None = none within 400 years.

        The moments in between are not walked through: there may be millions.
        """
        back = SECOND
        while not self._comes_within(moment - back, moment):
            back *= 2
            if back > timedelta(days=146_097) or moment - datetime.min.replace(tzinfo=UTC) < back:
                return None
        low, high = 0, int(back / SECOND)  # seconds of `back` that may be left out
        while high - low > 1:
            middle = (low + high) // 2
            if self._comes_within(moment - back + middle * SECOND, moment):
                low = middle
            else:
                high = middle
        found = last = self.next_after(moment - back + low * SECOND)
        while found is not None and found <= moment:
            last, found = found, self.next_after(found)
        return last

    def _comes_within(self, start: datetime, end: datetime) -> bool:
        found = self.next_after(start)
        return found is not None and found <= end


@dataclass(frozen=True, slots=True)
class OnceRule(Rule):
    """At one moment."""

    at: datetime

    def next_after(self, moment: datetime) -> datetime | None:
        return self.at if moment < self.at else None


@dataclass(frozen=True, slots=True)
class CronRule(Rule):
    """Five fields (minute, hour, day of month, month, day of week), or six with seconds before, on
    the wall clock of a zone.

    Where minute and hour are both given as numbers, each wall time that matches comes once: at its
    first occurrence, or at the end of the gap that it would be in. Where one of them begins with a
    ``*``, the rule is a rhythm: it comes at each instant at which the clock matches, so twice an
    hour that comes twice, and never in one that is skipped. Cron has it so.

    Raises:
        ValueError: it is no such rule, or it never comes; or there is no such zone.
    """

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        zone_named(self.zone)
        if next(_walls(self.expression, ANCHOR), None) is None:
            raise ValueError(f"the cron rule {self.expression!r} never comes: no date matches it")

    def next_after(self, moment: datetime) -> datetime | None:
        try:
            if _is_rhythm(self.expression):
                return self._next_of_rhythm(moment)
            return self._next_of_times(moment)
        except OverflowError:  # the calendar ends with the year 9999
            return None

    def _next_of_times(self, moment: datetime) -> datetime | None:
        zone = zone_named(self.zone)
        for wall in _walls(self.expression, wall_of(moment, zone)):
            instant = instant_of(wall, zone)
            if instant > moment:
                return instant
        return None

    def _next_of_rhythm(self, moment: datetime) -> datetime | None:
        """From one change of the clock to the next, the offset is the same."""
        zone = zone_named(self.zone)
        after = since = moment
        while True:
            offset = offset_at(since, zone)
            wall = next(_walls(self.expression, (after + offset).replace(tzinfo=None)), None)
            if wall is None:
                return None
            found = wall.replace(tzinfo=UTC) - offset
            change = change_between(since, found, zone)
            if change is None:
                return found
            after, since = change - SECOND, change


@dataclass(frozen=True, slots=True)
class IntervalRule(Rule):
    """Every so many of a unit, counted from an anchor.

    Seconds, minutes and hours are time gone by. Days, weeks, months, quarters and years come at the
    anchor's time on the wall clock of the zone; in a month that has no such day, on its last.

    Args:
        anchor: a wall time of the zone; one of the moments, as all others are counted from it.

    Raises:
        ValueError: there is no such unit or zone, or the count is not a whole number above 0.
    """

    count: int
    unit: str
    zone: str = "UTC"
    anchor: datetime = ANCHOR

    def __post_init__(self) -> None:
        zone_named(self.zone)
        if self.unit not in UNITS:
            raise ValueError(f"{self.unit!r} is no unit: write one of {', '.join(UNITS)}")
        count: Any = self.count
        is_whole = isinstance(count, int) and not isinstance(count, bool)
        if not is_whole or not 0 < count <= LONGEST_COUNT:
            raise ValueError(
                f"{self.unit}={self.count!r} must be a whole number from 1 to {LONGEST_COUNT:,}"
            )

    def next_after(self, moment: datetime) -> datetime | None:
        try:
            if self.unit in ELAPSED_SECONDS:
                return self._next_elapsed(moment)
            return self._next_on_calendar(moment)
        except (OverflowError, ValueError):  # the calendar ends with the year 9999
            return None

    def _next_elapsed(self, moment: datetime) -> datetime:
        period = timedelta(seconds=self.count * ELAPSED_SECONDS[self.unit])
        anchor = _instant_of_anchor(self.anchor, self.zone)
        return anchor + ((moment - anchor) // period + 1) * period

    def _next_on_calendar(self, moment: datetime) -> datetime:
        zone = zone_named(self.zone)
        number = self._number_before(wall_of(moment, zone))
        while (instant := instant_of(self._wall(number), zone)) <= moment:
            number += 1
        return instant

    def _number_before(self, wall: datetime) -> int:
        """Of a moment that is surely not later than the one that comes next."""
        if self.unit in CALENDAR_DAYS:
            return (wall - self.anchor).days // (self.count * CALENDAR_DAYS[self.unit]) - 1
        months = (wall.year - self.anchor.year) * 12 + wall.month - self.anchor.month
        return months // (self.count * CALENDAR_MONTHS[self.unit]) - 1

    def _wall(self, number: int) -> datetime:
        """The wall time of that number, from the anchor's 0 on."""
        if self.unit in CALENDAR_DAYS:
            days = number * self.count * CALENDAR_DAYS[self.unit]
            return self.anchor + timedelta(days=days)
        months = self.anchor.month - 1 + number * self.count * CALENDAR_MONTHS[self.unit]
        year, month = self.anchor.year + months // 12, months % 12 + 1
        if not 1 <= year <= 9999:
            raise OverflowError
        day = min(self.anchor.day, calendar.monthrange(year, month)[1])
        return self.anchor.replace(year=year, month=month, day=day)


def fields_of(expression: str) -> list[str]:
    """The fields of a cron rule, the names with an @ put into fields.

    Raises:
        ValueError: there are neither five nor six, or there is no such name.
    """
    text = expression.strip()
    if text.startswith("@"):
        if text.lower() not in NAMES:
            raise ValueError(f"{expression!r} is no cron rule: the names are {', '.join(NAMES)}")
        text = NAMES[text.lower()]
    fields = text.split()
    if len(fields) not in (5, 6):
        raise ValueError(
            f"{expression!r} is no cron rule: write five fields (minute, hour, day of month, "
            "month, day of week), or six with seconds before them"
        )
    return fields


@lru_cache(maxsize=1024)
def _read(expression: str) -> CronSim:
    text = " ".join(fields_of(expression))
    try:
        return CronSim(text, ANCHOR)
    except Exception as error:  # noqa: BLE001 - some of what is no rule fails an assertion in there
        problem = str(error)
        because = f": {problem[0].lower()}{problem[1:]}" if problem else ""
        raise ValueError(f"{expression!r} is no cron rule{because}") from None


def _walls(expression: str, after: datetime) -> Iterator[datetime]:
    """The wall times after that one, as though no clock were ever changed."""
    walls = copy.copy(_read(expression))
    walls.dt = after.replace(microsecond=0)
    return walls


@lru_cache(maxsize=1024)
def _instant_of_anchor(anchor: datetime, zone: str) -> datetime:
    return instant_of(anchor, zone_named(zone))


@lru_cache(maxsize=1024)
def _is_rhythm(expression: str) -> bool:
    minute, hour = fields_of(expression)[-5:-3]
    return minute.startswith("*") or hour.startswith("*")


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
