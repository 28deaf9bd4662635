"""Texts that every database accepts, and that fit a line."""

from __future__ import annotations

import re

UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]"
)


def shown_text(text: str) -> str:
    """Replace control characters and bidirectional formatting characters by escapes, so that a text
    cannot change how the text around it is displayed. Tabs and line feeds are kept."""
    if text.isprintable():
        return text
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def stored_text(text: str | None, most: int) -> str:
    """Replace NUL characters and lone surrogates by escapes, and cut the text.

    Args:
        text: None = an empty text.
        most: maximum number of characters.
    """
    clean = str("" if text is None else text).replace("\x00", "\\x00")
    return clean.encode("utf-8", "backslashreplace").decode("utf-8")[:most]


def first_line_of(error: BaseException) -> str:
    """Return the first line of the message, or the class if there is no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
