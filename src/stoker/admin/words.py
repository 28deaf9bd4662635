"""Moments, times and values as the pages show them."""

from __future__ import annotations

from datetime import UTC, datetime
from pprint import pformat
from typing import Any

from django.utils import timezone

UNKNOWN = "\N{EN DASH}"
LONGEST_SHOWN = 20_000
WIDTH = 100
STEPS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def shown_moment(moment: datetime | None) -> str:
    """As in "2030-01-31 06:00:05 UTC", in the current time zone."""
    if moment is None:
        return UNKNOWN
    if timezone.is_aware(moment):
        moment = timezone.localtime(moment)
    return f"{moment:%Y-%m-%d %H:%M:%S %Z}".strip()


def duration(seconds: float | None) -> str:
    """As in "340 ms", "4.2 s", "3 min 20 s", "2 d 4 h"."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    parts = []
    for size, name in STEPS:
        number, whole = divmod(whole, size)
        parts += [f"{number} {name}"] if number else []
    return " ".join(parts[:2])


def ago(moment: datetime | None) -> str:
    """As in "3 min ago" or "in 20 s"."""
    if moment is None:
        return UNKNOWN
    now = datetime.now(UTC) if timezone.is_aware(moment) else timezone.now()
    seconds = (now - moment).total_seconds()
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


def shown(value: Any) -> str:
    """A value as Python would write it, of bearable length."""
    text = pformat(value, width=WIDTH, sort_dicts=False)
    if len(text) <= LONGEST_SHOWN:
        return text
    return f"{text[:LONGEST_SHOWN]}\N{HORIZONTAL ELLIPSIS} ({len(text):,} characters)"


def first_line(text: str, most: int = 120) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= most else f"{line[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
