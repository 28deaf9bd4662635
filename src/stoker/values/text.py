"""Texts in a form that every database accepts."""

from __future__ import annotations


def stored_text(text: str | None, most: int) -> str:
    """Replace NUL characters and lone surrogates by escapes, and cut the text.

    Args:
        text: None = an empty text.
        most: maximum number of characters.
    """
    clean = str("" if text is None else text).replace("\x00", "\\x00")
    return clean.encode("utf-8", "backslashreplace").decode("utf-8")[:most]
