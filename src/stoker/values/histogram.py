"""Times counted in classes that grow with them, so that those of any two stretches of time, tasks
or processes can be added up, and a percentile of the whole be told.

Class 0 is up to 0.1 ms; from there on each ends at 2 ** (1/4) times the end of the one before, so a
percentile is told to within a tenth of itself. The last class is all of a week or more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from functools import partial

FIRST_SECONDS = 0.0001
PER_DOUBLING = 4
LAST = 130
"""Of the classes: it begins at about a week."""


def end_of(number: int) -> float:
    """The longest time of a class, in seconds."""
    return float(FIRST_SECONDS * 2 ** (number / PER_DOUBLING))


class_of = partial(bisect_left, [end_of(number) for number in range(LAST)])
"""In which class a time in seconds is counted."""


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """The time that this share of those counted did not exceed, in seconds; None of none.

    Args:
        counts: class -> how many.
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
    raise AssertionError("all of them are not less than a share of them")


def written(counts: Mapping[int, int]) -> dict[str, int]:
    """As JSON has it."""
    return {str(number): count for number, count in sorted(counts.items())}


def add_written(total: Counter[int], counts: Mapping[str, int]) -> None:
    """Add what was written down to a total."""
    for number, count in counts.items():
        key = int(number)
        total[key] = total.get(key, 0) + count
