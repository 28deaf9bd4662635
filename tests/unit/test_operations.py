"""Declarations of operations, which all interfaces share."""

from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps

from stoker.conf import settings_for
from stoker.exceptions import QueueNotFound, ScheduleExists
from stoker.operations.operation import Done, Operation, Operator
from stoker.operations.table import OPERATIONS

pytestmark = pytest.mark.unit


def permissions() -> set[str]:
    """Return all permissions that Stoker's models declare."""
    found = set()
    for model in apps.get_app_config("stoker").get_models():
        meta = model._meta
        codenames = {f"{action}_{meta.model_name}" for action in meta.default_permissions}
        found |= {f"stoker.{name}" for name in codenames | {name for name, _ in meta.permissions}}
    return found


def operation(act: Callable[..., Done]) -> Operation:
    return Operation("pause", "queue", "stoker.pause_queue", act, things="queues", done="paused")


def refuse_with(error: Exception) -> Callable[..., Done]:
    def act(operator: Operator, name: str) -> Done:
        if name == "good":
            return Done("Done.", count=0)  # no database keeps it
        raise error

    return act


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_names_an_existing_permission_and_undo(name: str) -> None:
    one = OPERATIONS[name]
    assert one.permission in permissions()
    assert not one.undo or f"{one.undo}-{one.target}" in OPERATIONS


@pytest.mark.parametrize("name", OPERATIONS)
def test_grave_operation_has_a_question(name: str) -> None:
    one = OPERATIONS[name]
    assert one.question or not one.is_grave
    assert "{" not in one.question.format(name="mail")


def test_operation_names_are_unique() -> None:
    modules = {one.act.__module__ for one in OPERATIONS.values()}
    declared = [one for module in modules for one in __import__(module, fromlist=["x"]).OPERATIONS]
    assert len(declared) == len(OPERATIONS)


def test_operation_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    because = "the server is away\nINFO cancel job 7 by alice\x1b[2J"
    operator = Operator(settings_for(), by="bob", because=because)
    with caplog.at_level("INFO", "stoker"):
        operation(lambda *_: Done("Done.")).log(operator, "mail", Done("Done."))
    assert caplog.messages == [
        r"pause-queue mail by bob (the server is away\nINFO cancel job 7 by alice\x1b[2J): Done."
    ]


def test_refusal_becomes_an_answer() -> None:
    operator = Operator(settings_for(), "anna")
    done = operation(refuse_with(ScheduleExists("It is declared.\nMore."))).attempt(operator, "x")
    assert done == Done("It is declared.", is_good=False)


def test_missing_target_is_raised() -> None:
    operator = Operator(settings_for(), "anna")
    with pytest.raises(QueueNotFound):
        operation(refuse_with(QueueNotFound("There is none."))).attempt(operator, "x")


@pytest.mark.parametrize("error", [QueueNotFound("There is none."), ScheduleExists("No.")])
def test_refusal_of_one_target_does_not_stop_the_others(error: Exception) -> None:
    operator = Operator(settings_for(), "anna")
    done = operation(refuse_with(error)).attempt_each(operator, ["good", "x", "good"])
    assert not done.is_good
    assert done.sentence == f"2 of 3 queues paused. 1 not; the first: {str(error).rstrip('.')}."


@pytest.mark.parametrize(
    ("by", "because", "reason"),
    [
        ("anna", "", "cancelled by anna"),
        ("anna", "ordered twice", "cancelled by anna: ordered twice"),
        ("", "wrong file", "wrong file"),
        ("anna", "x" * 300, ("cancelled by anna: " + "x" * 300)[:255]),
    ],
)
def test_cancellation_names_operator_and_reason(by: str, because: str, reason: str) -> None:
    assert Operator(settings_for(), by, because).cancellation == reason


def test_signed_arguments_name_the_backend() -> None:
    signed: dict[str, Any] = Operator(settings_for(), "anna", "lunch").signed
    assert signed == {"by": "anna", "because": "lunch", "backend": "default"}
