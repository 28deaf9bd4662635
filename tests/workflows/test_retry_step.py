"""Retry one step of a workflow."""

import time
from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from stoker import WorkflowResult, chain, current_workflow, dead_letters, group, task
from stoker.conf import settings_for
from stoker.jobs.package import sealer_for
from stoker.models import DeadLetter, Job, Requeue, Step, Workflow
from stoker.testing import drain

from tests.workflows.runner import StepByStep
from tests.workflows.tasks import DONE, FAILING, note, tell_failure

pytestmark = pytest.mark.django_db(transaction=True)


@task(max_attempts=1)
def add_failing_step() -> None:
    current_workflow().add(note.si("added"))


@task(max_attempts=1, expires=3600)
def note_in_time(name: str) -> None:
    DONE.append(name)


def failed(workflow: WorkflowResult, label: str = "") -> Step:
    """Return the first failed task of the workflow."""
    steps = Step.objects.filter(workflow_id=workflow.id, kind="task", state="FAILED")
    return steps.filter(label__contains=label).order_by("pk")[0]


def failing(*names: str) -> None:
    FAILING.clear()
    FAILING.update(names)


def test_only_the_named_step_of_a_group_is_retried() -> None:
    failing("a", "b")
    workflow = group(note.si("a"), note.si("b"), note.si("c")).enqueue()
    drain()
    failing("b")
    DONE.clear()
    step = failed(workflow)
    assert workflow.retry(by="anna", because="mended", step=step.pk) == 1
    assert workflow.status == "RUNNING"
    drain()
    workflow.refresh()
    assert DONE == ["a"]
    assert workflow.status == "FAILED", "the other member has failed still"
    sent = Requeue.objects.get()
    assert (sent.by, sent.because, sent.from_job_id) == ("anna", "mended", step.job_id)
    failing()
    assert workflow.retry(step=failed(workflow).job_id) == 1
    drain()
    workflow.refresh()
    assert workflow.status == "SUCCESSFUL"


def test_chain_continues_from_the_retried_step() -> None:
    failing("b")
    workflow = chain(note.si("a"), note.si("b"), note.si("c")).enqueue()
    drain()
    failing()
    assert workflow.retry(step=failed(workflow).pk) == 1
    drain()
    workflow.refresh()
    assert (DONE, workflow.status) == (["a", "b", "b", "c"], "SUCCESSFUL")


def test_step_is_retried_while_the_others_run() -> None:
    failing("a")
    workflow = group(note.si("a"), note.si("b"), at_once=1).enqueue()
    drain(until_empty=False)
    failing()
    workflow.refresh()
    assert workflow.status == "RUNNING"
    workflow.retry(step=failed(workflow).pk)
    drain()
    workflow.refresh()
    assert (sorted(DONE), workflow.status) == (["a", "a", "b"], "SUCCESSFUL")


def test_members_that_never_started_begin_with_the_retried_one() -> None:
    failing("a")
    members = [note.si(name) for name in "abc"]
    workflow = group(*members, at_once=1, on_failure="stop").enqueue()
    drain()
    failing()
    workflow.refresh()
    assert workflow.status == "FAILED"
    workflow.retry(step=failed(workflow).pk)
    drain()
    workflow.refresh()
    assert (sorted(DONE), workflow.status) == (["a", "a", "b", "c"], "SUCCESSFUL")


def test_cancelled_step_is_retried() -> None:
    workflow = chain(note.si("a"), note.si("b")).enqueue()
    workflow.cancel()
    step = Step.objects.get(workflow_id=workflow.id, state="CANCELLED", kind="task")
    assert workflow.retry(step=step.pk) == 1
    drain()
    workflow.refresh()
    assert (DONE, workflow.status) == (["a", "b"], "SUCCESSFUL")


def test_discarded_dead_letter_does_not_prevent_a_retry() -> None:
    failing("a")
    workflow = chain(note.si("a")).enqueue()
    drain()
    failing()
    DeadLetter.objects.update(state="discarded")
    workflow.retry(step=failed(workflow).pk)
    drain()
    workflow.refresh()
    assert workflow.status == "SUCCESSFUL"


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_step_that_is_retried_after_its_expiry_gets_a_new_one(is_cancelled: bool) -> None:
    """Otherwise the first retry would expire at once."""
    an_hour_ago = timezone.now() - timedelta(hours=1)
    workflow = chain(note_in_time.using(expires=an_hour_ago).si("a"), note.si("b")).enqueue()
    if is_cancelled:
        workflow.cancel()
    else:
        drain()
        dead_letters.discard(DeadLetter.objects.get(reason="expired").pk)
        workflow.refresh()
    assert workflow.retry() == 1
    job = Job.objects.get(status=None)
    expires_at = sealer_for(settings_for()).open(bytes(job.package)).options.expires_at
    assert expires_at == pytest.approx(time.time() + 3600, abs=600)
    drain()
    workflow.refresh()
    assert (DONE, workflow.status) == (["a", "b"], "SUCCESSFUL")


def test_requeued_callback_leaves_the_failed_chain_to_be_retried() -> None:
    failing("a", "callback")
    workflow = chain(note.si("a"), on_error=note.si("callback")).enqueue()
    drain()
    failing()
    callback = Step.objects.get(workflow_id=workflow.id, role="error")
    assert callback.job_id is not None
    dead_letters.requeue(callback.job_id)
    drain()
    workflow.refresh()
    assert (DONE[-1], workflow.status) == ("callback", "FAILED")
    assert workflow.retry() == 1
    drain()
    workflow.refresh()
    assert workflow.status == "SUCCESSFUL"


def test_step_that_cannot_be_retried_is_refused_with_the_reason() -> None:
    failing("b", "added")
    workflow = chain(note.si("a").undo(note.si("undo a")), note.si("b")).enqueue()
    added = chain(add_failing_step.si()).enqueue()
    drain()
    steps = Step.objects.filter(workflow_id=workflow.id)
    for step, sentence in (
        (steps.get(state="SUCCESSFUL", kind="task", role="step"), "it is SUCCESSFUL"),
        (steps.get(parent_id=None), "it is a chain, not a task"),
        (steps.get(role="undo"), "it is an undo or on_error step"),
        (failed(workflow), "steps of its chain were undone"),
    ):
        with pytest.raises(ValueError, match=sentence):
            workflow.retry(step=step.pk)
    with pytest.raises(ValueError, match="steps that its job added have failed"):
        added.retry(step=failed(added, "add_failing_step").pk)
    for unknown in (uuid4(), failed(added).pk, "x"):
        with pytest.raises(ValueError, match=r"has no step|is not the id of a step"):
            workflow.retry(step=unknown)
    assert set(Workflow.objects.values_list("state", flat=True)) == {"FAILED"}
    assert not Requeue.objects.exists()


@pytest.mark.parametrize("is_of_chain", [True, False])
def test_on_error_receives_the_failed_job_though_its_step_was_retried_before(
    is_of_chain: bool,
) -> None:
    FAILING.add("bad")
    step = note.si("bad")
    flow = chain(step) if is_of_chain else chain(step.on_error(tell_failure.s()))
    workflow = (flow.on_error(tell_failure.s()) if is_of_chain else flow).enqueue()
    hand = StepByStep()
    hand.claim()
    hand.end("bad")
    job_id = str(failed(workflow).job_id)
    FAILING.clear()
    workflow.refresh()
    assert workflow.retry() == 1
    hand.claim()
    hand.end("bad")
    hand.run_all()
    assert DONE[-1] == (job_id, ["builtins.ValueError"])
