"""Numbers and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from django.utils import timezone

MINUTE, HOUR, DAY = 60, 3600, 86400
THOUSAND = 1000
UNKNOWN = "\N{EN DASH}"
STEPS = ((10**9, "bn"), (10**6, "m"), (10**3, "k"))


def number(value: float | None) -> str:
    """As in "12,345"; of what is not known an en dash."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def short_number(value: float | None) -> str:
    """As in "12.3k"."""
    if value is None:
        return UNKNOWN
    for size, letter in STEPS:
        if value >= size:
            shown = value / size
            return f"{shown:.0f}{letter}" if shown >= 100 else f"{shown:.1f}{letter}"
    return number(value)


def duration(seconds: float | None) -> str:
    """As in "340 ms", "4.2 s", "3 min 20 s", "3 d 4 h"; of what is not known an en dash."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return f"{seconds * THOUSAND:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    for size, name, next_size, next_name in (
        (MINUTE, "min", 1, "s"),
        (HOUR, "h", MINUTE, "min"),
        (DAY, "d", HOUR, "h"),
    ):
        if size == DAY or seconds < size * (60 if size == MINUTE else 24):
            whole, rest = divmod(int(seconds), size)
            part = rest // next_size
            return f"{whole} {name} {part} {next_name}" if part else f"{whole} {name}"
    raise AssertionError("a day is the last")


def since(moment: datetime | None, now: datetime | None = None) -> str:
    """As in "3 min ago" or "in 20 s"; of what is not known an en dash."""
    if moment is None:
        return UNKNOWN
    now = now or (datetime.now(UTC) if timezone.is_aware(moment) else timezone.now())
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    size = f"{abs(seconds):.0f} s" if abs(seconds) < MINUTE else _coarse(abs(seconds))
    return f"{size} ago" if seconds > 0 else f"in {size}"


def exactly(moment: datetime | None) -> str:
    """As in "2025-03-01 12:00:05 UTC", in the current time zone."""
    if moment is None:
        return ""
    if timezone.is_aware(moment):
        moment = timezone.localtime(moment)
    return f"{moment:%Y-%m-%d %H:%M:%S %Z}".strip()


def percent(share: float | None) -> str:
    """A share of 1 as in "2.5 %"."""
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def plural(count: int, one: str, many: str = "") -> str:
    """As in "1 job", "2 jobs"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _coarse(seconds: float) -> str:
    if seconds < HOUR:
        return f"{seconds // MINUTE:.0f} min"
    if seconds < 2 * DAY:
        return f"{seconds // HOUR:.0f} h"
    return f"{seconds // DAY:.0f} d"
