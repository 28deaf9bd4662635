"""Durations written as text or numbers."""

from datetime import UTC, datetime, timedelta

import pytest

from stoker.operations.wording import since
from stoker.values.durations import duration_seconds, in_words

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90),
        ("90 s", 90),
        ("10m", 600),
        ("10 min", 600),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("3600", 3600),
        (3600, 3600),
        (0.5, 0.5),
        (timedelta(hours=1), 3600),
    ],
)
def test_duration_is_read_in_seconds(written: object, seconds: float) -> None:
    assert duration_seconds(written) == seconds


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1.24, "1.2 s"), (59.94, "59.9 s"), (59.96, "1 min 0 s"), (7199.6, "2 h 0 min")],
)
def test_duration_in_words_is_rounded(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "now"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (100, "2 min"),
        (3580, "1 h"),
        (7140, "2 h"),
        (47 * 3600, "47 h"),
        (47.6 * 3600, "2 d"),
        (4.4 * 86400, "4 d"),
    ],
)
def test_age_is_rounded_to_the_nearest_unit(seconds: float, words: str) -> None:
    now = datetime.now(UTC)
    assert since(now - timedelta(seconds=seconds)).removesuffix(" ago") == words
    assert since(now + timedelta(seconds=seconds + 0.1)).removeprefix("in ") == words


@pytest.mark.parametrize("written", ["", "h", "1y", "1h x", "-1h", "1 2", True, None, [1]])
def test_invalid_duration_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        duration_seconds(written)
