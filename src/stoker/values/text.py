"""Texts that databases, terminals and JSON accept, and values as such texts."""

from __future__ import annotations

import base64
import re
from datetime import datetime
from typing import Any

UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""Control characters except tabs and line feeds, bidirectional marks, and lone surrogates."""

SHOWN = re.compile(r'(<textarea\b[^>]*>[^<]*)|>[^<]+|\b(?:title|aria-label)="[^"]*"')
"""Pattern of the texts that a page shows. The group matches the text of a text area, which is left
as it is because the form sends it back."""

LONGEST_WHOLE_BITS = 4000
"""A longer whole number is shown as its length."""


def shown_text(text: str) -> str:
    """Replace control characters and bidirectional formatting characters with escapes, so that a
    text cannot change how the text around it is displayed. Tabs and line feeds are kept."""
    if text.isprintable():
        return text
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def shown_line(text: str) -> str:
    """Do the same as ``shown_text``, and also replace line feeds, so that a text cannot look like
    several entries of a log."""
    return shown_text(text).replace("\n", "\\n")


def shown_html(page: str) -> str:
    """Do the same as ``shown_text`` to the texts of a page: those between tags, and the attributes
    that browsers show or read out. Values that forms send back are kept."""
    if not UNSAFE.search(page):
        return page
    return SHOWN.sub(lambda found: found[1] or shown_text(found[0]), page)


def shown_json(text: str) -> str:
    """Do the same as ``shown_text`` to a JSON text. The result is valid JSON."""
    if text.isprintable():
        return text
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def stored_text(text: str | None, most: int) -> str:
    """Replace NUL characters and lone surrogates by escapes, and cut the text.

    Args:
        text: None = an empty text.
        most: maximum number of characters.
    """
    clean = str("" if text is None else text).replace("\x00", "\\x00")
    return clean.encode("utf-8", "backslashreplace").decode("utf-8")[:most]


def plain(value: Any) -> Any:
    """Return a value that can be written as JSON. Values that JSON cannot represent become text."""
    if value is None or isinstance(value, bool | str):
        return _encodable(value) if isinstance(value, str) else value
    if isinstance(value, int):
        fits = value.bit_length() < LONGEST_WHOLE_BITS
        return int(value) if fits else f"a number of {value.bit_length()} bits"
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, dict):
        return {_encodable(str(key)): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, set | frozenset):  # each process iterates over it in its own order
        return sorted(map(plain, value), key=repr)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    try:
        return _encodable(str(value))
    except Exception:  # noqa: BLE001 - anybody's own class
        return f"a {type(value).__name__}"


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON forbids, by question marks."""
    return text.encode("utf-8", "replace").decode()


def first_line_of(error: BaseException) -> str:
    """Return the first line of the message, or the class if there is no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def plural(count: int, one: str, many: str = "") -> str:
    """Return ``1 job`` or ``2 jobs``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
