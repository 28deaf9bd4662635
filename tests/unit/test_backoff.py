"""Backoff: the delay before the next attempt."""

import random
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest

from stoker.exceptions import InvalidTaskOption
from stoker.tasks.backoff import Backoff, as_backoff, constant, exponential, linear

pytestmark = pytest.mark.unit


def delays(backoff: Backoff, attempts: int = 5) -> list[object]:
    results = [SimpleNamespace(attempts=attempt) for attempt in range(1, attempts + 1)]
    return [backoff(ValueError(), result) for result in results]


def test_exponential_doubles_up_to_its_cap() -> None:
    assert delays(exponential(base=2, cap=10, jitter=False)) == [2, 4, 8, 10, 10]


def test_exponential_of_very_many_attempts_is_the_cap() -> None:
    result = SimpleNamespace(attempts=100_000)
    assert exponential(cap=600, jitter=False)(ValueError(), result) == 600


def test_linear_grows_by_its_step_up_to_its_cap() -> None:
    assert delays(linear(10, cap=35)) == [10, 20, 30, 35, 35]


def test_constant_repeats_its_delay() -> None:
    assert delays(constant(timedelta(minutes=1)), 3) == [60, 60, 60]


def test_list_of_delays_repeats_its_last() -> None:
    assert delays(as_backoff([1, timedelta(seconds=5), 30])) == [1, 5, 30, 30, 30]


def test_number_is_a_constant_delay() -> None:
    assert delays(as_backoff(1.5), 2) == [1.5, 1.5]
    assert delays(as_backoff(timedelta(seconds=2)), 2) == [2, 2]
    assert delays(as_backoff(0), 2) == [0, 0]


def test_callable_is_used_unchanged() -> None:
    def mine(exception: BaseException, task_result: object) -> None:
        """Do not retry."""

    assert as_backoff(mine) is mine


def test_none_is_the_default_from_two_seconds_to_ten_minutes(seed: int) -> None:
    for _ in range(50):
        first, *_, last = delays(as_backoff(None), 20)
        assert 1 <= first <= 2
        assert 300 <= last <= 600


@pytest.mark.parametrize("helper", [exponential, partial(linear, 8), partial(constant, 8)])
def test_jitter_spreads_over_the_second_half_and_no_further(helper, seed: int) -> None:
    even = delays(helper(jitter=False), 20)
    source = random.Random(seed)
    for _ in range(20):
        spread = delays(helper(jitter=True, source=source), 20)
        assert all(whole / 2 <= delay <= whole for whole, delay in zip(even, spread, strict=True))
        assert spread != even


def test_same_seed_gives_the_same_delays(seed: int) -> None:
    once = delays(exponential(source=random.Random(seed)))
    again = delays(exponential(source=random.Random(seed)))
    other = delays(exponential(source=random.Random(seed + 1)))
    assert once == again != other


@pytest.mark.parametrize(
    "wrong", ["10", True, -1, float("nan"), float("inf"), [], [1, "2"], [1, -2], object()]
)
def test_invalid_backoff_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidTaskOption, match=r"backoff"):
        as_backoff(wrong)


@pytest.mark.parametrize("base", [0.5, 0, -2, "2", True, float("nan"), float("inf")])
def test_exponential_with_a_base_below_one_is_refused(base: object) -> None:
    with pytest.raises(InvalidTaskOption, match=r"at least 1"):
        exponential(base=base)  # type: ignore[arg-type]


def test_equal_backoffs_compare_equal() -> None:
    assert exponential(2, 600) == exponential(base=2.0, cap=timedelta(minutes=10))
    assert exponential(2) != exponential(3)


@pytest.mark.parametrize(
    ("backoff", "text"),
    [
        (exponential(), "2 ** attempt s, at most 600 s, with jitter"),
        (exponential(3, 60, jitter=False), "3 ** attempt s, at most 60 s"),
        (linear(5), "5 s * attempt, at most 600 s"),
        (constant(10), "10 s"),
        (as_backoff([1, 10, 60]), "1, 10, 60 s; the last one repeats"),
        (as_backoff(7), "7 s"),
    ],
)
def test_str_of_a_backoff_is_readable(backoff: Backoff, text: str) -> None:
    assert str(backoff) == text
