"""A group that stops at its first failure: what was done in its other members is undone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from stoker import WorkflowResult, chain, dead_letters, get_workflow, group
from stoker.conf import settings_for
from stoker.jobs.outcomes import Cancelled
from stoker.jobs.record import finish
from stoker.models import Cancellation, Step
from stoker.tasks.signatures import Node
from stoker.workflows.advance import REASON, Advance

from tests.workflows.runner import StepByStep
from tests.workflows.tasks import DONE, FAILING, add_with_undo, note, tell_result

pytestmark = pytest.mark.django_db


def order(number: int, *more: Node, **options: Any) -> Node:
    """Return a chain that reserves and then charges, and takes the reservation back on failure.

    Args:
        options: for the step that charges.
    """
    reserve = note.si(f"reserve {number}").undo(note.si(f"release {number}"))
    return chain(reserve, note.using(**options).si(f"charge {number}"), *more)


def stopping(*members: Any) -> tuple[WorkflowResult, StepByStep]:
    """Start a group that stops at its first failure, and run the first steps of its members."""
    workflow = group(*members, on_failure="stop").enqueue()
    hand = StepByStep()
    hand.end(*hand.claim())
    return workflow, hand


def state(workflow: WorkflowResult) -> str:
    return get_workflow(workflow.id).status


def test_stopped_chain_is_undone_after_its_waiting_step_was_cancelled() -> None:
    FAILING.add("charge 1")
    workflow, hand = stopping(order(1), order(2, run_after=60))
    hand.run_all()
    assert sorted(DONE[2:]) == ["charge 1", "release 1", "release 2"]
    assert state(workflow) == "FAILED"


@pytest.mark.parametrize("fails", [True, False])
def test_stopped_chain_is_undone_after_its_running_step_has_ended(fails: bool) -> None:
    FAILING.update(["charge 1", "charge 2"] if fails else ["charge 1"])
    workflow, hand = stopping(order(1, note.si("ship 1")), order(2, note.si("ship 2")))
    hand.claim()
    hand.end("charge 1")
    hand.claim()
    hand.end("release 1")
    assert not hand.claim(), "release 2 waits for charge 2"
    assert state(workflow) == "RUNNING", "the group waits for its undos"
    hand.run_all()
    assert DONE[-2:] == ["charge 2", "release 2"]
    assert state(workflow) == "FAILED"


def test_chain_that_is_being_undone_goes_on_when_its_group_stops() -> None:
    FAILING.update(["charge 1", "bad"])
    account = note.si("open").undo(note.si("close"))
    told = chain(account, *order(1).steps, on_error=tell_result.s("told"))
    bad = chain(note.si("good"), note.si("bad"))
    workflow, hand = stopping(told, bad)
    hand.claim()
    hand.end("reserve 1")
    hand.claim()
    hand.end("charge 1")
    assert hand.claim() == ["release 1"]
    hand.end("bad")
    hand.run_all()
    assert DONE[-3:] == ["release 1", "close", ("told", "FAILED", None)]
    assert state(workflow) == "FAILED"


@pytest.mark.parametrize("first", [[], ["z"]])
@pytest.mark.parametrize("is_last", [True, False])
def test_chain_waits_for_all_undos_under_way_after_one_was_requeued(
    first: list[str], is_last: bool
) -> None:
    FAILING.update(["c", "undo b"])
    undoable = [note.si(name).undo(note.si(f"undo {name}")) for name in [*first, "a", "b"]]
    workflow = chain(*undoable, note.si("c"), on_error=tell_result.s("told")).enqueue()
    hand = StepByStep()
    for name in (*first, "a", "b", "c", "undo b"):
        hand.claim()
        hand.end(name)
    assert hand.claim() == ["undo a"]
    FAILING.remove("undo b")
    undo_b = Step.objects.get(role="undo", state="FAILED").job_id
    assert undo_b is not None
    dead_letters.requeue(undo_b)
    assert hand.claim() == ["undo b"]
    names = ["undo a", "undo b"] if is_last else ["undo b", "undo a"]
    hand.end(names[0])
    assert not hand.claim(), "the other undo is still running"
    assert state(workflow) == "RUNNING"
    hand.run_all()
    assert DONE[-3 - len(first) :] == [
        *names,
        *[f"undo {name}" for name in first],
        ("told", "FAILED", None),
    ]
    assert state(workflow) == "FAILED"


def test_undos_of_nested_chains_run_from_the_inside_to_the_outside() -> None:
    FAILING.add("bad")
    inner = chain(note.si("open").undo(note.si("close")), chain(group(order(1))))
    members = group(chain(inner), chain(note.si("good"), note.si("bad")), on_failure="stop")
    workflow = chain(note.si("begin").undo(note.si("end")), members).enqueue()
    hand = StepByStep()
    for names in (["begin"], ["good", "open"], ["reserve 1"]):
        hand.claim()
        hand.end(*names)
    assert hand.claim() == ["charge 1"]
    hand.end("bad")
    hand.run_all()
    assert DONE[-4:] == ["charge 1", "release 1", "close", "end"]
    assert state(workflow) == "FAILED"


def test_group_without_undos_fails_at_once() -> None:
    FAILING.add("bad")
    slow = chain(note.si("good"), group(note.si("slow")), note.si("never"))
    workflow, hand = stopping(slow, chain(note.si("fine"), note.si("bad")))
    hand.claim()
    hand.end("bad")
    assert state(workflow) == "FAILED"
    hand.run_all()
    assert DONE[-1] == "slow"
    assert not Step.objects.filter(state__in=["STARTED", "UNDOING"]).exists()


@pytest.mark.parametrize("is_first", [True, False])
def test_failure_in_the_same_batch_starts_no_member_of_an_inner_group(is_first: bool) -> None:
    FAILING.add("bad")
    inner = group(note.si("a"), note.si("b"), note.si("c"), at_once=1)
    members = [note.si("bad"), inner] if is_first else [inner, note.si("bad")]
    workflow, hand = stopping(*members)
    hand.run_all()
    assert sorted(DONE) == ["a", "bad"]
    assert state(workflow) == "FAILED"


def test_stopped_chain_in_which_nothing_was_done_can_be_retried() -> None:
    FAILING.add("bad")
    workflow = group(order(1), note.si("bad"), on_failure="stop").enqueue()
    hand = StepByStep()
    hand.claim()
    FAILING.add("reserve 1")
    hand.end("bad")
    hand.run_all()
    assert state(workflow) == "FAILED"
    FAILING.clear()
    assert workflow.retry() == 2
    hand.run_all()
    assert DONE == ["bad", "reserve 1", "bad", "reserve 1", "charge 1"]
    assert state(workflow) == "SUCCESSFUL"


def test_failure_of_a_group_does_not_look_for_undos_in_each_member() -> None:
    FAILING.add("bad")
    counts = []
    for size in (2, 20):
        members = [chain(note.si(f"{size}-{n}").undo(note.si("undo"))) for n in range(size)]
        chain(group(*members, note.si("bad")).undo(note.si("never")), note.si("end")).enqueue()
        hand = StepByStep()
        hand.end(*(name for name in hand.claim() if name != "bad"))
        with CaptureQueriesContext(connection) as captured:
            hand.end("bad")
        counts.append(len(captured))
    assert counts[0] == counts[1]
    assert "undo" not in DONE


def stopped(hand: StepByStep, name: str) -> None:
    """Record that a claimed job was stopped because its group has failed."""
    attempt = hand.executor.run(hand.running.pop(name))
    outcome = Cancelled(REASON)
    assert not finish(hand.settings, hand.broker, [replace(attempt, outcome=outcome)])


@pytest.mark.parametrize("is_nested", [False, True])
def test_retried_group_is_not_stopped_again_by_a_member_that_was_still_being_stopped(
    is_nested: bool,
) -> None:
    FAILING.add("a")
    slow = [note.si("b"), note.si("c")]
    member = group(slow) if is_nested else slow[0]
    workflow = group(note.si("a"), member, on_failure="stop").enqueue()
    hand = StepByStep()
    hand.claim()
    hand.end("a")
    assert state(workflow) == "FAILED"
    if is_nested:
        stopped(hand, "c")
    FAILING.clear()
    workflow.refresh()
    assert workflow.retry() == (2 if is_nested else 1)
    assert hand.claim() == (["a", "c"] if is_nested else ["a"])
    stopped(hand, "b")
    if is_nested:
        hand.end("c")
    running = [one.lease.job_id for one in hand.running.values()]
    assert not Cancellation.objects.filter(job_id__in=running).exists()
    assert state(workflow) == "RUNNING"
    hand.end("a")
    assert state(workflow) == "FAILED"
    assert workflow.retry() == 1
    hand.run_all()
    assert DONE.count("b") == 2, "once before its end was recorded"
    assert state(workflow) == "SUCCESSFUL"


def test_retried_group_is_stopped_by_a_new_failure() -> None:
    FAILING.add("a")
    workflow = group(note.si("a"), note.si("b"), note.si("c"), on_failure="stop").enqueue()
    hand = StepByStep()
    hand.claim()
    hand.end("a")
    workflow.refresh()
    assert workflow.retry() == 1
    hand.claim()
    stopped(hand, "b")
    hand.end("a")
    assert state(workflow) == "FAILED"


def test_added_steps_are_undone_if_a_later_added_step_fails() -> None:
    FAILING.add("bad")
    workflow = chain(add_with_undo.si("first"), note.si("never")).enqueue()
    StepByStep().run_all()
    assert (get_workflow(workflow.id).status, DONE) == ("FAILED", ["added", "bad", "undo added"])


def test_a_thousand_chains_without_an_undo_of_their_own_are_passed_over() -> None:
    """Such a chain has ``has_undo`` because of its steps, which are not undone any more."""
    FAILING.add("bad")
    first = note.si("first").undo(note.si("undo first"))
    workflow = chain(first, chain(note.si("last").undo(note.si("never"))), note.si("bad")).enqueue()
    StepByStep().run_all()
    assert DONE == ["first", "last", "bad", "undo first"]
    assert get_workflow(workflow.id).status == "FAILED"
    advance = Advance(settings_for())
    (root,) = Step.objects.filter(pk=workflow.id)
    Step.objects.filter(parent_id=root.pk, role="step").update(state="SUCCESSFUL")
    chains = [
        Step(id=uuid4(), workflow_id=root.pk, parent_id=root.pk, position=10 + number,
             kind="chain", state="SUCCESSFUL", has_undo=True)
        for number in range(1000)
    ]  # fmt: skip
    Step.objects.bulk_create(chains)
    assert advance._next_undo(root, None) is None
