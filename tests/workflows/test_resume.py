"""Retry workflows that were cancelled, or whose group stopped, while steps ran that then
succeeded."""

from __future__ import annotations

from typing import Any

import pytest

from stoker import WorkflowResult, chain, current_workflow, group, task
from stoker.conf import settings_for
from stoker.models import Step
from stoker.operations import workflows as operations
from stoker.operations.operation import Operator
from stoker.testing import drain

from tests.workflows.runner import StepByStep
from tests.workflows.tasks import DONE, FAILING, note, tell

pytestmark = pytest.mark.django_db


@task(max_attempts=1)
def split(name: str) -> str:
    """Add two parts in a group, then a step that receives their results."""
    DONE.append(name)
    current_workflow().add(group(note.si("part 1"), note.si("part 2")), tell.s("joined"))
    return name


def running(node: Any) -> tuple[WorkflowResult, StepByStep]:
    """Start a workflow and claim its first jobs."""
    workflow, hand = node.enqueue(), StepByStep()
    hand.claim()
    return workflow, hand


def end_by_retry(workflow: WorkflowResult, expected: int) -> str:
    """Retry a workflow, run its steps, and return how it ended."""
    workflow.refresh()
    FAILING.clear()
    assert workflow.retry() == expected
    StepByStep().run_all()
    workflow.refresh()
    assert not Step.objects.exclude(state="SUCCESSFUL").exists()
    return workflow.status


def test_group_whose_members_succeeded_after_it_was_stopped_continues() -> None:
    FAILING.add("d")
    inner = chain(group(note.si("a"), note.si("b")), note.si("c"))
    workflow, hand = running(group(inner, note.si("d"), on_failure="stop"))
    hand.end("d")
    hand.end("a")
    hand.end("b")
    assert end_by_retry(workflow, 2) == "SUCCESSFUL"
    assert sorted(DONE) == ["a", "b", "c", "d", "d"]


def test_workflow_whose_group_failed_again_for_its_stopped_members_can_be_retried() -> None:
    """The first retry comes while the other members still run."""
    FAILING.add("d")
    inner = chain(group(note.si("a"), note.si("b")), note.si("c"))
    workflow, hand = running(group(inner, note.si("d"), on_failure="stop"))
    hand.end("d")
    FAILING.clear()
    workflow.refresh()
    assert workflow.retry() == 1
    hand.end("a")
    hand.end("b")
    hand.run_all()
    workflow.refresh()
    assert workflow.status == "FAILED"
    assert end_by_retry(workflow, 1) == "SUCCESSFUL"


def test_group_that_was_cancelled_between_its_members_continues_with_the_next() -> None:
    workflow, hand = running(group((note.si(name) for name in "abcd"), at_once=1))
    workflow.cancel()
    hand.end("a")
    assert end_by_retry(workflow, 1) == "SUCCESSFUL"
    assert sorted(DONE) == ["a", "b", "c", "d"]


def test_group_that_was_cancelled_while_its_last_member_ran_is_completed() -> None:
    workflow, hand = running(chain(group(note.si("a"), note.si("b")), tell.s("end")))
    hand.end("a")
    workflow.cancel()
    hand.end("b")
    assert end_by_retry(workflow, 1) == "SUCCESSFUL"
    assert DONE == ["a", "b", ("end", ["a", "b"])]


def test_workflow_that_was_cancelled_while_its_last_step_ran_is_completed() -> None:
    workflow, hand = running(chain(chain(note.si("a"))))
    workflow.cancel()
    hand.end("a")
    assert end_by_retry(workflow, 1) == "SUCCESSFUL"
    assert workflow.value == "a"


def test_stopped_step_that_is_optional_is_left_out() -> None:
    inner = chain(note.si("a"), note.si("b")).optional()
    workflow, hand = running(chain(inner, note.si("c")))
    workflow.cancel()
    hand.end("a")
    workflow.refresh()
    assert workflow.retry() == 1
    hand.run_all()
    workflow.refresh()
    assert (workflow.status, DONE) == ("SUCCESSFUL", ["a", "c"])


def test_stopped_chain_that_the_workflow_has_left_behind_does_not_continue() -> None:
    FAILING.update(["bad", "c"])
    members = group(chain(note.si("a"), note.si("b")), note.si("bad"), on_failure="stop")
    workflow, hand = running(chain(members.optional(), note.si("c")))
    hand.end("bad")
    hand.end("a")
    hand.run_all()
    workflow.refresh()
    assert workflow.status == "FAILED"
    FAILING.clear()
    assert workflow.retry() == 1
    hand.run_all()
    workflow.refresh()
    assert (workflow.status, DONE) == ("SUCCESSFUL", ["bad", "a", "c", "c"])


def test_retry_in_the_background_continues_stopped_groups() -> None:
    members = [group((note.si(f"{one}{n}") for n in range(3)), at_once=1) for one in "ab"]
    workflow, hand = running(group(*members))
    workflow.cancel()
    hand.end("a0", "b0")
    done = operations.RETRY.perform(Operator(settings_for(), "alice"), workflow.id)
    assert done.is_good
    drain()
    workflow.refresh()
    assert (workflow.status, len(DONE)) == ("SUCCESSFUL", 6)


# -- steps that a job has added -------------------------------------------------------------------


def test_steps_that_a_job_added_while_its_workflow_was_cancelled_run_after_a_retry() -> None:
    workflow, hand = running(chain(split.si("split"), tell.s("end")))
    workflow.cancel()
    hand.end("split")
    workflow.refresh()
    assert (workflow.status, workflow.progress().waiting) == ("CANCELLED", 4)
    assert end_by_retry(workflow, 1) == "SUCCESSFUL"
    joined = ("joined", ["part 1", "part 2"])
    assert ["split", "part 1", "part 2", joined, ("end", ["part 1", "part 2"])] == DONE


def test_steps_that_a_member_of_a_stopped_group_added_run_after_a_retry() -> None:
    FAILING.add("bad")
    workflow, hand = running(group(split.si("split"), note.si("bad"), on_failure="stop"))
    hand.end("bad")
    hand.end("split")
    assert end_by_retry(workflow, 2) == "SUCCESSFUL"
    assert workflow.value == [["part 1", "part 2"], "bad"]


def test_step_whose_added_steps_were_stopped_can_be_retried_alone() -> None:
    workflow, hand = running(chain(split.si("split"), tell.s("end")))
    workflow.cancel()
    hand.end("split")
    workflow.refresh()
    step = Step.objects.get(workflow_id=workflow.id, label__endswith="split")
    assert workflow.retry(step=step.pk) >= 1
    hand.run_all()
    workflow.refresh()
    assert workflow.status == "SUCCESSFUL"


def test_steps_that_a_job_added_in_a_chain_that_is_undone_never_run() -> None:
    FAILING.add("bad")
    stopped = chain(split.si("split").undo(note.si("unsplit")), note.si("never"))
    workflow, hand = running(group(stopped, note.si("bad"), on_failure="stop"))
    hand.end("bad")
    hand.end("split")
    hand.run_all()
    workflow.refresh()
    assert (workflow.status, DONE) == ("FAILED", ["bad", "split", "unsplit"])


@task(max_attempts=1)
def add_reader(name: str) -> str:
    current_workflow().add(tell.s("added"))
    return name


def test_added_step_that_starts_after_a_cancel_receives_its_argument() -> None:
    workflow, hand = running(chain(add_reader.si("x")))
    hand.end("x")
    assert hand.claim() == ["added"]
    workflow.cancel()
    hand.end("added")
    assert DONE == [("added", "x")]
