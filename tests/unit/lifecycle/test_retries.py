"""The outcome of a raised error, as a table."""

from datetime import timedelta
from typing import Any

import pytest

from stoker.conf import Settings
from stoker.exceptions import Cancel, Retry, Snooze, TaskTimeout
from stoker.jobs import outcomes
from stoker.jobs.faults import plain_fault
from stoker.jobs.package import JobOptions
from stoker.jobs.retries import (
    CRASH_DELAY_CAP_SECONDS,
    crash_delay_seconds,
    decide,
    decide_killed,
    is_out_of_attempts,
)
from stoker.tasks.options import TaskOptions, options_of

pytestmark = pytest.mark.unit


class Named:
    """Stands for a task; only its options are read."""

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options)


def options(**given: Any) -> TaskOptions:
    return options_of(
        Named(**{"max_attempts": 3, "backoff": lambda _error, _result: 7.0, **given}), Settings()
    )


RETRY = (outcomes.Retried, "error", 7.0)
FAIL = (outcomes.Failed, "error", None)


@pytest.mark.parametrize(
    ("error", "attempt", "given", "expected"),
    [
        (ValueError(), 1, {}, RETRY),
        (ValueError(), 2, {}, RETRY),
        (ValueError(), 3, {}, FAIL),
        (ValueError(), 1, {"max_attempts": 1}, FAIL),
        (SystemExit(3), 1, {}, RETRY),
        (SystemExit(3), 3, {}, FAIL),
        (ValueError(), 1, {"retry_on": ConnectionError}, FAIL),
        (ConnectionResetError(), 1, {"retry_on": ConnectionError}, RETRY),
        (ValueError(), 1, {"give_up_on": ValueError}, FAIL),
        (UnicodeError(), 1, {"give_up_on": ValueError}, FAIL),
        (KeyError(), 1, {"give_up_on": ValueError}, RETRY),
        (KeyError(), 1, {"give_up_on": KeyError, "retry_on": LookupError}, FAIL),
        (TaskTimeout(), 1, {}, (outcomes.Retried, "timeout", 7.0)),
        (TaskTimeout(), 3, {}, (outcomes.Failed, "timeout", None)),
        (Retry(), 1, {}, RETRY),
        (Retry(delay=0), 1, {}, (outcomes.Retried, "error", 0.0)),
        (Retry(delay=timedelta(minutes=1)), 1, {}, (outcomes.Retried, "error", 60.0)),
        (Retry(), 3, {}, FAIL),
        (Retry(), 1, {"give_up_on": Exception}, RETRY),
        (Retry(), 1, {"retry_on": KeyError}, RETRY),
        (ValueError(), 1, {"backoff": lambda _error, _result: None}, FAIL),
        (
            ValueError(),
            1,
            {"backoff": lambda *_: timedelta(seconds=2)},
            (outcomes.Retried, "error", 2.0),
        ),
        (ValueError(), 1, {"backoff": lambda *_: -5}, (outcomes.Retried, "error", 0.0)),
    ],
)  # fmt: skip
def test_error_leads_to_a_retry_or_a_failure(
    error: BaseException, attempt: int, given: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    outcome = decide(error, options(**given), attempt, result=None)
    assert isinstance(outcome, outcomes.Retried | outcomes.Failed)
    delay_seconds = outcome.delay_seconds if isinstance(outcome, outcomes.Retried) else None
    assert (type(outcome), outcome.reason, delay_seconds) == expected


@pytest.mark.parametrize(
    ("attempt", "given", "expected"),
    [
        (1, {}, outcomes.Retried),
        (3, {}, outcomes.Failed),
        (1, {"retry_on": KeyError}, outcomes.Failed),
        (1, {"retry_on": (KeyError, OSError)}, outcomes.Retried),
        (1, {"give_up_on": TimeoutError}, outcomes.Failed),
        (1, {"give_up_on": KeyError}, outcomes.Retried),
        (1, {"give_up_on": TaskTimeout, "retry_on": OSError}, outcomes.Failed),
    ],
)
def test_hard_time_out_leads_to_the_same_as_the_soft_one(
    attempt: int, given: dict[str, Any], expected: type[outcomes.Outcome]
) -> None:
    fault = plain_fault(TimeoutError, "killed")
    outcome = decide_killed(fault, JobOptions(3, 3), attempt, Named(**given))
    assert type(outcome) is type(decide(TaskTimeout(), options(**given), attempt, None)) is expected
    assert (outcome.fault, outcome.reason) == (fault, "timeout")  # type: ignore[union-attr]


def test_hard_time_out_of_an_unknown_task_is_retried() -> None:
    fault = plain_fault(TimeoutError, "killed")
    assert decide_killed(fault, JobOptions(3, 3), 1, None) == outcomes.Retried(fault, 2, "timeout")


@pytest.mark.parametrize(
    ("attempt", "crashes", "max_crashes", "expected"),
    [
        (1, 0, 3, False),
        (2, 0, 3, False),
        (3, 0, 3, True),
        (4, 0, 3, True),
        (1, 1, 1, True),
        (1, 1, 2, False),
        (2, 2, 2, True),
        (2, 3, 2, True),
        (1, 0, 0, False),
    ],
)
def test_job_is_out_of_attempts_by_either_count(
    attempt: int, crashes: int, max_crashes: int, expected: bool
) -> None:
    limits = JobOptions(max_attempts=3, max_crashes=max_crashes)
    assert is_out_of_attempts(limits, attempt, crashes) is expected


@pytest.mark.parametrize("attempt", [1, 3])
def test_cancel_and_snooze_do_not_depend_on_the_attempt(attempt: int) -> None:
    assert decide(Cancel("no"), options(), attempt, None) == outcomes.Cancelled("no")
    assert decide(Snooze(5, "busy"), options(), attempt, None) == outcomes.Snoozed(5.0, "busy")


@pytest.mark.parametrize(
    ("said", "kept"), [("a\x00", "a\\x00"), ("\ud800", "\\ud800"), (None, ""), (7, "7")]
)
def test_reason_with_invalid_text_is_escaped(said: Any, kept: str) -> None:
    assert decide(Cancel(said), options(), 1, None) == outcomes.Cancelled(kept)
    assert decide(Snooze(5, said), options(), 1, None) == outcomes.Snoozed(5.0, kept)


@pytest.mark.parametrize("seconds", [1e12, float("inf")])
def test_delay_is_at_most_a_hundred_years(seconds: float) -> None:
    """No database and no screen has a later date than the year 9999."""
    hundred_years = 100 * 365 * 86400
    snoozed = decide(Snooze(seconds), options(), 1, None)
    retried = decide(Retry(seconds), options(), 1, None)
    backed_off = decide(ValueError(), options(backoff=lambda *_: seconds), 1, None)
    for outcome in (snoozed, retried, backed_off):
        assert isinstance(outcome, outcomes.Snoozed | outcomes.Retried)
        assert outcome.delay_seconds == hundred_years


def test_failing_backoff_is_replaced_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_error: BaseException, _result: Any) -> float:
        raise ZeroDivisionError

    class Result:
        attempts = 1

    outcome = decide(ValueError(), options(backoff=broken), 1, Result())
    assert isinstance(outcome, outcomes.Retried)
    assert outcome.delay_seconds > 0
    assert "backoff" in caplog.text


def test_backoff_receives_the_error_and_the_result() -> None:
    seen: list[Any] = []
    error = ValueError("this one")
    decide(error, options(backoff=lambda *given: seen.extend(given) or 1.0), 1, "the result")
    assert seen == [error, "the result"]


def test_delay_after_crashes_grows_up_to_a_cap() -> None:
    delays = [crash_delay_seconds(times) for times in range(1, 60)]
    assert delays[:3] == [2.0, 4.0, 8.0]
    assert delays == sorted(delays)
    assert delays[-1] == CRASH_DELAY_CAP_SECONDS == 600.0


@pytest.mark.parametrize(
    ("base", "kind"),
    [(Cancel, outcomes.Cancelled), (Snooze, outcomes.Snoozed), (Retry, outcomes.Retried)],
)
def test_subclass_that_does_not_call_its_base_has_defaults(base: Any, kind: type) -> None:
    class NotNow(base):  # type: ignore[misc] # of each base
        def __init__(self) -> None:
            pass

    assert isinstance(decide(NotNow(), options(), 1, None), kind)
