"""What people and tasks say, as every database takes it."""

from __future__ import annotations


def stored_text(text: str | None, most: int) -> str:
    """Without NUL characters and halves of surrogate pairs, which are written out instead, and cut.

    Args:
        text: None = nothing was said.
        most: how many characters are kept.
    """
    clean = str("" if text is None else text).replace("\x00", "\\x00")
    return clean.encode("utf-8", "backslashreplace").decode("utf-8")[:most]
