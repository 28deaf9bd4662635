"""The arguments of a call as people may see them."""

from typing import Any
from uuid import uuid4

import pytest

from stoker import Task, task
from stoker.exceptions import InvalidTaskOption
from stoker.jobs.package import JobOptions, Package
from stoker.tasks.arguments import (
    HIDDEN,
    LONGEST_LINE,
    SECRETS,
    hidden_pattern,
    hidden_texts,
    is_secret,
    shown_arguments,
    shown_call,
)

from tests.app.payments import IBAN, MORE, PASSWORD, TOKEN, call_provider, pay

pytestmark = pytest.mark.unit


def ship(order_id: int) -> None:
    """A function that is no task."""


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "userPassword",
        "API_KEY",
        "stripe-api-key",
        "tokens",
        "api_keys",
        "Authorization",
    ],
)
def test_name_with_the_words_of_a_secret_is_secret(name: str) -> None:
    assert is_secret(name, SECRETS)


@pytest.mark.parametrize("name", ["key", "author", "monkey", "passenger", "tokenizer", "1", ""])
def test_name_with_a_part_of_a_word_is_not_secret(name: str) -> None:
    assert not is_secret(name, SECRETS)


def test_secrets_are_hidden_by_position_by_name_and_in_nested_dicts() -> None:
    call = shown_arguments(pay, (7, IBAN), {"password": PASSWORD, "more": MORE}, SECRETS)
    assert call.args == [7, HIDDEN]
    assert call.kwargs["password"] == HIDDEN
    assert call.kwargs["more"] == {"shop": {"api_token": HIDDEN, "currency": "EUR"}}
    assert call.label == "order 7"
    assert call.line.startswith("order_id=7, iban=[withheld], password=[withheld]")
    assert MORE["shop"]["api_token"] == TOKEN, "the arguments themselves are unchanged"


def test_user_with_permission_to_reveal_sees_everything() -> None:
    call = shown_arguments(pay, (7, IBAN), {"password": PASSWORD}, SECRETS, reveal=True)
    assert (call.args, call.kwargs) == ([7, IBAN], {"password": PASSWORD})


def test_positional_arguments_of_an_unknown_task_are_hidden() -> None:
    call = shown_arguments(None, (7, IBAN), {"order": 8, "token": TOKEN}, SECRETS)
    assert call.args == [HIDDEN, HIDDEN]
    assert call.kwargs == {"order": 8, "token": HIDDEN}


def test_long_value_is_shortened_to_one_line() -> None:
    call = shown_arguments(pay, (7, "x"), {"more": ["a\nb" * 100] * 100}, ())
    assert "\n" not in call.line
    assert len(call.line) <= LONGEST_LINE


def test_value_whose_repr_raises_is_replaced_by_a_note() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "raised RuntimeError" in shown_arguments(pay, (Odd(), ""), {}, ()).line


def test_label_of_a_call_that_does_not_fit_is_empty() -> None:
    assert shown_arguments(pay, (), {}, ()).label == ""


def test_label_of_a_secret_is_hidden() -> None:
    assert shown_arguments(call_provider, ("abc",), {}, SECRETS).label == "key [withheld]"


@pytest.mark.parametrize("wrong", ["{nobody}", "{order_id", "{}", 7])
def test_description_that_names_no_parameter_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidTaskOption, match="describe="):
        task(describe=wrong)(ship)


@pytest.mark.parametrize("wrong", ["iban", [7], [""]])
def test_redact_that_is_no_list_of_names_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidTaskOption, match="redact="):
        task(redact=wrong)(ship)


def test_hidden_values_are_found_as_text() -> None:
    given = {"token": ["abcdef", 4711, True], "more": {"password": {"old": "hunter22"}, "n": 5}}
    assert hidden_texts(None, ("plain",), given, SECRETS) == {"abcdef", "4711", "hunter22"}
    assert hidden_texts(None, (), {"password": "abc"}, SECRETS) == set(), "it is found everywhere"


def package_of(given: Task[..., Any], *args: Any, **options: str) -> Package:
    path = given.module_path
    return Package(uuid4(), path, args, {}, "default", 0, 0.0, JobOptions(**options))  # type: ignore[arg-type]


def test_arguments_after_a_received_one_have_their_own_names() -> None:
    call = shown_call(package_of(pay, IBAN, receives="value"), SECRETS)
    assert (call.pairs, call.args) == ([("iban", HIDDEN)], [HIDDEN])
    assert call.label == "order [received]"
    assert shown_call(package_of(pay, IBAN, receives="value"), SECRETS, reveal=True).args == [IBAN]


@pytest.mark.parametrize(
    ("each", "items", "wanted"),
    [
        ("starmap", [(7, IBAN), [8, "DE1"]], [("calls", [(7, HIDDEN), (8, HIDDEN)])]),
        ("map", [7, {"token": TOKEN}], [("order_id", [7, {"token": HIDDEN}])]),
        ("map", [], [("calls", [])]),
    ],
)
def test_calls_of_a_map_are_hidden_like_single_ones(each: str, items: Any, wanted: Any) -> None:
    assert shown_call(package_of(pay, items, each=each), SECRETS).pairs == wanted


def test_hidden_values_of_all_calls_of_a_map_are_found_in_texts() -> None:
    pattern = hidden_pattern(pay, package_of(pay, [(7, IBAN), (8, "DE77")], each="starmap"), ())
    assert pattern.sub("-", f"{IBAN} DE77 DE7 7") == "- - DE7 7"
    assert not hidden_pattern(pay, package_of(pay, 7, receives="value"), ()).search("7")
