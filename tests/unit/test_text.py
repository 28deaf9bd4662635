"""Texts that are safe to show."""

import pytest

from stoker.values.text import shown_text

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "plain\tand\nlines, gr\u00fcezi \u65e5\u672c",
            "plain\tand\nlines, gr\u00fcezi \u65e5\u672c",
        ),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\u202eb\u2066c\ufeff", "a\\u202eb\\u2066c\\ufeff"),
        ("over\rwritten\x9b", "over\\rwritten\\x9b"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert shown_text(text) == shown
