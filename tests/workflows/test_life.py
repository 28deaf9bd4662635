"""Workflows continue however a job ends, and finished workflows are pruned."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from stoker import WorkflowResult, chain, chord, dead_letters, get_workflow, group, queues
from stoker.brokers.adapters import broker_for
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler.scheduler import Upkeep
from stoker.compat import TaskResultDoesNotExist
from stoker.conf import settings_for
from stoker.exceptions import JobFailed, WorkflowNotFound
from stoker.jobs.relay import relay_from
from stoker.jobs.results import fetch
from stoker.models import DeadLetter, Job, Ready, Step, Workflow
from stoker.testing import drain
from stoker.workflows.deliver import Ended
from stoker.workflows.follow import follow
from stoker.workflows.sweep import WorkflowSweep

from tests.integration.work import outside_the_database, work_off
from tests.workflows.tasks import DONE, FAILING, double, note, say, tell, tell_result, total

pytestmark = pytest.mark.django_db


def sweep() -> WorkflowSweep:
    settings = settings_for()
    return WorkflowSweep(settings, lambda: None)


def test_requeued_step_resumes_its_workflow() -> None:
    FAILING.add("b")
    workflow = chain(note.si("a"), note.si("b"), tell.s("c")).enqueue()
    drain()
    assert get_workflow(workflow.id).status == "FAILED"
    (letter,) = dead_letters.find().letters
    FAILING.clear()
    dead_letters.requeue(letter.pk)
    assert get_workflow(workflow.id).status == "RUNNING"
    drain()
    assert get_workflow(workflow.id).status == "SUCCESSFUL"
    assert DONE[-1] == ("c", "b")


def test_requeued_step_receives_the_same_arguments() -> None:
    FAILING.add("b")
    workflow = chain(note.si("a"), chain(say.s("b")), tell.s("c")).enqueue()
    drain()
    assert get_workflow(workflow.id).retry() == 1
    drain()
    assert get_workflow(workflow.id).status == "FAILED"
    FAILING.clear()
    (letter,) = dead_letters.find().letters
    dead_letters.requeue(letter.pk)
    drain()
    assert ["a", *[("b", "a")] * 3, ("c", "b")] == DONE


def test_group_resumes_after_every_failed_member_is_requeued() -> None:
    FAILING.update("ab")
    workflow = chord([note.si("a"), note.si("b"), note.si("c")], tell.s()).enqueue()
    drain()
    first, second = dead_letters.find().letters
    FAILING.clear()
    dead_letters.requeue(first.pk)
    drain()
    assert get_workflow(workflow.id).status == "FAILED"
    dead_letters.requeue(second.pk)
    drain()
    assert get_workflow(workflow.id).value == ["a", "b", "c"]


def test_cancelled_job_fails_its_chain() -> None:
    workflow = chain(note.si("a"), note.si("b"), on_error=tell_result.s("oh")).enqueue()
    (step,) = [one for one in workflow.steps() if one.state == "ENQUEUED"]
    assert fetch(settings_for(), step.job_id).cancel()
    drain()
    assert get_workflow(workflow.id).status == "FAILED"
    assert DONE == [("oh", "CANCELLED", None)]


def test_cleared_queue_fails_the_workflows_of_its_jobs() -> None:
    workflow = group(note.si("a"), note.si("b")).enqueue()
    queues.clear("default")
    assert get_workflow(workflow.id).status == "FAILED"


def test_failed_workflow_names_the_step_that_made_it_fail_and_its_error() -> None:
    FAILING.add("x")
    members = [double.s(1), note.s("x").optional(), double.s(3)]
    workflow = chord(members, total.s()).enqueue()
    drain()
    with pytest.raises(
        JobFailed, match=r"tasks\.total failed \(attempt 1\): .*TypeError"
    ) as caught:
        get_workflow(workflow.id).wait(0)
    assert str(caught.value).startswith(f"Workflow {workflow.id} failed: Job ")
    assert [error.exception_class for error in caught.value.errors] == [TypeError]


def test_failed_chain_includes_the_error_of_its_step() -> None:
    FAILING.add("x")
    workflow = chain(note.si("a"), note.si("x"), note.si("b")).enqueue()
    drain()
    with pytest.raises(JobFailed, match=r"tasks\.note failed \(attempt 1\): .*ValueError: x"):
        get_workflow(workflow.id).wait(0)
    job_id = str(Step.objects.get(pk=workflow.id).cause)
    Job.objects.filter(pk=job_id).delete()
    with pytest.raises(JobFailed, match=rf"failed: job {job_id} of .*\.tasks\.note\."):
        get_workflow(workflow.id).wait(0)


def test_sweep_continues_a_workflow_whose_job_was_deleted() -> None:
    workflow = chain(note.si("a").optional(), note.si("b")).enqueue()
    Ready.objects.all().delete()
    Job.objects.all().delete()
    assert sweep().go_on() == 1
    drain()
    assert (get_workflow(workflow.id).status, DONE) == ("SUCCESSFUL", ["b"])


def test_sweep_ignores_steps_under_way() -> None:
    chain(note.si("a"), note.si("b")).enqueue()
    assert sweep().go_on() == 0


def test_outcome_recorded_again_changes_nothing() -> None:
    workflow = chain(note.si("a"), note.si("b"), note.si("c")).enqueue()
    first = next(step for step in workflow.steps() if step.state == "ENQUEUED")
    drain()
    ended = Ended(UUID(first.job_id or ""), Job.Status.FAILED, 1)
    follow(settings_for(), [ended])
    drain()
    assert (get_workflow(workflow.id).status, DONE) == ("SUCCESSFUL", ["a", "b", "c"])
    states = {step.state for step in workflow.steps()}
    assert states == {"SUCCESSFUL"}


def test_results_are_passed_on_though_they_are_not_kept(settings: Any) -> None:
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"KEEP_RESULTS": False}}}
    workflow = chord([double.s(1), double.s(2)], chain(total.s(), tell.s())).enqueue()
    drain()
    assert DONE == [6]
    assert get_workflow(workflow.id).status == "SUCCESSFUL"
    assert not Job.objects.exists()
    with pytest.raises(TaskResultDoesNotExist, match=r"tasks\.tell .*is not kept"):
        workflow.wait(1)


def test_value_of_a_group_is_refused_if_the_result_of_a_member_is_not_kept() -> None:
    FAILING.add("b")
    members = [note.si("a"), note.si("b").optional(), note.si("c")]
    workflow = group(members).enqueue()
    drain()
    workflow.refresh()
    assert workflow.value == ["a", None, "c"]
    Job.objects.filter(task="tests.workflows.tasks.note", status="SUCCESSFUL").first().delete()
    with pytest.raises(TaskResultDoesNotExist, match="is not kept"):
        _ = workflow.value
    assert list(workflow.results()).count(None) == 2


def test_values_are_deleted_and_workflows_pruned() -> None:
    workflow = chord([double.s(1), double.s(2)], total.s()).enqueue()
    drain()
    assert Step.objects.exclude(value=None).count() == 2
    assert sweep().forget_values() == 2
    assert get_workflow(workflow.id).value == 6
    assert sweep().prune() == 0
    Workflow.objects.update(finished_at=timezone.now() - timedelta(days=8))
    Upkeep(Plan(), settings_for(), broker_for(settings_for()), lambda: None).run()
    assert not Workflow.objects.exists()
    assert not Step.objects.exists()


def old_failed_workflow(count: int = 3) -> WorkflowResult:
    """Return a workflow with that many failed steps that need not be kept any more."""
    names = [f"m{number}" for number in range(count)]
    FAILING.update(names)
    workflow = group(note.si(name) for name in names).enqueue()
    drain()
    FAILING.clear()
    Workflow.objects.update(finished_at=timezone.now() - timedelta(days=800))
    workflow.refresh()
    return workflow


def test_workflow_that_is_retried_just_before_it_is_pruned_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workflow = old_failed_workflow()
    really = WorkflowSweep._remove

    def remove(*given: Any) -> bool:
        assert workflow.retry() == 3
        return really(*given)

    monkeypatch.setattr(WorkflowSweep, "_remove", remove)
    assert sweep().prune() == 0
    drain()
    assert get_workflow(workflow.id).status == "SUCCESSFUL"


def test_workflow_with_a_requeued_step_is_not_pruned() -> None:
    _, letter = succeeded_without("b", note.si("a"), say.s("b").optional())
    Workflow.objects.update(finished_at=timezone.now() - timedelta(days=800))
    dead_letters.requeue(letter.pk)
    assert sweep().prune() == 0
    drain()
    assert DONE[-1] == ("b", "a")
    assert sweep().prune() == 1


@pytest.mark.django_db(transaction=True)
def test_workflow_that_is_half_deleted_cannot_be_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = old_failed_workflow()
    settings = settings_for()

    def die() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("stoker.workflows.sweep.AT_ONCE", 1)
        with pytest.raises(KeyboardInterrupt):
            WorkflowSweep(settings, die).prune()
    assert Step.objects.filter(workflow_id=workflow.id).count() == 2
    step = Step.objects.filter(workflow_id=workflow.id, kind="task")[0]
    for only in (None, step.pk):
        with pytest.raises(WorkflowNotFound):
            workflow.retry(step=only)
    assert not Ready.objects.exists()
    assert sweep().prune() == 1
    assert not Step.objects.exists()
    assert not Workflow.objects.exists()


def test_unfinished_workflow_is_not_pruned() -> None:
    group(note.si("a")).enqueue()
    Workflow.objects.update(made_at=timezone.now() - timedelta(days=800))
    assert sweep().prune() == 0


@pytest.mark.django_db(transaction=True)
def test_workflow_runs_on_a_broker_outside_the_store(settings: Any) -> None:
    settings.TASKS = outside_the_database()
    FAILING.add("x")
    members = group([double.s(1), double.s(2), note.si("x")], on_failure="continue")
    workflow = chain(members, tell.s(), on_error=note.si("never")).enqueue()
    hooked = double.using(on_success=tell_result.s("good")).enqueue(4)
    while work_off():
        pass
    assert get_workflow(workflow.id).value == [2, 4, None]
    assert ("good", "SUCCESSFUL", 8) in DONE
    assert fetch(settings_for(), hooked.id).return_value == 8


@pytest.mark.django_db(transaction=True)
def test_step_that_was_never_relayed_to_the_broker_is_relayed_later(
    settings: Any, monkeypatch: Any
) -> None:
    settings.TASKS = outside_the_database()
    with monkeypatch.context() as patch:
        patch.setattr("stoker.brokers.dispatch.Dispatch.relay_outbox", lambda *_: None)
        workflow = chain(note.si("a"), note.si("b")).enqueue()
        assert not work_off()
    assert relay_from(settings_for(), "default", lambda: None) == 1
    while work_off():
        pass
    assert (get_workflow(workflow.id).status, DONE) == ("SUCCESSFUL", ["a", "b"])
    assert relay_from(settings_for(), "default", lambda: None) == 0


# -- requeued steps of workflows that have succeeded ----------------------------------------------


def succeeded_without(failing: str, *steps: Any) -> tuple[WorkflowResult, DeadLetter]:
    """Run a workflow that succeeds although a step fails. Return it and the step's dead letter."""
    FAILING.add(failing)
    workflow = chain(*steps).enqueue()
    drain()
    assert get_workflow(workflow.id).status == "SUCCESSFUL"
    FAILING.clear()
    (letter,) = dead_letters.find().letters
    return workflow, letter


def test_requeued_step_of_a_successful_workflow_receives_the_same_argument() -> None:
    _, letter = succeeded_without("b", note.si("a"), say.s("b").optional())
    assert sweep().forget_values() == 0, "the step can still be requeued"
    dead_letters.requeue(letter.pk)
    drain()
    assert DONE == ["a", ("b", "a"), ("b", "a")]
    assert sweep().forget_values() == 1


def test_requeued_undo_of_a_successful_workflow_receives_the_result() -> None:
    FAILING.update(["undo", "c"])
    inner = chain(note.si("b").undo(say.s("undo")), note.si("c"))
    workflow = chain(note.si("a"), inner.optional()).enqueue()
    drain()
    assert get_workflow(workflow.id).status == "SUCCESSFUL"
    FAILING.clear()
    for letter in dead_letters.find().letters:
        if "note" in letter.task:
            dead_letters.discard(letter.pk)
    assert sweep().forget_values() == 0
    (letter,) = dead_letters.find(task="tests.workflows.tasks.say").letters
    dead_letters.requeue(letter.pk)
    assert sweep().forget_values() == 0, "its new job has not read it"
    drain()
    assert DONE[-2:] == [("undo", "b"), ("undo", "b")]
    assert sweep().forget_values() > 0


def test_requeued_step_reads_its_argument_from_the_job_if_the_step_has_lost_it() -> None:
    _, letter = succeeded_without("b", double.s(4), say.s("b").optional())
    Step.objects.update(value=None)  # as an earlier version did
    dead_letters.requeue(letter.pk)
    drain()
    assert DONE == [("b", 8)] * 2


@pytest.mark.parametrize(
    ("lost", "sentence"),
    [
        (Job, "The result of tests.workflows.tasks.double"),
        (Workflow, "is not kept any more, so"),
    ],
)
def test_requeued_step_whose_argument_is_not_kept_fails_and_says_what_to_do(
    lost: Any, sentence: str
) -> None:
    workflow, letter = succeeded_without("b", double.s(4), say.s("b").optional())
    if lost is Job:
        Step.objects.update(value=None)
        Job.objects.filter(task="tests.workflows.tasks.double").delete()
    else:
        Step.objects.filter(workflow_id=workflow.id).delete()
        Workflow.objects.all().delete()
    dead_letters.requeue(letter.pk)
    drain()
    assert DONE == [("b", 8)]
    letter.refresh_from_db()
    assert sentence in letter.message
    assert "Enqueue the workflow again" in letter.message
