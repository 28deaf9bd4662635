"""How long to wait for a lock, and when to look again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta

from stoker.setting_values import seconds

from . import clock

FIRST_SECONDS = 0.01
LONGEST_SECONDS = 0.25
GROWTH = 1.5

Seconds = float | timedelta
"""What users give: a number, or a timedelta."""


def pauses(wait_seconds: float | None) -> Iterator[float]:
    """Pauses that grow, until the time is over, counted from now; None = for ever."""
    return _pauses(float("inf") if wait_seconds is None else clock.now() + wait_seconds)


def _pauses(until: float) -> Iterator[float]:
    longest = FIRST_SECONDS
    while (left := until - clock.now()) > 0:
        # Not all who wait shall look at the same moment.
        yield min(left, random.uniform(longest / 2, longest))  # noqa: S311 - nothing secret
        longest = min(longest * GROWTH, LONGEST_SECONDS)


def checked_seconds(name: str, value: Seconds | None, minimum: float = 0.0) -> float:
    """The seconds in what a user gave.

    Raises:
        ValueError: when it is no time, or too short.
    """
    try:
        return float(seconds(minimum)(value))
    except ValueError as error:
        raise ValueError(f"The {name} of a lock is {value!r}, but it {error}.") from None


def checked_if_given(name: str, value: Seconds | None) -> float | None:
    """The same, where None is a choice."""
    return None if value is None else checked_seconds(name, value)
