"""The lines that a transport keeps apart: one for each queue, and in it three for the priorities.

A server that knows no priorities has these instead: more urgent lines are asked first. Within one,
its own order counts until a job is in the store.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

BANDS = ("high", "usual", "low")


class Line(NamedTuple):
    """One line."""

    band: str
    queue: str


def band_of(priority: int) -> str:
    if not priority:
        return BANDS[1]
    return BANDS[0] if priority > 0 else BANDS[2]


def lines_of(queues: Iterable[str]) -> list[Line]:
    """Every line that these queues may have."""
    return [Line(band, queue) for queue in dict.fromkeys(queues) for band in BANDS]


def in_turn(lines: Collection[Line], turn: int) -> Iterator[Line]:
    """Urgent ones first; of equally urgent ones another one first each time."""
    urgent_first = sorted(lines, key=lambda line: (BANDS.index(line.band), line.queue))
    for _, some in itertools.groupby(urgent_first, key=lambda line: line.band):
        alike = list(some)
        start = turn % len(alike)
        yield from alike[start:] + alike[:start]
