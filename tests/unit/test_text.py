"""Texts that are safe to show."""

import json

import pytest

from stoker.values.text import shown_html, shown_json, shown_text

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
        ("half\ud83d", "half\\ud83d"),
        ("over\rwritten\x9b", "over\\rwritten\\x9b"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert shown_text(text) == shown


def test_unsafe_characters_in_json_become_escapes_of_json() -> None:
    value = {"a\u202e": "b\x7f\x9b\n", "gr\u00fcezi": "\\x7f"}
    shown = shown_json(json.dumps(value, ensure_ascii=False))
    assert shown == '{"a\\u202e": "b\\u007f\\u009b\\n", "gr\u00fcezi": "\\\\x7f"}'
    assert json.loads(shown) == value


def test_texts_of_a_page_are_shown_with_escapes_and_values_of_forms_are_kept() -> None:
    page = (
        '<p title="a\u202e">b\x1b</p><input value="c\u202e"><textarea name="d">e\u202e</textarea>'
    )
    assert shown_html(page) == (
        '<p title="a\\u202e">b\\x1b</p><input value="c\u202e"><textarea name="d">e\u202e</textarea>'
    )
    assert shown_html("<p>plain</p>") == "<p>plain</p>"
