"""The axes of charts: round steps of values, and round times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple

from django.utils import timezone

from stoker.metrics import Point
from stoker.models import Deploy
from stoker.operations.wording import duration, exactly, short_number

from .context import DashboardContext
from .spans import DAY, Span

MOST_INTERVALS = 4
STEP_SECONDS = (
    *(digit * 10.0**power for power in range(-4, 1) for digit in (1, 2, 5)),
    10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0,
    *(3600.0 * hours for hours in (1, 2, 6, 12)),
)  # fmt: skip
"""Round steps of a duration; longer ones are whole days."""
NARROW_EVERY = 2
"""On a narrow screen, only one of this many times is shown."""


class AxisTick(NamedTuple):
    """A labelled position on an axis."""

    at: str
    """Share of the axis, such as ``12.5%``. Vertical axes count from the top."""
    label: str
    is_minor: bool = False
    """Whether narrow screens leave out the label."""


@dataclass(frozen=True, slots=True)
class ValueAxis:
    """A vertical axis from 0 to ``top``, a round value that no point exceeds."""

    top: float
    ticks: tuple[AxisTick, ...]


class _Rule(NamedTuple):
    """The times that are labelled in a chart of some period."""

    seconds: int
    is_round: Callable[[datetime], bool]
    label: Callable[[datetime], str]


RULES = {
    "hour": _Rule(600, lambda at: True, lambda at: f"{at:%H:%M}"),
    "day": _Rule(1800, lambda at: not at.minute and at.hour % 4 == 0, lambda at: f"{at:%H:%M}"),
    "week": _Rule(1800, lambda at: not at.minute and not at.hour, lambda at: f"{at:%a} {at.day}"),
}


@dataclass(frozen=True)
class TimeAxis:
    """The points of a history in time, with round times and the moments of new code."""

    points: Sequence[Point]
    span: Span
    jobs: str
    """URL of the list of the jobs that the chart counts, without a period."""
    deploys: Sequence[Deploy] = ()

    @property
    def begin(self) -> int:
        """Return the left edge: seconds since 1970."""
        return int(self.points[0].start.timestamp()) if self.points else 0

    @property
    def step_seconds(self) -> int:
        return self.points[0].seconds if self.points else 1

    @property
    def zone(self) -> str:
        """Return the name of the project's time zone, for scripts."""
        return timezone.get_current_timezone_name()

    @property
    def last_step(self) -> int:
        """Return the number of the last step, from 0."""
        return len(self.points) - 1

    @cached_property
    def ticks(self) -> list[AxisTick]:
        """Return the round times in the project's time zone."""
        rule = RULES[self.span.name]
        ticks: list[AxisTick] = []
        first = -(-self.begin // rule.seconds) * rule.seconds
        for seconds in range(first, self._end, rule.seconds):
            at = timezone.localtime(datetime.fromtimestamp(seconds, UTC))
            if rule.is_round(at):
                is_minor = len(ticks) % NARROW_EVERY == 1
                ticks.append(AxisTick(self._place(seconds), rule.label(at), is_minor))
        return ticks

    @cached_property
    def marks(self) -> list[AxisTick]:
        """Return the moments from which on new code ran."""
        return [
            AxisTick(self._place(seconds), f"new code since {exactly(one.at)}, first on {one.host}")
            for one in self.deploys
            if self.begin <= (seconds := one.at.timestamp()) < self._end
        ]

    def name_of(self, point: Point) -> str:
        """Return the start of a step as text, with a remark if new code began to run in it."""
        at = timezone.localtime(point.start)
        text = f"{at:%a %H:%M}" if self.span.seconds > DAY else f"{at:%H:%M}"
        start = point.start.timestamp()
        ends = start + point.seconds
        is_new = any(start <= one.at.timestamp() < ends for one in self.deploys)
        return f"{text}, new code" if is_new else text

    @property
    def _end(self) -> int:
        return self.begin + len(self.points) * self.step_seconds

    def _place(self, seconds: float) -> str:
        return f"{100 * (seconds - self.begin) / max(1, self._end - self.begin):.2f}%"


def time_axis(
    visit: DashboardContext, span: Span, points: Sequence[Point], **listed: str
) -> TimeAxis:
    """Return the time axis of a history.

    Args:
        listed: filters, such as ``queue``, for the list of jobs that a click on the chart opens.
    """
    deploys = Deploy.objects.using(visit.database).of(visit.settings.cluster, span.since)
    return TimeAxis(points, span, visit.at("jobs", **listed), list(deploys))


def jobs_axis(largest: float) -> ValueAxis:
    """Return the axis of a number of jobs, with the unit at the top."""
    power = 10.0 ** math.floor(math.log10(max(1.0, largest / MOST_INTERVALS)))
    step = next(
        digit * power for digit in (1, 2, 5, 10) if largest <= digit * power * MOST_INTERVALS
    )
    axis = _value_axis(largest, step, lambda value: short_number(value).replace(".0", ""))
    top, *rest = axis.ticks
    unit = "job" if axis.top == 1 else "jobs"
    return ValueAxis(axis.top, (top._replace(label=f"{top.label} {unit}"), *rest))


def duration_axis(largest: float) -> ValueAxis:
    """Return the axis of a duration in seconds."""
    days = DAY * max(1, math.ceil(largest / MOST_INTERVALS / DAY))
    step = next((one for one in STEP_SECONDS if largest <= one * MOST_INTERVALS), float(days))
    return _value_axis(largest, step, _round_duration)


def _value_axis(largest: float, step: float, label: Callable[[float], str]) -> ValueAxis:
    intervals = max(1, math.ceil(largest / step - 1e-9))
    ticks = [
        AxisTick(f"{100 * (intervals - number) / intervals:.1f}%", label(number * step))
        for number in range(intervals, -1, -1)
    ]
    return ValueAxis(intervals * step, tuple(ticks))


def _round_duration(seconds: float) -> str:
    if seconds == 0:
        return "0"
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    return f"{seconds:g} s" if seconds < 60 else duration(seconds)
