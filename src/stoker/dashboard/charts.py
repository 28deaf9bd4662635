"""Charts: where each bar and line is, for the templates to draw as SVG. No script, no inline style.

All are drawn in a box of ``WIDTH`` by ``HEIGHT``, which the style sheet stretches; words stand
beside it. The same numbers are in a table below each, for whoever does not see the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django.utils import timezone

from stoker.metrics import Point
from stoker.operations import wording as words

from .spans import DAY, Span

WIDTH, HEIGHT = 600.0, 120.0
GAP = 0.18
"""Of a bar's width, what is left free."""


@dataclass(frozen=True, slots=True)
class Part:
    """One colour of a bar."""

    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """What one point of the history shows."""

    x: float
    """Where its column begins, for what shows the sentence."""
    width: float
    sentence: str
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """A line through several points; where nothing is known it is interrupted."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture, with the words that belong to it."""

    title: str
    about: str
    """What it counts."""
    summary: str
    """What it shows, in a sentence."""
    top: str
    """What the upper edge stands for."""
    first: str
    """Where time begins; it ends now."""
    bars: tuple[Bar, ...] = ()
    lines: tuple[Line, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    """Class and name of each colour."""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = field(default=())
    """The table."""
    width: float = WIDTH
    height: float = HEIGHT


def throughput_chart(points: Sequence[Point], span: Span) -> Chart:
    """Jobs that ended, by how."""
    kinds = (("good", "successful"), ("bad", "failed"), ("held", "cancelled"))
    top = max((point.figures.finished for point in points), default=0)
    bars = []
    for column, point in enumerate(points):
        parts, y = [], HEIGHT
        for kind, name in kinds:
            height = HEIGHT * getattr(point.figures, name) / (top or 1)
            if height:
                y -= height
                parts.append(_part(kind, column, len(points), y, height))
        figures = point.figures
        sentence = (
            f"{_at(point, span)}: {figures.successful:,} succeeded, {figures.failed:,} failed, "
            f"{figures.cancelled:,} cancelled; {figures.retried:,} attempts to be tried again"
        )
        bars.append(_bar(column, len(points), sentence, parts))
    ended = sum(point.figures.finished for point in points)
    failed = sum(point.figures.failed for point in points)
    return Chart(
        title="Throughput",
        about=f"Jobs that ended, in steps of {words.duration(_step(points))}",
        summary=f"{ended:,} jobs ended {span.words}, {failed:,} of them failed.",
        top=f"{top:,}" if top else "",
        bars=tuple(bars),
        keys=tuple(kinds),
        columns=("From", "Succeeded", "Failed", "Cancelled", "Tried again"),
        rows=tuple(
            (
                _at(point, span),
                f"{point.figures.successful:,}",
                f"{point.figures.failed:,}",
                f"{point.figures.cancelled:,}",
                f"{point.figures.retried:,}",
            )
            for point in points
            if point.figures.finished or point.figures.retried
        ),
        first=_first(points, span),
    )


def latency_chart(points: Sequence[Point], span: Span) -> Chart:
    """How long attempts ran."""
    return _times_chart(
        points,
        span,
        "Run time",
        "How long attempts ran, successful or not",
        lambda point: (point.figures.run.p50, point.figures.run.p95),
    )


def wait_chart(points: Sequence[Point], span: Span) -> Chart:
    """How long jobs waited."""
    return _times_chart(
        points,
        span,
        "Wait",
        "From when a job might have started until a worker began",
        lambda point: (point.figures.wait.p50, point.figures.wait.p95),
    )


def backlog_chart(points: Sequence[Point], span: Span) -> Chart:
    """How many jobs waited."""
    seen = [None if point.backlog is None else float(point.backlog.ready) for point in points]
    top = max((one for one in seen if one is not None), default=0.0)
    bars = [
        _bar(
            column,
            len(points),
            f"{_at(point, span)}: "
            + (
                f"{point.backlog.ready:,} ready, the next had waited "
                f"{words.duration(point.backlog.oldest_ready_seconds)}; "
                f"{point.backlog.running:,} running, {point.backlog.deferred:,} deferred, "
                f"{point.backlog.blocked:,} blocked"
                if point.backlog is not None
                else "nobody looked"
            ),
        )
        for column, point in enumerate(points)
    ]
    known = [one for one in points if one.backlog is not None]
    return Chart(
        title="Backlog",
        about="Jobs that were ready: the highest number seen in each step",
        summary=f"At most {top:,.0f} jobs were ready at once {span.words}.",
        top=f"{top:,.0f}" if top else "",
        bars=tuple(bars),
        lines=(Line("area", _area(seen, top)), Line("line", _path(seen, top))),
        columns=("From", "Ready", "Longest wait", "Running", "Deferred", "Blocked"),
        rows=tuple(
            (
                _at(point, span),
                f"{point.backlog.ready:,}",
                words.duration(point.backlog.oldest_ready_seconds),
                f"{point.backlog.running:,}",
                f"{point.backlog.deferred:,}",
                f"{point.backlog.blocked:,}",
            )
            for point in known
            if point.backlog is not None
        ),
        first=_first(points, span),
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
    bars = [
        _bar(
            column,
            len(points),
            f"{_at(point, span)}: half {words.duration(half)}, 95 of 100 {words.duration(high)}",
        )
        for column, (point, (half, high)) in enumerate(zip(points, pairs, strict=True))
    ]
    return Chart(
        title=title,
        about=about,
        summary=f"95 of 100 took at most {words.duration(top or None)} in the slowest step.",
        top=words.duration(top) if top else "",
        bars=tuple(bars),
        lines=(
            Line("line high", _path([high for _, high in pairs], top)),
            Line("line", _path([half for half, _ in pairs], top)),
        ),
        keys=(("p50", "half took no longer"), ("p95", "95 of 100 took no longer")),
        columns=("From", "p50", "p95"),
        rows=tuple(
            (_at(point, span), words.duration(half), words.duration(high))
            for point, (half, high) in zip(points, pairs, strict=True)
            if high is not None
        ),
        first=_first(points, span),
    )


def _bar(column: int, columns: int, sentence: str, parts: Sequence[Part] = ()) -> Bar:
    step = WIDTH / max(1, columns)
    return Bar(round(column * step, 2), round(step, 2), sentence, tuple(parts))


def _part(kind: str, column: int, columns: int, y: float, height: float) -> Part:
    step = WIDTH / columns
    x = (column + GAP / 2) * step
    return Part(kind, round(x, 2), round(y, 2), round(step * (1 - GAP), 2), round(height, 2))


def _path(values: Sequence[float | None], top: float) -> str:
    """Through the middle of each column."""
    step = WIDTH / max(1, len(values))
    parts, is_begun = [], False
    for column, value in enumerate(values):
        if value is None:
            is_begun = False
            continue
        x, y = (column + 0.5) * step, HEIGHT * (1 - value / (top or 1))
        # A lone point would not be seen.
        parts.append(f"{'L' if is_begun else f'M{x - 1:.1f} {y:.1f}L'}{x:.1f} {y:.1f}")
        is_begun = True
    return "".join(parts)


def _area(values: Sequence[float | None], top: float) -> str:
    """Below the line."""
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


def _step(points: Sequence[Point]) -> float | None:
    return points[0].seconds if points else None
