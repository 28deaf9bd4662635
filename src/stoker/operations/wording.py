"""Numbers, times and values as text for people."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf
from pprint import pformat
from typing import Any

from django.utils import timezone

MINUTE, HOUR, DAY = 60, 3600, 86400
UNKNOWN = "\N{EN DASH}"
STEPS = ((10**9, "bn"), (10**6, "m"), (10**3, "k"))
UNITS = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s"))
ROUNDED = ((1, "s", 60), (MINUTE, "min", 60), (HOUR, "h", 48), (DAY, "d", inf))
"""Seconds of a unit, its name, and the number from which the next unit is used."""
LONGEST_VALUE = 20_000
WIDTH = 100


def number(value: float | None) -> str:
    """Return ``12,345``, or an en dash for None."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def short_number(value: float | None) -> str:
    """Return ``12.3k``, or an en dash for None."""
    if value is None:
        return UNKNOWN
    for size, letter in STEPS:
        if value >= size:
            shown = value / size
            return f"{shown:.0f}{letter}" if shown >= 100 else f"{shown:.1f}{letter}"
    return number(value)


def duration(seconds: float | None) -> str:
    """Return ``340 ms``, ``4.2 s``, ``3 min 20 s`` or ``3 d 4 h``, or an en dash for None."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    place = next(place for place, (size, _) in enumerate(UNITS) if seconds >= size)
    rest, parts = int(seconds), []
    for size, unit in UNITS[place : place + 2]:
        count, rest = divmod(rest, size)
        parts += [f"{count} {unit}"] if count else []
    return " ".join(parts)


def since(moment: datetime | None) -> str:
    """Return ``3 min ago`` or ``in 20 s``, or an en dash for None."""
    if moment is None:
        return UNKNOWN
    now = datetime.now(UTC) if timezone.is_aware(moment) else timezone.now()
    seconds = (now - moment).total_seconds()
    size = abs(seconds)
    if size < 1:
        return "now"
    # dashboard.js does the same
    counts = ((round(size / unit), name, most) for unit, name, most in ROUNDED)
    text = next(f"{count} {name}" for count, name, most in counts if count < most)
    return f"{text} ago" if seconds > 0 else f"in {text}"


def exactly(moment: datetime | None) -> str:
    """Return ``2025-03-01 12:00:05 UTC`` in the current time zone, or "" for None."""
    if moment is None:
        return ""
    if timezone.is_aware(moment):
        moment = timezone.localtime(moment)
    return f"{moment:%Y-%m-%d %H:%M:%S %Z}".strip()


def percent(share: float | None) -> str:
    """Return a share of 1 as ``2.5 %``, or an en dash for None."""
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def value_text(value: Any) -> str:
    """Return a value as Python writes it, cut after 20,000 characters."""
    text = pformat(value, width=WIDTH, sort_dicts=False)
    if len(text) <= LONGEST_VALUE:
        return text
    return f"{text[:LONGEST_VALUE]}\N{HORIZONTAL ELLIPSIS} ({len(text):,} characters)"


def mebibytes(size: int) -> str:
    """Return ``12 MiB``."""
    return f"{size / 2**20:,.0f} MiB"


def first_line(text: str, longest: int = 120) -> str:
    """Return the first line of a text, shortened to ``longest`` characters."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= longest else f"{line[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"
