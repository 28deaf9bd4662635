"""A workflow as boxes and arrows with coordinates, which a template draws as SVG.

A chain goes from left to right, a group from top to bottom in its own frame. If a group is large,
only some members are drawn, failed ones first, and the others are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from stoker.models import Step

BOX, LINE = 172.0, 40.0
GAP_ACROSS, GAP_DOWN = 34.0, 12.0
FRAME, HEAD = 12.0, 20.0
MOST_MEMBERS = 8
LONGEST_LABEL = 25
WORTH = ("FAILED", "CANCELLED", "ENQUEUED", "STARTED", "UNDOING", "PENDING", "HELD", "SUCCESSFUL")
"""States of members; those of the first state are drawn first."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box for one task, or for a number of members of a group."""

    x: float
    y: float
    label: str
    note: str
    state: str
    title: str
    job_id: UUID | None = None
    width: float = BOX
    height: float = LINE


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame around a group."""

    x: float
    y: float
    width: float
    height: float
    label: str
    state: str


@dataclass(slots=True)
class Graph:
    """A complete drawing."""

    width: float = 0.0
    height: float = 0.0
    boxes: list[Box] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    edges: list[str] = field(default_factory=list)
    """SVG paths."""


@dataclass(frozen=True, slots=True)
class _Size:
    width: float
    height: float


def drawn(steps: Iterable[Step], counts: Mapping[UUID, Mapping[str, int]]) -> Graph:
    """Return the drawing of a workflow.

    Args:
        steps: Steps of one workflow, including the outermost.
        counts: Group -> state -> number of members, for groups of which members are missing in
            ``steps``.
    """
    return _Drawing(list(steps), counts).graph()


class _Drawing:
    def __init__(self, steps: Sequence[Step], counts: Mapping[UUID, Mapping[str, int]]) -> None:
        self._graph = Graph()
        self._counts = counts
        self._below: dict[UUID | None, list[Step]] = {}
        for step in steps:
            self._below.setdefault(step.parent_id, []).append(step)
        for members in self._below.values():
            members.sort(key=lambda one: (one.role != Step.Role.STEP, one.position, one.pk))

    def graph(self) -> Graph:
        roots = self._below.get(None, [])
        if roots:
            size = self._draw(roots[0], 1.0, 1.0)
            self._graph.width, self._graph.height = size.width + 2, size.height + 2
        return self._graph

    def _draw(self, step: Step, x: float, y: float) -> _Size:
        """Draw a step with all steps below it. Return the size of the drawing."""
        members = [one for one in self._below.get(step.pk, []) if one.role == Step.Role.STEP]
        company = [one for one in self._below.get(step.pk, []) if one.role != Step.Role.STEP]
        if step.kind == Step.Kind.TASK:
            size = self._draw_task(step, members, x, y)
        elif step.kind in (Step.Kind.GROUP, Step.Kind.MAP):
            size = self._draw_group(step, members, x, y)
        else:
            size = self._draw_chain(members, x, y)
        for one in company:
            below = self._draw(one, x + GAP_ACROSS / 2, y + size.height + GAP_DOWN)
            height = size.height + GAP_DOWN + below.height
            size = _Size(max(size.width, below.width + GAP_ACROSS / 2), height)
        return size

    def _draw_task(self, step: Step, members: Sequence[Step], x: float, y: float) -> _Size:
        self._graph.boxes.append(_box(step, x, y))
        if not members:
            return _Size(BOX, LINE)
        added = self._draw_chain(members, x + GAP_ACROSS, y + LINE + GAP_DOWN)
        down = LINE / 2 + GAP_DOWN
        self._graph.edges.append(f"M{x + 12:.0f} {y + LINE:.0f}v{down:.0f}h{GAP_ACROSS - 12:.0f}")
        return _Size(max(BOX, GAP_ACROSS + added.width), LINE + GAP_DOWN + added.height)

    def _draw_chain(self, members: Sequence[Step], x: float, y: float) -> _Size:
        """Draw the steps of a chain from left to right, with arrows. Return the size."""
        across, height = 0.0, LINE
        for number, step in enumerate(members):
            if number:
                middle = y + LINE / 2
                start = x + across
                self._graph.edges.append(
                    f"M{start:.0f} {middle:.0f}h{GAP_ACROSS:.0f}m-6 -4l6 4l-6 4"
                )
                across += GAP_ACROSS
            size = self._draw(step, x + across, y)
            across, height = across + size.width, max(height, size.height)
        return _Size(max(across, BOX if not members else 0), height)

    def _draw_group(self, step: Step, members: Sequence[Step], x: float, y: float) -> _Size:
        """Draw the members of a group from top to bottom, in a frame. Return the size."""
        counted = self._counts.get(step.pk) or Counter(one.state for one in members)
        total = sum(counted.values())
        first = sorted(members, key=lambda one: (WORTH.index(one.state), one.position))
        shown = sorted(first[:MOST_MEMBERS], key=lambda one: one.position)
        down, width = HEAD, BOX
        for one in shown:
            size = self._draw(one, x + FRAME, y + down)
            down, width = down + size.height + GAP_DOWN, max(width, size.width)
        if total > len(shown):
            rest = Counter(counted)
            rest.subtract(Counter(one.state for one in shown))
            self._graph.boxes.append(_counted_box(rest, x + FRAME, y + down))
            down += LINE + GAP_DOWN
        height, width = down - GAP_DOWN + FRAME, width + 2 * FRAME
        label = f"{step.label or step.kind} of {total:,}"
        self._graph.frames.append(Frame(x, y, width, height, _short(label), step.state))
        return _Size(width, height)


def _box(step: Step, x: float, y: float) -> Box:
    name = step.label.rpartition(".")[2] or step.kind
    note = step.state.lower()
    if step.role != Step.Role.STEP:
        note = f"{'undoes it' if step.role == Step.Role.UNDO else 'if it fails'}: {note}"
    elif step.is_optional:
        note = f"optional: {note}"
    job_id = step.job_id if step.state not in (Step.State.PENDING, Step.State.HELD) else None
    return Box(x, y, _short(name), note, step.state, f"{step.label}: {note}", job_id)


def _counted_box(rest: Mapping[str, int], x: float, y: float) -> Box:
    left = {state: number for state, number in rest.items() if number > 0}
    told = ", ".join(f"{number:,} {state.lower()}" for state, number in sorted(left.items()))
    state = next((one for one in WORTH if one in left), "")
    return Box(x, y, f"and {sum(left.values()):,} more", _short(told, 28), state, told)


def _short(text: str, most: int = LONGEST_LABEL) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
