"""The local time of a zone, minute by minute, to compare the rules of schedules with.

It is slow and simple on purpose, and shares no code with the rules: no fold, no bisection.
"""

import os
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

MINUTE = timedelta(minutes=1)
FIRST, LAST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
ALL = bool(os.environ.get("STOKER_TEST_ALL_ZONES"))
"""Test every zone and every change of its clock, which takes minutes."""
SOME = (
    "Europe/Berlin",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Asia/Beirut",
)
"""Clock changes: ordinary; at midnight; by half an hour; four times a year; at midnight."""


@cache
def changes(zone: str) -> tuple[datetime, ...]:
    """Return each instant in 2020-2030 at which the zone changes its clock."""
    place, found, at = ZoneInfo(zone), [], FIRST
    while at < LAST:
        ahead = at + timedelta(days=1)
        if at.astimezone(place).utcoffset() != ahead.astimezone(place).utcoffset():
            minute = at
            while minute.astimezone(place).utcoffset() == at.astimezone(place).utcoffset():
                minute += MINUTE
            found.append(minute)
        at = ahead
    return tuple(found)


@cache
def changing_zones() -> tuple[str, ...]:
    """Return the zones that change their clocks, one for each set of equal changes."""
    kinds: dict[object, str] = {}
    for zone in sorted(available_timezones()):
        if zone.startswith(("posix/", "right/", "Etc/")) or zone == "localtime":
            continue
        moved = changes(zone)
        if moved:
            place = ZoneInfo(zone)
            kinds.setdefault(tuple((at, at.astimezone(place).utcoffset()) for at in moved), zone)
    return tuple(kinds.values())


def zones() -> tuple[str, ...]:
    return changing_zones() if ALL else SOME


@cache
def minutes(zone: str, around: datetime, days: int) -> tuple[tuple[datetime, datetime], ...]:
    """Return instant and local time of each minute, this many days before and after."""
    place, start = ZoneInfo(zone), around - timedelta(days=days)
    instants = (start + number * MINUTE for number in range(days * 2 * 1440))
    return tuple((at, at.astimezone(place).replace(tzinfo=None, fold=0)) for at in instants)


def first_showing(wall: datetime, zone: str) -> datetime:
    """Return the first instant with this local time, or the end of the gap that contains it."""
    whole = wall.replace(second=0, microsecond=0)
    around = minutes(zone, whole.replace(tzinfo=UTC), 1)
    for at, shown in around:
        if shown == whole:
            return at + (wall - whole)
    return next(at for (_, before), (at, shown) in pairwise(around) if before < whole < shown)
