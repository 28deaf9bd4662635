"""Histogram of durations with exponential classes.

Histograms of different periods, tasks and processes can be added, and percentiles read from the
sum. Class 0 ends at 0.1 ms; each further class ends at 2 ** (1/4) times the end of the previous
one, so the error of a percentile is at most a tenth. The last class holds a week or more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from functools import partial

FIRST_SECONDS = 0.0001
PER_DOUBLING = 4
LAST = 130
"""Number of the last class, which begins at about a week."""


def end_of(number: int) -> float:
    """Return the upper bound of a class in seconds."""
    return float(FIRST_SECONDS * 2 ** (number / PER_DOUBLING))


class_of = partial(bisect_left, [end_of(number) for number in range(LAST)])
"""Return the number of the class that contains a duration, given in seconds."""


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """Return a percentile in seconds, or None if nothing was counted.

    Args:
        counts: class -> count.
        share: above 0, at most 1.
    """
    wanted = share * sum(counts.values())
    if not wanted:
        return None
    below = 0
    for number in sorted(counts):
        if below + counts[number] >= wanted:
            start = end_of(number - 1) if number else 0.0
            return start + (end_of(number) - start) * (wanted - below) / counts[number]
        below += counts[number]
    raise AssertionError("a share of the counts is at most their sum")


def written(counts: Mapping[int, int]) -> dict[str, int]:
    """Return the counts with keys that JSON supports."""
    return {str(number): count for number, count in sorted(counts.items())}


def add_written(total: Counter[int], counts: Mapping[str, int] | Mapping[int, int]) -> None:
    """Add counts to a total. Their keys may be those of ``written``."""
    for number, count in counts.items():
        key = int(number)
        total[key] = total.get(key, 0) + count
