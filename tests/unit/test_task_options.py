"""The options of tasks: their checks, and their values together with the settings."""

import math
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import override_settings

from stoker.compat import DjangoTask
from stoker.conf import Settings, read_settings
from stoker.exceptions import ConfigurationError, InvalidTaskOption
from stoker.tasks.backoff import DEFAULT, constant, exponential
from stoker.tasks.decorator import options_of, task
from stoker.tasks.options import as_timestamp, expires_at

pytestmark = pytest.mark.unit

SETTINGS = Settings(max_attempts=4, max_crashes=2, timeout_seconds=90.0, backoff=7)


def function() -> None: ...


@pytest.mark.parametrize(
    "timeout", ["30", True, False, 0, -1, math.nan, timedelta(0), [30], object()]
)
def test_invalid_timeout_is_refused_at_definition(timeout: Any) -> None:
    with pytest.raises(InvalidTaskOption, match=r"timeout=.*number of seconds above 0"):
        task(timeout=timeout)(function)


@pytest.mark.parametrize("timeout", [1e10, timedelta(days=36500), 10**400])
def test_timeout_that_no_timer_can_hold_is_refused(timeout: Any) -> None:
    """It would end the worker each time that the job starts."""
    with pytest.raises(InvalidTaskOption, match=r"timeout=.*at most 1,000,000,000 seconds"):
        task(timeout=timeout)(function)


@pytest.mark.parametrize("name", ["TIMEOUT", "TIMEOUT_GRACE_SECONDS"])
def test_setting_that_no_timer_can_hold_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name}.*at most 1,000,000,000"):
        read_settings("default", {"OPTIONS": {name: 1e10}})


@pytest.mark.parametrize(("timeout", "seconds"), [(30, 30), (0.5, 0.5), (timedelta(hours=1), 3600)])
def test_timeout_accepts_seconds_or_a_timedelta(timeout: Any, seconds: float) -> None:
    assert options_of(task(timeout=timeout)(function), SETTINGS).timeout_seconds == seconds


def test_infinite_timeout_removes_the_default() -> None:
    assert options_of(task(function), SETTINGS).timeout_seconds == 90
    assert options_of(task(timeout=math.inf)(function), SETTINGS).timeout_seconds is None


@pytest.mark.parametrize("name", ["max_attempts", "max_crashes"])
@pytest.mark.parametrize("count", [0, -1, 10_001, 2.5, "3", True])
def test_invalid_count_is_refused(name: str, count: Any) -> None:
    with pytest.raises(InvalidTaskOption, match=rf"{name}=.*whole number between 1 and 10000"):
        task(**{name: count})(function)


@pytest.mark.parametrize("name", ["retry_on", "give_up_on"])
@pytest.mark.parametrize("wrong", ["OSError", OSError(), (OSError, "x"), [OSError], int, 3])
def test_value_that_is_no_exception_class_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(InvalidTaskOption, match=rf"{name}=.*an exception class or a tuple"):
        task(**{name: wrong})(function)


@pytest.mark.parametrize("wrong", [0, -5, "soon", True, math.inf, math.nan])
def test_invalid_expiry_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidTaskOption, match=r"expires="):
        task(expires=wrong)(function)


def test_unset_options_come_from_the_settings() -> None:
    options = options_of(task(function), SETTINGS)
    assert (options.max_attempts, options.max_crashes, options.timeout_seconds) == (4, 2, 90)
    assert (options.retry_on, options.give_up_on, options.expires_seconds) == ((), (), None)
    assert options.backoff == constant(7)


def test_task_options_override_the_settings() -> None:
    made = task(
        max_attempts=9,
        max_crashes=8,
        timeout=7,
        backoff=exponential(5),
        retry_on=(OSError, ValueError),
        give_up_on=KeyError,
        expires=timedelta(minutes=1),
    )(function)
    options = options_of(made, SETTINGS)
    assert (options.max_attempts, options.max_crashes, options.timeout_seconds) == (9, 8, 7)
    assert options.backoff == exponential(5)
    assert (options.retry_on, options.give_up_on) == ((OSError, ValueError), (KeyError,))
    assert options.expires_seconds == 60


def test_default_backoff_is_exponential() -> None:
    assert options_of(task(function), Settings()).backoff is DEFAULT


def test_retry_on_none_is_the_default() -> None:
    made = task(retry_on=None)(function)  # type: ignore[call-overload]
    assert options_of(made, SETTINGS).retry_on == ()


def test_plain_django_task_has_the_options_of_the_settings() -> None:
    plain = DjangoTask(
        func=function,
        priority=0,
        backend="default",
        queue_name="default",
        run_after=None,
        takes_context=False,
    )
    assert options_of(plain, SETTINGS) == options_of(task(function), SETTINGS)


def test_expiry_counts_from_the_enqueue() -> None:
    assert expires_at(task(expires=60)(function), 1000.0) == 1060.0
    assert expires_at(task(function), 1000.0) is None
    assert expires_at(SimpleNamespace(), 1000.0) is None


def test_expiry_can_be_a_datetime() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    made = task(function).using(expires=moment)
    assert expires_at(made, 1000.0) == moment.timestamp()
    assert options_of(made, SETTINGS).expires_seconds is None


@override_settings(TIME_ZONE="Europe/Vienna")
def test_naive_datetime_is_in_the_projects_time_zone() -> None:
    naive = datetime(2030, 7, 1, 12)  # noqa: DTZ001 - on purpose
    assert as_timestamp(naive) == datetime(2030, 7, 1, 10, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("name", ["backoff", "retry_on", "give_up_on"])
def test_using_refuses_options_that_are_not_in_the_package(name: str) -> None:
    with pytest.raises(InvalidTaskOption, match=f"does not take '{name}'.*@task"):
        task(function).using(**{name: 5})  # type: ignore[misc] # on purpose
