"""``DeadLetters``: the policy for dead letters."""

from datetime import timedelta
from typing import Any

import pytest

from stoker import DeadLetters, task
from stoker.conf import read_settings
from stoker.exceptions import ConfigurationError, InvalidTaskOption

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("written", "seconds"), [("1h", 3600), (90, 90), (timedelta(days=1), 86_400), (None, None)]
)
def test_requeue_after_is_read_in_seconds(written: Any, seconds: float | None) -> None:
    assert DeadLetters(requeue_after=written).cooldown_seconds == seconds


@pytest.mark.parametrize(
    "arguments",
    [
        {"requeue_after": "soon"},
        {"requeue_after": 0},
        {"requeue_after": 0.5},
        {"requeue_after": "2 years"},
        {"max_requeues": 0},
        {"max_requeues": 101},
        {"max_requeues": True},
        {"only": [int]},
        {"only": "not a name"},
        {"only": [ValueError("one")]},
    ],
    ids=str,
)
def test_invalid_policy_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidTaskOption, match="DeadLetters"):
        DeadLetters(**arguments)


@pytest.mark.parametrize(
    ("only", "exception_class", "is_covered"),
    [
        ((), "builtins.ValueError", True),
        (ConnectionError, "builtins.ConnectionError", True),
        (ConnectionError, "builtins.ConnectionRefusedError", True),
        ([OSError, KeyError], "builtins.KeyError", True),
        (KeyError, "builtins.ValueError", False),
        ("LookupError", "builtins.KeyError", True),
        ("shop.bank.NoAnswer", "shop.bank.NoAnswer", True),
        ("shop.bank.NoAnswer", "shop.bank.Refused", False),
    ],
)
def test_only_selects_exceptions_and_their_subclasses(
    only: Any, exception_class: str, is_covered: bool
) -> None:
    assert DeadLetters("1h", only=only).covers("error", exception_class) is is_covered


def test_permanent_failures_are_not_covered() -> None:
    policy = DeadLetters("1h")
    assert not any(policy.covers(one, "") for one in ("expired", "unreadable", "unknown_task"))


def test_max_requeues_limits_requeues() -> None:
    assert [DeadLetters("1h", max_requeues=2).allows(count) for count in (0, 1, 2)] == [1, 1, 0]
    assert not DeadLetters().allows(0)


@pytest.mark.parametrize("option", ["dead_letters", "on_dead_letter"])
def test_task_refuses_anything_but_a_policy(option: str) -> None:
    with pytest.raises(InvalidTaskOption, match=option):
        task(**{option: "1h"})(test_max_requeues_limits_requeues)


def test_setting_applies_to_all_queues_or_by_queue() -> None:
    policy = DeadLetters("1h")
    for written, read in ((policy, (("", policy),)), ({"mail": policy}, (("mail", policy),))):
        assert read_settings("default", {"OPTIONS": {"DEAD_LETTERS": written}}).dead_letters == read
    for wrong in ("1h", {"mail": "1h"}, {7: policy}):
        with pytest.raises(ConfigurationError, match="must be a DeadLetters"):
            read_settings("default", {"OPTIONS": {"DEAD_LETTERS": wrong}})
    with pytest.raises(ConfigurationError, match="open_seconds"):
        read_settings("default", {"OPTIONS": {"KEEP_DEAD_LETTERS": 7}})
