"""Durations as users write them: "90 s", "10m", "1h30m", "2d", 3600, or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, TypeGuard

UNIT_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)\s*", re.ASCII)


def duration_seconds(value: Any) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: the value is not a duration.
    """
    if isinstance(value, str):
        return _read(value)
    seconds = number_of_seconds(value)
    if seconds is None:
        raise ValueError(PROBLEM)
    return float(seconds)


def number_of_seconds(value: Any) -> float | None:
    """Return a timedelta or a number in seconds; None = the value is neither, such as text."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return seconds if is_number else None


def is_whole(value: Any) -> TypeGuard[int]:
    """Return whether the value is a whole number, and no boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def in_words(seconds: float) -> str:
    """Format a duration in two units: ``1.2 s``, ``3 min 20 s``, ``2 h 5 min``, ``9 d 1 h``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


PROBLEM = 'must be a duration: "90s", "10m", "1h30m", "2d", a number of seconds or a timedelta'
PROBLEM_OF_TEXT = 'must be a duration: "90s", "10m", "1h30m", "2d" or a number of seconds'
"""The problem for users who cannot write a timedelta, as on a command line."""


def _read(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    seconds, position = 0.0, 0
    while match := _PART.match(text, position):
        seconds += float(match[1]) * UNIT_SECONDS[match[2]]
        position = match.end()
    if position == 0 or position < len(text):
        raise ValueError(PROBLEM)
    return seconds
