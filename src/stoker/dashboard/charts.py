"""Charts as bars and lines with coordinates, which templates draw as SVG.

Bars and lines are drawn in a box of ``WIDTH`` by ``HEIGHT``, which the style sheet stretches. Dots
and labels are placed in percent, so they keep their shape. A table below each chart contains the
same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stoker.inspect.figures import Backlog, Times
from stoker.metrics import Point
from stoker.operations.wording import duration
from stoker.values.text import plural

from .axes import TimeAxis, ValueAxis, duration_axis, jobs_axis

WIDTH, HEIGHT = 600.0, 120.0
GAP = 0.18
"""Share of a bar's column that is left free."""
OUTCOMES = (("good", "successful"), ("bad", "failed"), ("held", "cancelled"))
TIMES = ("p99", "p95", "p50")
"""Class and legend of each line of a duration, the highest first."""


@dataclass(frozen=True, slots=True)
class ChartShape:
    """An SVG path with its class: the bars of one colour, a line or an area."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class Dot:
    """A value without neighbours, through which no line can be drawn."""

    kind: str
    x: str
    y: str


@dataclass(frozen=True, slots=True)
class ChartRow:
    """A row of the table below a chart."""

    step: int
    """Number of the step, from 0."""
    head: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart with its texts."""

    title: str
    about: str
    """The counted or measured quantity, and the period."""
    summary: str
    """The chart in one sentence, for screen readers."""
    time: TimeAxis
    values: ValueAxis
    shapes: tuple[ChartShape, ...]
    dots: tuple[Dot, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    """Class and name of each colour."""
    columns: tuple[str, ...] = ()
    rows: Sequence[ChartRow] = ()


def all_charts(axis: TimeAxis) -> list[Chart]:
    """Return the charts of a queue, or of all queues together."""
    return [throughput_chart(axis), backlog_chart(axis), latency_chart(axis), wait_chart(axis)]


def throughput_chart(axis: TimeAxis) -> Chart:
    """Return the chart of the number of ended jobs, by outcome."""
    points = axis.points
    step = duration(axis.step_seconds)
    values = jobs_axis(max((point.figures.finished for point in points), default=0))
    bars: dict[str, list[str]] = {kind: [] for kind, _ in OUTCOMES}
    rows = []
    for column, point in enumerate(points):
        figures = point.figures
        y = HEIGHT
        for kind, name in OUTCOMES:
            height = HEIGHT * getattr(figures, name) / values.top
            if height:
                y -= height
                bars[kind].append(_bar(column, len(points), y, height))
        if figures.finished or figures.retried:
            counts = (figures.successful, figures.failed, figures.cancelled, figures.retried)
            cells = tuple(f"{count:,}" for count in counts)
            rows.append(ChartRow(column, axis.name_of(point), cells))
    ended = sum(point.figures.finished for point in points)
    failures = sum(point.figures.failed for point in points)
    return Chart(
        title="Throughput",
        about=f"Jobs that ended, in steps of {step}",
        summary=f"{plural(ended, 'job')} ended {axis.span.words}, {failures:,} of them failed.",
        time=axis,
        values=values,
        shapes=tuple(ChartShape(kind, "".join(paths)) for kind, paths in bars.items() if paths),
        keys=OUTCOMES,
        columns=("From", "Succeeded", "Failed", "Cancelled", "Retried"),
        rows=rows,
    )


def latency_chart(axis: TimeAxis) -> Chart:
    """Return the chart of the run times of attempts."""
    about = "How long attempts ran, successful or not"
    return _times_chart(axis, "Run time", about, lambda point: point.figures.run)


def wait_chart(axis: TimeAxis) -> Chart:
    """Return the chart of the waiting times of jobs."""
    about = "From the moment when a job could start until a worker began"
    return _times_chart(axis, "Wait", about, lambda point: point.figures.wait)


def backlog_chart(axis: TimeAxis) -> Chart:
    """Return the chart of the number of waiting jobs."""
    points = axis.points
    seen = [None if point.backlog is None else float(point.backlog.ready) for point in points]
    largest = max((one for one in seen if one is not None), default=0.0)
    values = jobs_axis(largest)
    rows = [
        ChartRow(column, axis.name_of(point), _backlog_cells(point.backlog))
        for column, point in enumerate(points)
        if point.backlog is not None
    ]
    return Chart(
        title="Backlog",
        about="Jobs that were ready: the highest number seen in each step",
        summary=f"At most {largest:,.0f} jobs were ready at once {axis.span.words}.",
        time=axis,
        values=values,
        shapes=(
            ChartShape("area", _area(seen, values.top)),
            ChartShape("line p50", _line(seen, values.top)),
        ),
        dots=_dots("p50", seen, values.top),
        columns=("From", "Ready", "Longest wait", "Running", "Deferred", "Blocked"),
        rows=rows if largest else (),
    )


def _backlog_cells(seen: Backlog) -> tuple[str, ...]:
    wait = duration(seen.oldest_ready_seconds)
    return (
        f"{seen.ready:,}",
        wait,
        f"{seen.running:,}",
        f"{seen.deferred:,}",
        f"{seen.blocked:,}",
    )


def _times_chart(
    axis: TimeAxis, title: str, about: str, times_of: Callable[[Point], Times]
) -> Chart:
    measured = [times_of(point) for point in axis.points]
    largest = max((one.p99 for one in measured if one.p99 is not None), default=0.0)
    slowest = max((one.p95 for one in measured if one.p95 is not None), default=None)
    values = duration_axis(largest)
    lines = {kind: [getattr(one, kind) for one in measured] for kind in TIMES}
    rows = [
        ChartRow(
            column, axis.name_of(point), tuple(map(duration, (times.p50, times.p95, times.p99)))
        )
        for column, (point, times) in enumerate(zip(axis.points, measured, strict=True))
        if times.p99 is not None
    ]
    return Chart(
        title=title,
        about=about,
        summary=f"95 of 100 took at most {duration(slowest)} in the slowest step.",
        time=axis,
        values=values,
        shapes=tuple(ChartShape(f"line {kind}", _line(lines[kind], values.top)) for kind in TIMES),
        dots=tuple(dot for kind in TIMES for dot in _dots(kind, lines[kind], values.top)),
        keys=tuple((kind, kind) for kind in TIMES[::-1]),
        columns=("From", "p50", "p95", "p99"),
        rows=rows,
    )


def _bar(column: int, columns: int, y: float, height: float) -> str:
    step = WIDTH / columns
    x, width = (column + GAP / 2) * step, step * (1 - GAP)
    return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"


def _line(values: Sequence[float | None], top: float) -> str:
    """Return an SVG path through the middle of each column, interrupted at None."""
    step = WIDTH / max(1, len(values))
    return "".join(
        f"{'M' if at == 0 else 'L'}{(column + 0.5) * step:.1f} {_height(value, top):.1f}"
        for run in _runs(values)
        for at, (column, value) in enumerate(run)
    )


def _area(values: Sequence[float | None], top: float) -> str:
    """Return the SVG path of the area below the line."""
    step = WIDTH / max(1, len(values))
    parts = []
    for run in _runs(values):
        line = "".join(f"L{(at + 0.5) * step:.1f} {_height(value, top):.1f}" for at, value in run)
        first, last = (run[0][0] + 0.5) * step, (run[-1][0] + 0.5) * step
        parts.append(f"M{first:.1f} {HEIGHT:g}{line}L{last:.1f} {HEIGHT:g}Z")
    return "".join(parts)


def _dots(kind: str, values: Sequence[float | None], top: float) -> tuple[Dot, ...]:
    """Return a dot for each value whose neighbours are None."""
    alone = [run[0] for run in _runs(values) if len(run) == 1]
    return tuple(
        Dot(kind, f"{100 * (column + 0.5) / len(values):.2f}%", f"{_height(value, top):.1f}")
        for column, value in alone
    )


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Return the columns and values between the gaps."""
    runs: list[list[tuple[int, float]]] = [[]]
    for column, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((column, value))
    return [run for run in runs if run]


def _height(value: float, top: float) -> float:
    """Return the distance from the upper edge."""
    return HEIGHT * (1 - value / top)
