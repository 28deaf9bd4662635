"""Charts as bars and lines with coordinates, which templates draw as SVG.

All charts are drawn in a box of ``WIDTH`` by ``HEIGHT``, which the style sheet stretches. A table
below each chart contains the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.utils import timezone

from stoker.inspect.figures import Backlog
from stoker.metrics import Point
from stoker.operations.wording import duration

from .spans import DAY, Span

WIDTH, HEIGHT = 600.0, 120.0
GAP = 0.18
"""Share of a bar's column that is left free."""
OUTCOMES = (("good", "successful"), ("bad", "failed"), ("held", "cancelled"))


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a bar that has one colour."""

    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """The bar of one point of the history."""

    x: float
    """Left edge of the bar's column. The whole column shows the sentence as a tooltip."""
    width: float
    sentence: str
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line through several points, interrupted at points without a value."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart with its texts."""

    title: str
    about: str
    """What is counted or measured, and over which time."""
    summary: str
    """The chart in one sentence, for screen readers."""
    top: str
    """Label of the upper edge: the largest value."""
    first: str
    """Label of the left edge: the earliest time. The right edge is now."""
    bars: tuple[Bar, ...] = ()
    lines: tuple[ChartLine, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    """Class and name of each colour."""
    columns: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    """Rows of the table below the chart."""
    width: float = WIDTH
    height: float = HEIGHT


def throughput_chart(points: Sequence[Point], span: Span) -> Chart:
    """Return the chart of the number of ended jobs, by outcome."""
    top = max((point.figures.finished for point in points), default=0)
    bars, rows = [], []
    for column, point in enumerate(points):
        figures = point.figures
        parts, y = [], HEIGHT
        for kind, name in OUTCOMES:
            height = HEIGHT * getattr(figures, name) / (top or 1)
            if height:
                y -= height
                parts.append(_part(kind, column, len(points), y, height))
        counts = (figures.successful, figures.failed, figures.cancelled, figures.retried)
        successful, failed, cancelled, retried = (f"{count:,}" for count in counts)
        at = _at(point, span)
        sentence = (
            f"{at}: {successful} succeeded, {failed} failed, {cancelled} cancelled; "
            f"{retried} attempts will be retried"
        )
        bars.append(_bar(column, len(points), sentence, parts))
        if figures.finished or figures.retried:
            rows.append((at, successful, failed, cancelled, retried))
    ended = sum(point.figures.finished for point in points)
    failures = sum(point.figures.failed for point in points)
    step = duration(points[0].seconds if points else None)
    return Chart(
        title="Throughput",
        about=f"Jobs that ended, in steps of {step}",
        summary=f"{ended:,} jobs ended {span.words}, {failures:,} of them failed.",
        top=f"{top:,}" if top else "",
        first=_first(points, span),
        bars=tuple(bars),
        keys=OUTCOMES,
        columns=("From", "Succeeded", "Failed", "Cancelled", "Retried"),
        rows=rows,
    )


def latency_chart(points: Sequence[Point], span: Span) -> Chart:
    """Return the chart of the run times of attempts."""
    about = "How long attempts ran, successful or not"
    return _times_chart(
        points, span, "Run time", about, lambda one: (one.figures.run.p50, one.figures.run.p95)
    )


def wait_chart(points: Sequence[Point], span: Span) -> Chart:
    """Return the chart of the waiting times of jobs."""
    about = "From the moment when a job could start until a worker began"
    return _times_chart(
        points, span, "Wait", about, lambda one: (one.figures.wait.p50, one.figures.wait.p95)
    )


def backlog_chart(points: Sequence[Point], span: Span) -> Chart:
    """Return the chart of the number of waiting jobs."""
    seen = [None if point.backlog is None else float(point.backlog.ready) for point in points]
    top = max((one for one in seen if one is not None), default=0.0)
    bars, rows = [], []
    for column, point in enumerate(points):
        at, sentence = _at(point, span), "not measured"
        if point.backlog is not None:
            cells = _backlog_cells(point.backlog)
            sentence = "{} ready, the next had waited {}; {} running, {} deferred, {} blocked"
            sentence = sentence.format(*cells)
            rows.append((at, *cells))
        bars.append(_bar(column, len(points), f"{at}: {sentence}"))
    return Chart(
        title="Backlog",
        about="Jobs that were ready: the highest number seen in each step",
        summary=f"At most {top:,.0f} jobs were ready at once {span.words}.",
        top=f"{top:,.0f}" if top else "",
        first=_first(points, span),
        bars=tuple(bars),
        lines=(ChartLine("area", _area(seen, top)), ChartLine("line", _path(seen, top))),
        columns=("From", "Ready", "Longest wait", "Running", "Deferred", "Blocked"),
        rows=rows,
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
    points: Sequence[Point],
    span: Span,
    title: str,
    about: str,
    times: Callable[[Point], tuple[float | None, float | None]],
) -> Chart:
    pairs = [times(point) for point in points]
    top = max((high for _, high in pairs if high is not None), default=0.0)
    bars, rows = [], []
    for column, (point, (half, high)) in enumerate(zip(points, pairs, strict=True)):
        row = (_at(point, span), duration(half), duration(high))
        bars.append(_bar(column, len(points), "{}: half {}, 95 of 100 {}".format(*row)))
        if high is not None:
            rows.append(row)
    return Chart(
        title=title,
        about=about,
        summary=f"95 of 100 took at most {duration(top or None)} in the slowest step.",
        top=duration(top) if top else "",
        first=_first(points, span),
        bars=tuple(bars),
        lines=(
            ChartLine("line high", _path([high for _, high in pairs], top)),
            ChartLine("line", _path([half for half, _ in pairs], top)),
        ),
        keys=(("p50", "half took no longer"), ("p95", "95 of 100 took no longer")),
        columns=("From", "p50", "p95"),
        rows=rows,
    )


def _bar(column: int, columns: int, sentence: str, parts: Sequence[Part] = ()) -> Bar:
    step = WIDTH / max(1, columns)
    return Bar(round(column * step, 2), round(step, 2), sentence, tuple(parts))


def _part(kind: str, column: int, columns: int, y: float, height: float) -> Part:
    step = WIDTH / columns
    x = (column + GAP / 2) * step
    return Part(kind, round(x, 2), round(y, 2), round(step * (1 - GAP), 2), round(height, 2))


def _path(values: Sequence[float | None], top: float) -> str:
    """Return an SVG path through the middle of each column."""
    step = WIDTH / max(1, len(values))
    parts, is_begun = [], False
    for column, value in enumerate(values):
        if value is None:
            is_begun = False
            continue
        x, y = (column + 0.5) * step, HEIGHT * (1 - value / (top or 1))
        # A single point would be invisible.
        parts.append(f"{'L' if is_begun else f'M{x - 1:.1f} {y:.1f}L'}{x:.1f} {y:.1f}")
        is_begun = True
    return "".join(parts)


def _area(values: Sequence[float | None], top: float) -> str:
    """Return the SVG path of the area below the line."""
    step = WIDTH / max(1, len(values))
    known = [(column + 0.5, value) for column, value in enumerate(values) if value is not None]
    if not known:
        return ""
    line = "".join(f"L{at * step:.1f} {HEIGHT * (1 - v / (top or 1)):.1f}" for at, v in known)
    return f"M{known[0][0] * step:.1f} {HEIGHT}{line}L{known[-1][0] * step:.1f} {HEIGHT}Z"


def _at(point: Point, span: Span) -> str:
    at = timezone.localtime(point.start)
    return f"{at:%a %H:%M}" if span.seconds > DAY else f"{at:%H:%M}"


def _first(points: Sequence[Point], span: Span) -> str:
    return _at(points[0], span) if points else ""
