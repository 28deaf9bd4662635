"""The steps of a workflow as bars on a common time axis, which a template draws as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from stoker.inspect.steps import StepSpanKind, TimedStep
from stoker.models import Workflow
from stoker.operations.wording import duration

from .axes import AxisTick, duration_axis

SHORTEST_SECONDS = 0.001
"""Length of the axis of a workflow that took no time."""
OPEN_CLASSES = {StepSpanKind.WAIT: "wait", StepSpanKind.RUN: "now", StepSpanKind.FAILURE: "bad"}
CLASSES = {StepSpanKind.WAIT: "wait", StepSpanKind.RUN: "good", StepSpanKind.FAILURE: "bad"}


class GanttBar(NamedTuple):
    """One bar; its place and length are shares of the axis, such as ``12.5%``."""

    at: str
    length: str
    css_class: str


@dataclass(frozen=True, slots=True)
class GanttRow:
    """The bars of one step."""

    step: TimedStep
    bars: tuple[GanttBar, ...]
    words: str
    """What the bars show, for screen readers."""


@dataclass(frozen=True, slots=True)
class Gantt:
    """The bars of a page of steps."""

    ticks: tuple[AxisTick, ...]
    rows: tuple[GanttRow, ...]


def gantt_of(workflow: Workflow, steps: Sequence[TimedStep], now: datetime) -> Gantt:
    """Return the bars of the steps, from the creation of the workflow to its end or to now.

    Steps may begin before that, because clocks of hosts differ, and end after it.
    """
    spans = [span for step in steps for span in step.spans]
    before = [job.enqueued_at for step in steps for job in step.earlier]
    begin = min((workflow.made_at, *before, *(span.began_at for span in spans)))
    end = max((workflow.finished_at or now, *(span.ended_at for span in spans)))
    axis = duration_axis(max(SHORTEST_SECONDS, (end - begin) / timedelta(seconds=1)))
    top = axis.top
    ticks = tuple(
        AxisTick(f"{100 - float(one.at[:-1]):.1f}%", one.label) for one in reversed(axis.ticks)
    )
    rows = tuple(GanttRow(step, tuple(_bars(step, begin, top)), _words(step)) for step in steps)
    return Gantt(ticks, rows)


def _bars(step: TimedStep, begin: datetime, axis_seconds: float) -> Iterator[GanttBar]:
    """Yield the bars of the earlier jobs, the first one first, and of the newest job."""

    def bar(began_at: datetime, ended_at: datetime, css_class: str) -> GanttBar:
        at = (began_at - begin).total_seconds() / axis_seconds
        length = (ended_at - began_at).total_seconds() / axis_seconds
        return GanttBar(f"{100 * at:.2f}%", f"{100 * length:.2f}%", css_class)

    for job in reversed(step.earlier):
        yield bar(job.enqueued_at, max(job.enqueued_at, job.finished_at), "old")
    for span in step.spans:
        classes = OPEN_CLASSES if span.is_open else CLASSES
        yield bar(span.began_at, span.ended_at, classes[span.kind])


def _words(step: TimedStep) -> str:
    """Return ``waited 1.2 s, ran 3.0 s in 2 attempts``."""
    parts = []
    if step.wait_seconds is not None:
        parts.append(f"waited {duration(step.wait_seconds)}")
    if step.run_seconds is not None:
        parts.append(f"ran {duration(step.run_seconds)}")
    if step.attempts > 1:
        parts.append(f"in {step.attempts} attempts")
    if step.earlier:
        parts.append("after an earlier job")
    return ", ".join(parts) or "has not begun"
