"""Between the clock on the wall of a place and instants, where summer time begins and ends.

A wall time that the clocks skip is the first instant after the gap. One that comes twice is the
first of the two. Instants are datetimes in UTC here, wall times are naive ones.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

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
