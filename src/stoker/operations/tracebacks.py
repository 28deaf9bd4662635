"""Split tracebacks into parts, so that pages can fold the frames of Stoker's own code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[1]
MOST_ON_A_PAGE = 20_000
"""Characters of all tracebacks of a page together."""
FRAME = re.compile(r'^ +(?:[|+] +)*File "(.+?)", line \d+')


class TracePart(NamedTuple):
    """Consecutive lines of a traceback."""

    text: str
    own_frames: int
    """Number of frames of Stoker's own code in this part; 0 = the part has other lines."""


def trace_parts(text: str) -> Sequence[TracePart]:
    """Return a traceback in parts: consecutive frames of Stoker's own code are one part.

    If all frames are Stoker's own, nothing is folded: the traceback is one part.
    """
    frames = list(_frames(text.splitlines(keepends=True)))
    if all(is_own is not False for is_own, _ in frames):
        return [TracePart(text, 0)] if text else []
    parts = []
    for is_own, group in groupby(frames, key=lambda frame: frame[0] is True):
        lines = [line for _, line in group]
        parts.append(TracePart("".join(lines), len(lines) if is_own else 0))
    return parts


def fitting(traces: Sequence[str]) -> int:
    """Return how many of the tracebacks fit on a page, at least 1. The newest comes first."""
    lengths = accumulate(map(len, traces))
    return max(1, sum(length <= MOST_ON_A_PAGE for length in lengths))


def _frames(lines: Sequence[str]) -> Sequence[tuple[bool | None, str]]:
    """Return each frame with its source lines, and whether it is Stoker's own. Other lines have
    None instead."""
    found: list[tuple[bool | None, str]] = []
    indent = 0
    for line in lines:
        frame = FRAME.match(line)
        if frame is not None:
            indent = _indent_of(line)
            found.append((is_own_path(frame[1]), line))
        elif found and found[-1][0] is not None and _indent_of(line) > indent:
            is_own, text = found[-1]
            found[-1] = is_own, text + line
        else:
            found.append((None, line))
    return found


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" |+"))


@lru_cache(maxsize=1024)
def is_own_path(path: str) -> bool:
    """Return whether a file is part of Stoker, also on a host where it is installed elsewhere."""
    _, separator, inside = path.replace("\\", "/").rpartition(f"/{PACKAGE.name}/")
    return bool(separator) and ".." not in inside and (PACKAGE / inside).is_file()
