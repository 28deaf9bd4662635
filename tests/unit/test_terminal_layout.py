"""Texts and tables laid out for a terminal of a given width."""

from random import Random

import pytest

from stoker.management.screen import layout
from stoker.management.screen.layout import (
    ELLIPSIS,
    INDENT,
    Heading,
    fit,
    table,
    width_of,
    wrap,
)

pytestmark = pytest.mark.unit

WORDS = (
    "printer",
    "out",
    "of",
    "paper",
    "shop.tasks.charge",
    "a" * 70,
    "日本語",
    "e\u0301te\u0301",
    "x",
)


@pytest.mark.parametrize("width", [10, 20, 58, 78])
def test_wrapped_text_has_whole_words_or_an_ellipsis(width: int, seed: int) -> None:
    random = Random(seed)
    for _ in range(50):
        words = random.choices(WORDS, k=random.randint(1, 20))
        lines = list(wrap(" ".join(words), width))
        assert all(width_of(line) <= width for line in lines)
        shown = [word for line in lines for word in line.split()]
        assert "".join(shown).replace(ELLIPSIS, "") == "".join(words)
        for at, word in enumerate(shown):
            assert word in WORDS or word.endswith(ELLIPSIS) or shown[at - 1].endswith(ELLIPSIS)
        for word in words:
            assert width_of(word) > width - INDENT or shown.count(word) == words.count(word)


def test_long_word_takes_no_more_steps_for_each_character_than_a_short_one() -> None:
    def looks_at(text: str) -> int:
        layout._columns.cache_clear()
        assert "".join(line.strip(f" {ELLIPSIS}") for line in wrap(text, 78)) == text
        return sum(layout._columns.cache_info()[:2])

    assert looks_at("é" * 20_000) < 15 * looks_at("é" * 2_000)


def test_wrapped_traceback_keeps_its_indentation() -> None:
    text = 'Traceback:\n  File "shop/tasks.py", line 7, in charge\n    raise ValueError(a, b)'
    assert list(wrap(text, 30)) == [
        "Traceback:",
        '  File "shop/tasks.py", line',
        "    7, in charge",
        "    raise ValueError(a, b)",
    ]


@pytest.mark.parametrize(
    ("text", "width", "keeps_end", "shown"),
    [
        ("short", 5, False, "short"),
        ("shop.tasks.charge", 10, False, f"shop.task{ELLIPSIS}"),
        ("shop.tasks.charge", 10, True, f"{ELLIPSIS}ks.charge"),
        ("日本語", 5, False, f"日本{ELLIPSIS}"),
        ("a\tb\nc\x1b", 20, False, "a   b c\\x1b"),
        ("\u202eabc", 20, False, "\\u202eabc"),
    ],
)
def test_long_line_is_cut_with_an_ellipsis(
    text: str, width: int, keeps_end: bool, shown: str
) -> None:
    assert fit(text, width, keeps_end=keeps_end) == shown


def test_table_shortens_texts_and_then_leaves_columns_out() -> None:
    headings = [
        Heading("queue", is_text=True),
        Heading("ready"),
        Heading("blocked", 2),
        Heading("running", 1),
    ]
    rows = [("a queue with a long name", "1,000", "7", "2"), ("mail", "3", "0", "1\x1b")]
    assert table(headings, rows, 80) == [
        "queue                     ready  blocked  running",
        "a queue with a long name  1,000        7        2",
        "mail                          3        0    1\\x1b",
    ]
    assert table(headings, rows, 45)[1] == f"a queue with a long{ELLIPSIS}  1,000        7        2"
    assert table(headings, rows, 36)[0] == "queue               ready  running"
    assert table(headings, rows, 25)[1] == f"a queue with a lo{ELLIPSIS}  1,000"
    assert table(headings, rows, 16)[1] == f"a queue{ELLIPSIS}   1,000"
    assert table(headings, [], 80) == ["queue  ready  blocked  running"]
