"""Durations written as text or numbers."""

from datetime import timedelta

import pytest

from stoker.values.durations import duration_seconds

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


@pytest.mark.parametrize("written", ["", "h", "1y", "1h x", "-1h", "1 2", True, None, [1]])
def test_invalid_duration_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        duration_seconds(written)
