"""Lay out texts in a number of columns of a terminal: fit, wrap, tables.

All texts from jobs pass through here, and are returned without control characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from stoker.values.text import shown_text

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
GAP = "  "
COMFORTABLE = 18
"""If a table is too wide, its columns of text are narrowed, but not below this width. If that is
not enough, columns are left out, and then texts are narrowed to NARROWEST."""
NARROWEST = 8
WORD = re.compile(r"( *)([^ ]+)")
INDENT = 2
"""Columns by which the rest of a wrapped line is indented."""


def width_of(text: str) -> int:
    """Return the number of columns that a terminal needs for a text."""
    return len(text) if text.isascii() else sum(map(_columns, text))


@lru_cache(4096)
def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def one_line(text: str) -> str:
    """Return a text as one line without control characters."""
    return " ".join(shown_text(text).split())


def fit(text: str, width: int, *, keeps_end: bool = False) -> str:
    """Return a line that is at most so wide. If it must be cut, an ellipsis marks the place.

    Args:
        keeps_end: Cut the beginning, because the end says more, as in a dotted path.
    """
    text = shown_text(text).replace("\n", " ").expandtabs(4)
    if width_of(text) <= width:
        return text
    if keeps_end:
        return ELLIPSIS + _beginning(text[::-1], width - 1)[::-1]
    return _beginning(text, width - 1).rstrip() + ELLIPSIS


def _beginning(text: str, width: int, start: int = 0) -> str:
    """Return the part of a text from ``start`` that fits in the width."""
    for at in range(start, len(text)):
        width -= _columns(text[at])
        if width < 0:
            return text[start:at]
    return text[start:]


def pad(text: str, width: int, *, is_right: bool = False) -> str:
    """Fill a text with spaces up to this width."""
    space = " " * (width - width_of(text))
    return space + text if is_right else text + space


def wrap(text: str, width: int) -> Iterator[str]:
    """Break each line of a text between words. Words that are wider than a line are cut, and an
    ellipsis marks the place."""
    for line in shown_text(text).expandtabs(4).split("\n"):
        if width_of(line) <= width:
            yield line.rstrip()
        else:
            spaces = " " * min(len(line) - len(line.lstrip()), width // 2)
            yield from _wrapped(WORD.findall(line.strip()), spaces, width)


def _wrapped(words: Sequence[tuple[str, str]], spaces: str, width: int) -> Iterator[str]:
    """Wrap words to a width, and yield the lines. Each word comes with the spaces before it."""
    line, further = spaces, spaces + " " * INDENT
    for between, word in words:
        if width_of(line + between + word) <= width:
            line += between + word
            continue
        if line.strip():
            yield line
            line = further
        at, columns = 0, width_of(word)
        while width_of(line) + columns > width:
            piece = _beginning(word, max(1, width - width_of(line) - 1), at) or word[at]
            yield line + piece + ELLIPSIS
            line, at, columns = further, at + len(piece), columns - width_of(piece)
        line += word[at:]
    yield line.rstrip()


class Heading(NamedTuple):
    """A column of a table."""

    name: str
    rank: int = 0
    """Columns with the highest rank are left out first if the table is too wide; 0 = never."""
    is_text: bool = False
    """Whether the column is aligned left, and its texts may be shortened."""
    keeps_end: bool = False
    """Whether the ends of its texts say more than the beginnings."""


def table(headings: Sequence[Heading], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return the lines of a table, headings first. Leave out columns that have a rank if they are
    empty, or if the table is too wide."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [
        max(width_of(text) for text in (one.name, *(row[at] for row in cells)))
        for at, one in enumerate(headings)
    ]
    shown = [
        at
        for at, one in enumerate(headings)
        if not (cells and one.rank) or any(row[at] for row in cells)
    ]

    def excess() -> int:
        return sum(widths[at] for at in shown) + len(GAP) * (len(shown) - 1) - width

    def shrink(least: int) -> None:
        while excess() > 0:
            texts = [at for at in shown if headings[at].is_text and widths[at] > least]
            if not texts:
                return
            widths[max(texts, key=widths.__getitem__)] -= 1

    shrink(COMFORTABLE)
    while excess() > 0 and any(headings[at].rank for at in shown):
        shown.remove(max(reversed(shown), key=lambda at: headings[at].rank))
    shrink(NARROWEST)

    def line_of(row: Sequence[str]) -> str:
        return GAP.join(_cell(row[at], headings[at], widths[at]) for at in shown).rstrip()

    return [line_of([one.name for one in headings]), *map(line_of, cells)]


def _cell(text: str, heading: Heading, width: int) -> str:
    fitted = fit(text, width, keeps_end=heading.keeps_end)
    return pad(fitted, width, is_right=not heading.is_text)
