"""Invalid steps are refused when the workflow is enqueued, and nothing is stored."""

from typing import Any

import pytest
from django.db import transaction

from stoker import (
    Limit,
    Lock,
    Rate,
    Unique,
    chain,
    chord,
    current_workflow,
    get_workflow,
    group,
    task,
)
from stoker.exceptions import (
    InvalidTaskOption,
    NotInWorkflow,
    NotSerializable,
    StokerError,
    WorkflowNotFound,
)
from stoker.models import Job, Step, Workflow
from stoker.testing import drain

from tests.workflows.tasks import DONE, add, double, note, tell, total

pytestmark = pytest.mark.django_db


@task(lock=Lock("account:{account_id}"))
def settle(account_id: int) -> int:
    DONE.append(account_id)
    return account_id


@pytest.mark.parametrize(
    ("node", "error", "sentence"),
    [
        (chain(note.si("a"), note.si({1})), NotSerializable, "Step 2 of the chain: Argument 1 of"),
        (
            chain(note.si("a"), group([note.si("b"), note.si(lambda: 1)])),
            NotSerializable,
            "Member 2 of the group in step 2 of the chain: Argument 1",
        ),
        (chain(add.s(1), add.s(1, 2)), TypeError, "Step 1 of the chain: .*does not take"),
        (
            chain(add.s(1, 1), add.s(1, 2)),
            TypeError,
            "Step 2 .*the first is the result of the previous step",
        ),
        (double.map([1, "a", 2]) | total.s(1), TypeError, "Step 2 of the chain"),
        (add.starmap([(1, 2), (3,)]), TypeError, "Member 1 of the group: .*does not take"),
        (
            add.starmap([(1, 2), 3]),
            TypeError,
            r"Member 1 of the group: starmap\(\): an item is of type int",
        ),
        (note.using(unique=Unique("x")).si("a"), InvalidTaskOption, "unique=None"),
        (chain(double.s(1), settle.s()), InvalidTaskOption, "uses the result of the previous step"),
        (settle.map([1, 2]), InvalidTaskOption, "Use group"),
        (group([note.si("a").undo(note.si("b"))]), InvalidTaskOption, "for a step of a chain"),
        (note.si("a").on_error(note.si({1})), NotSerializable, "On_error of step 1 of the chain"),
    ],
)
def test_invalid_step_is_refused_with_its_position(
    node: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        node.enqueue()
    assert not Step.objects.exists()
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "guards",
    [
        {"lock": Lock(lambda number: {2: "shard"}.get(number, "other"))},
        {"lock": Lock(lambda number: "shard" if number else None)},
        {"limit": Limit(1, lambda number: "one" if number == 1 else "other")},
        {"limit": Limit(1, lambda number: "number" if isinstance(number, int) else None)},
        {"rate": Rate("10/m", weight=lambda number: 5 if number else 1)},
        {"rate": Rate("10/m", weight=lambda number: len(number) + 1)},
    ],
    ids=["dict.get", "if", "==", "isinstance", "weight if", "weight len"],
)
def test_key_that_depends_on_the_previous_result_is_refused(guards: dict[str, Any]) -> None:
    with pytest.raises(InvalidTaskOption, match="uses the result of the previous step"):
        chain(double.s(1), double.using(**guards).s()).enqueue()
    assert not Step.objects.exists()
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (chain, "needs a step"),
        (lambda: chain(note.si("a"), "b"), "'b' is not a step"),
        (lambda: chain([note.si("a")]), r"^\[Sig.{50,56}\.\.\. is not a step: write my_task"),
        (lambda: chain(note.si("a"), on_failure="wait"), "'stop', 'continue'"),
        (lambda: group(note.si("a"), on_failure="never"), "'wait', 'stop', 'continue'"),
        (lambda: group(note.si("a"), at_once=0), "above 0"),
        (lambda: group(1), "pass an iterable"),
        (lambda: double.map(3), "pass an iterable"),
        (lambda: double.map([1], chunk=0), "above 0"),
    ],
)
def test_invalid_workflow_is_refused(make: Any, sentence: str) -> None:
    with pytest.raises(InvalidTaskOption, match=sentence):
        make()


def test_invalid_name_is_refused() -> None:
    for name in ("x" * 256, "a\0b"):
        with pytest.raises(InvalidTaskOption, match=r"^name: "):
            note.si("a").enqueue(name=name)
    assert not Step.objects.exists()


def test_workflow_nested_too_deep_is_refused() -> None:
    node: Any = note.si("a")
    for _ in range(1000):
        node = group([node])
    with pytest.raises(InvalidTaskOption, match="nested too deep"):
        node.enqueue()
    assert not Step.objects.exists()


def test_workflow_of_a_used_up_generator_is_refused() -> None:
    node = group(double.s(number) for number in range(3))
    node.enqueue()
    with pytest.raises(InvalidTaskOption, match="is exhausted"):
        node.enqueue()


@pytest.mark.parametrize("make", [double.map, add.starmap])
def test_map_of_a_generator_that_was_partly_read_is_refused(make: Any) -> None:
    """Otherwise a second try would store the remaining items only."""
    node = make((one for one in [(1, 2), (3, 4), (5, object())]), chunk=1)
    with pytest.raises(NotSerializable):
        node.enqueue()
    with pytest.raises(InvalidTaskOption, match="is exhausted"):
        node.enqueue()
    assert not Workflow.objects.exists()


def test_generator_that_yields_none_is_refused() -> None:
    with pytest.raises(InvalidTaskOption, match="None is not a step"):
        group(one for one in [None, double.s(1)]).enqueue()


def test_empty_generator_makes_an_empty_group() -> None:
    assert group(one for one in ()).enqueue().value == []


def test_rolled_back_enqueue_leaves_no_workflow() -> None:
    with transaction.atomic():
        chord([double.s(1)], total.s()).enqueue()
        transaction.set_rollback(True)
    assert not Workflow.objects.exists()
    assert not Job.objects.exists()


def test_steps_respect_guards() -> None:
    narrow = tell.using(limit=Limit(1, "one"))
    workflow = chain(group(narrow.si(1), narrow.si(2)), settle.si(7)).enqueue()
    drain()
    assert sorted(DONE) == [1, 2, 7]
    assert get_workflow(workflow.id).status == "SUCCESSFUL"


def test_delay_of_a_step_counts_from_its_turn() -> None:
    workflow = chain(note.si("a"), note.using(run_after=3600).si("b")).enqueue()
    drain()
    assert DONE == ["a"]
    drain(include_deferred=True)
    assert get_workflow(workflow.id).status == "SUCCESSFUL"


def test_current_workflow_outside_a_workflow_raises() -> None:
    with pytest.raises(NotInWorkflow, match="not a step of a workflow"):
        current_workflow()


@pytest.mark.parametrize("wrong", ["no id", "01a1ff39-c590-74bd-a696-c9f6aa2ea038"])
def test_unknown_id_raises_workflow_not_found(wrong: str) -> None:
    with pytest.raises(WorkflowNotFound) as raised:
        get_workflow(wrong)
    assert isinstance(raised.value, StokerError | LookupError)
