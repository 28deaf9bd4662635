"""Schedule rules: cron, intervals, daylight saving time, and descriptions of rules in words."""

from __future__ import annotations

import calendar
import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import inf
from zoneinfo import ZoneInfo

from cronsim import CronSim

from .durations import is_whole

SECOND = timedelta(seconds=1)
STEP = timedelta(days=1)
"""No time zone changes its offset twice within a day."""


@lru_cache(maxsize=1024)
def zone_named(name: str) -> ZoneInfo:
    """Return the time zone of that name.

    Raises:
        ValueError: this host does not know the zone.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            f"there is no time zone {name!r} here: write one such as 'Europe/Berlin', and keep the "
            "package tzdata up to date"
        ) from None


def wall_of(instant: datetime, zone: ZoneInfo) -> datetime:
    """Return the local time at an instant, as a naive datetime."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def offset_at(instant: datetime, zone: ZoneInfo) -> timedelta:
    """Return the zone's offset from UTC at an instant."""
    return instant.astimezone(zone).utcoffset() or timedelta()


def instant_of(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant of a local time. For a time in a gap, return the end of the gap."""
    instant = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if wall_of(instant, zone) == wall:
        return instant
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return change_between(before, instant, zone) or instant


def change_between(start: datetime, end: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first instant in ``(start, end]`` at which the zone's offset changes, or None."""
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
    """Find the instant of the change by bisection. Offsets change at whole seconds."""
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
"""Units that count elapsed time and ignore changes of the clock."""
CALENDAR_DAYS = {"days": 1, "weeks": 7}
CALENDAR_MONTHS = {"months": 1, "quarters": 3, "years": 12}
UNITS = (*ELAPSED_SECONDS, *CALENDAR_DAYS, *CALENDAR_MONTHS)
ANCHOR = datetime(2001, 1, 1)  # noqa: DTZ001 - a wall time
"""Default anchor of intervals: a Monday and the first day of a year."""
LONGEST_COUNT = 1_000_000


class Rule(ABC):
    """A rule that yields moments."""

    @abstractmethod
    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first moment after this one, or None if there are no more."""

    @property
    @abstractmethod
    def interval_seconds(self) -> float:
        """Return the mean time between two moments in an hour that has several, otherwise a lower
        bound of the time between two."""

    def newest_until(self, moment: datetime) -> datetime | None:
        """Return the last moment that is not after this one, or None if there is none within 400
        years.

        Uses bisection instead of iteration, because there may be millions of moments in between.
        """
        back = SECOND
        while not self._comes_within(moment - back, moment):
            back *= 2
            if back > timedelta(days=146_097) or moment - datetime.min.replace(tzinfo=UTC) < back:
                return None
        low, high = 0, int(back / SECOND)  # bisect the seconds by which `back` can be reduced
        while high - low > 1:
            middle = (low + high) // 2
            if self._comes_within(moment - back + middle * SECOND, moment):
                low = middle
            else:
                high = middle
        # Moments are at least a second apart, so this one is the last.
        return self.next_after(moment - back + low * SECOND)

    def _comes_within(self, start: datetime, end: datetime) -> bool:
        found = self.next_after(start)
        return found is not None and found <= end


@dataclass(frozen=True, slots=True)
class OnceRule(Rule):
    """A single moment."""

    at: datetime

    def next_after(self, moment: datetime) -> datetime | None:
        return self.at if moment < self.at else None

    @property
    def interval_seconds(self) -> float:
        return inf


@dataclass(frozen=True, slots=True)
class CronRule(Rule):
    """A cron rule in a time zone: five fields, or six with leading seconds.

    The five fields are minute, hour, day of month, month and day of week. As in cron, changes of
    the clock have two effects. If minute and hour are both given as numbers, each matching local
    time ticks once: at its first occurrence, or at the end of the gap that it falls into. If one of
    them begins with ``*``, the rule ticks at every matching instant: twice in a repeated hour, and
    never in a skipped one.

    Raises:
        ValueError: the rule is malformed, no date matches it, or the zone is unknown.
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

    @property
    def interval_seconds(self) -> float:
        cron = _read(self.expression)
        return 3600.0 / (len(cron.minutes) * len(cron.seconds))

    def _next_of_times(self, moment: datetime) -> datetime | None:
        zone = zone_named(self.zone)
        for wall in _walls(self.expression, wall_of(moment, zone)):
            instant = instant_of(wall, zone)
            if instant > moment:
                return instant
        return None

    def _next_of_rhythm(self, moment: datetime) -> datetime | None:
        """Return the next moment by searching between two changes of the offset at a time."""
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
    """A fixed interval, counted from an anchor.

    Seconds, minutes and hours count elapsed time. The other units tick at the anchor's local time;
    in a month without the anchor's day, on the last day.

    Args:
        anchor: a local time in the zone, and one of the moments.

    Raises:
        ValueError: the unit or zone is unknown, or the count is not a whole number above 0.
    """

    count: int
    unit: str
    zone: str = "UTC"
    anchor: datetime = ANCHOR

    def __post_init__(self) -> None:
        zone_named(self.zone)
        if self.unit not in UNITS:
            raise ValueError(f"{self.unit!r} is not a unit: write one of {', '.join(UNITS)}")
        if not is_whole(self.count) or not 0 < self.count <= LONGEST_COUNT:
            raise ValueError(
                f"{self.unit}={self.count!r} must be a whole number from 1 to {LONGEST_COUNT:,}"
            )

    def anchored_at(self, instant: datetime) -> IntervalRule:
        """Return the rule with this instant as its anchor."""
        zone = zone_named(self.zone)
        # The second one of two equal local times cannot be an anchor.
        while self.unit in ELAPSED_SECONDS and instant.astimezone(zone).fold:
            instant += self._period
        return replace(self, anchor=wall_of(instant, zone))

    def next_after(self, moment: datetime) -> datetime | None:
        try:
            if self.unit in ELAPSED_SECONDS:
                return self._next_elapsed(moment)
            return self._next_on_calendar(moment)
        except (OverflowError, ValueError):  # the calendar ends with the year 9999
            return None

    @property
    def interval_seconds(self) -> float:
        return float(self.count * ELAPSED_SECONDS.get(self.unit, 86_400))

    @property
    def _period(self) -> timedelta:
        return timedelta(seconds=self.count * ELAPSED_SECONDS[self.unit])

    def _next_elapsed(self, moment: datetime) -> datetime:
        anchor = _instant_of_anchor(self.anchor, self.zone)
        return anchor + ((moment - anchor) // self._period + 1) * self._period

    def _next_on_calendar(self, moment: datetime) -> datetime:
        zone = zone_named(self.zone)
        number = self._number_before(wall_of(moment, zone))
        while (instant := instant_of(self._wall(number), zone)) <= moment:
            number += 1
        return instant

    def _number_before(self, wall: datetime) -> int:
        """Return a lower bound of the number of the next moment, where the search for it begins."""
        if self.unit in CALENDAR_DAYS:
            return (wall - self.anchor).days // (self.count * CALENDAR_DAYS[self.unit]) - 1
        months = (wall.year - self.anchor.year) * 12 + wall.month - self.anchor.month
        return months // (self.count * CALENDAR_MONTHS[self.unit]) - 1

    def _wall(self, number: int) -> datetime:
        """Return the local time of the moment with this number. The anchor has number 0."""
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
    """Return the fields of a cron rule. Names such as ``@daily`` are expanded.

    Raises:
        ValueError: there are neither five nor six fields, or the name is unknown.
    """
    text = expression.strip()
    if text.startswith("@"):
        if text.lower() not in NAMES:
            raise ValueError(f"{expression!r} is not a cron rule: the names are {', '.join(NAMES)}")
        text = NAMES[text.lower()]
    fields = text.split()
    if len(fields) not in (5, 6):
        raise ValueError(
            f"{expression!r} is not a cron rule: write five fields (minute, hour, day of month, "
            "month, day of week), or six with seconds before them"
        )
    return fields


@lru_cache(maxsize=1024)
def _read(expression: str) -> CronSim:
    text = " ".join(fields_of(expression))
    try:
        return CronSim(text, ANCHOR)
    except Exception as error:  # noqa: BLE001 - cronsim raises AssertionError for some rules
        problem = str(error)
        because = f": {problem[0].lower()}{problem[1:]}" if problem else ""
        raise ValueError(f"{expression!r} is not a cron rule{because}") from None


def _walls(expression: str, after: datetime) -> Iterator[datetime]:
    """Iterate over the matching local times after this one, ignoring changes of the clock."""
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
    """Describe a rule, as in "every month on day 31 (or its last) at 09:00, Europe/Berlin"."""
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
