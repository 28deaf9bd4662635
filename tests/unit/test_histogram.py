"""Percentiles of times counted in classes."""

import random
from collections import Counter

import pytest

from stoker.values.histogram import (
    FIRST_SECONDS,
    LAST,
    add_written,
    class_of,
    end_of,
    percentile,
    written,
)

pytestmark = pytest.mark.unit


def counted(times: list[float]) -> Counter[int]:
    return Counter(class_of(one) for one in times)


@pytest.mark.parametrize(
    ("seconds", "number"),
    [(-1.0, 0), (0.0, 0), (FIRST_SECONDS, 0), (FIRST_SECONDS * 1.01, 1), (1e12, LAST)],
)
def test_class_of_a_time_is_found(seconds: float, number: int) -> None:
    assert class_of(seconds) == number


def test_time_is_between_the_ends_of_its_class() -> None:
    for seconds in (0.0002, 0.5, 1.0, 59.9, 3600.0):
        number = class_of(seconds)
        assert end_of(number - 1) < seconds <= end_of(number) * (1 + 1e-9)


def test_percentiles_are_accurate_to_a_fifth() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    random_times = random.Random(seed)
    times = sorted(random_times.lognormvariate(0, 2) for _ in range(5000))
    for share in (0.5, 0.95, 0.99, 1.0):
        exact = times[int(share * len(times)) - 1]
        assert percentile(counted(times), share) == pytest.approx(exact, rel=0.2)


def test_empty_histogram_has_no_percentile() -> None:
    assert percentile({}, 0.5) is None


def test_written_histograms_are_added_up() -> None:
    first, second = counted([0.1, 0.1, 2.0]), counted([0.1, 60.0])
    total: Counter[int] = Counter()
    for one in (first, second):
        add_written(total, written(one))
    assert total == first + second
