"""Steps that end in the same transaction as others, too late, or once more."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from stoker import Snooze, chain, current_workflow, dead_letters, get_workflow, group, task
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery, Return
from stoker.conf import settings_for
from stoker.jobs.cancel import sweep_requests
from stoker.jobs.execute import Executor
from stoker.jobs.record import finish
from stoker.models import Cancellation, Job, Step
from stoker.tasks.signatures import Node
from stoker.testing import drain
from stoker.workflows import control as steering
from stoker.workflows.advance import Advance
from stoker.workflows.sweep import WorkflowSweep

from tests.workflows.tasks import DONE, FAILING, give_up, note

pytestmark = pytest.mark.django_db


@task(max_attempts=1)
def add_one(name: str) -> None:
    current_workflow().add(note.si(f"after {name}"))
    DONE.append(name)
    if name in FAILING:
        raise ValueError(name)


@task(max_attempts=1)
def add_and_snooze_once() -> None:
    current_workflow().add(note.si("added"))
    DONE.append("run")
    if DONE.count("run") == 1:
        raise Snooze(0)


def run_in_one_batch(before_it_is_recorded: Callable[[], object] = lambda: None) -> None:
    """Run all waiting jobs and record them in one transaction."""
    settings = settings_for()
    broker, executor = broker_for(settings), Executor(settings, worker_id="test")
    claimed = broker.claim(ClaimRequest(100, holder=uuid.uuid4(), lease_seconds=60))
    attempted = [executor.run(one) for one in claimed]
    before_it_is_recorded()
    assert not finish(settings, broker, attempted)


def held_steps() -> Any:
    return Step.objects.filter(state=Step.State.HELD)


def run_without_recording() -> Delivery:
    settings = settings_for()
    claimed = broker_for(settings).claim(ClaimRequest(1, holder=uuid.uuid4(), lease_seconds=60))
    Executor(settings, worker_id="test").run(claimed[0])
    return claimed[0]


def _failing() -> Node:
    return chain(note.si("bad")).on_error(note.si("told"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: group(note.si("a"), _failing()),
        lambda: group(chain(_failing()), chain(chain(note.si("a")))),
        lambda: group(
            note.si("a"), group([note.si("bad")], on_failure="stop").on_error(note.si("told"))
        ),
        lambda: group(chain(note.si("a")), chain(group(note.si("x"), _failing()))),
    ],
)
def test_on_error_runs_once_when_a_node_fails_together_with_its_parent(
    make: Callable[[], Any],
) -> None:
    FAILING.add("bad")
    make().enqueue()
    run_in_one_batch()
    drain()
    assert DONE.count("told") == 1


def test_steps_added_to_a_workflow_cancelled_meanwhile_never_run() -> None:
    workflow = chain(add_one.si("a")).enqueue()
    run_in_one_batch(workflow.cancel)
    drain()
    assert DONE == ["a"]
    assert get_workflow(workflow.id).status == "CANCELLED"


def test_steps_added_by_a_failed_run_never_run_after_a_retry() -> None:
    FAILING.add("a")
    workflow = chain(add_one.si("a")).enqueue()
    drain()
    FAILING.clear()
    assert workflow.retry() == 1
    drain()
    assert DONE == ["a", "a", "after a"]


def test_earlier_cluster_does_not_run_steps_that_an_earlier_cluster_added_before_a_retry() -> None:
    """It runs all that were added in an attempt with this number, in whichever run."""
    FAILING.add("a")
    workflow = chain(add_one.si("a")).enqueue()
    run_in_one_batch()
    held_steps().update(added_in=1, cause=None)
    assert workflow.retry() == 1
    assert [step.added_in for step in held_steps()] == [None]


def test_steps_added_before_a_snooze_never_run() -> None:
    workflow = chain(add_and_snooze_once.si()).enqueue()
    drain(include_deferred=True)
    assert DONE == ["run", "run", "added"]
    assert get_workflow(workflow.id).progress().total == 2


@task
def add_in_first_run(name: str) -> None:
    if name not in DONE:
        current_workflow().add(note.si(f"after {name}"))
    DONE.append(name)


def test_earlier_cluster_does_not_run_steps_added_by_an_interrupted_run() -> None:
    """It looks for the number of the attempt."""
    chain(add_one.si("a")).enqueue()
    attempt = run_without_recording().attempt
    assert held_steps().exists()
    assert not held_steps().filter(added_in=attempt).exists()


@pytest.mark.parametrize("is_of_earlier_version", [False, True])
def test_sweep_that_does_not_know_the_run_starts_the_steps_of_the_attempt(
    is_of_earlier_version: bool,
) -> None:
    chain(add_one.si("a")).enqueue()
    claimed = run_without_recording()
    if is_of_earlier_version:
        held_steps().update(added_in=claimed.attempt, cause=None)
    broker_for(settings_for()).settle([claimed.lease])
    Job.objects.update(status="SUCCESSFUL", attempts=claimed.attempt)
    assert WorkflowSweep(settings_for(), lambda: None).go_on() == 1
    drain()
    assert DONE == ["a", "after a"]


@pytest.mark.parametrize(
    ("adding", "expected"),
    [(add_one, ["a", "a", "after a", "end"]), (add_in_first_run, ["a", "a", "end"])],
)
def test_steps_added_by_an_interrupted_run_never_run(adding: Any, expected: list[str]) -> None:
    """A run that does not count has the same attempt number as the next one."""
    workflow = chain(adding.si("a"), note.si("end")).enqueue()
    claimed = run_without_recording()
    again = Return(claimed.lease, attempts=claimed.attempt - 1)
    broker_for(settings_for()).settle(again=[again])
    drain()
    assert expected == DONE
    assert get_workflow(workflow.id).progress().total == len(expected) - 1


@pytest.mark.parametrize("overtaken", ["steps_to_retry", "_enqueue_again"])
def test_two_retries_at_once_enqueue_each_step_once(
    overtaken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = chain(note.si("a"), note.si("b")).enqueue()
    workflow.cancel()
    really = getattr(steering, overtaken)

    def be_overtaken(*given: Any) -> Any:
        monkeypatch.setattr(steering, overtaken, really)
        if overtaken == "steps_to_retry":
            found = really(*given)
            get_workflow(workflow.id).retry()
            return found
        get_workflow(workflow.id).retry()
        return really(*given)

    monkeypatch.setattr(steering, overtaken, be_overtaken)
    assert workflow.retry() == 0
    drain()
    assert DONE == ["a", "b"]


def send_again_and_run_all(workflow: Any) -> str:
    FAILING.clear()
    (letter,) = dead_letters.find().letters
    dead_letters.requeue(letter.pk)
    drain()
    drain(include_deferred=True)
    return str(get_workflow(workflow.id).status)


@pytest.mark.parametrize("optional", [note.si("b").optional(), chain(note.si("b")).optional()])
def test_requeued_optional_step_does_not_end_a_chain_that_continued(optional: Node) -> None:
    FAILING.add("b")
    later = note.using(run_after=60).si("later")
    workflow = chain(optional, later, note.si("end")).enqueue()
    drain()
    assert send_again_and_run_all(workflow) == "SUCCESSFUL"
    assert DONE == ["b", "b", "later", "end"]


@pytest.mark.parametrize("optional", [note.si("b").optional(), chain(note.si("b")).optional()])
def test_requeued_optional_step_does_not_revive_a_failed_chain(optional: Node) -> None:
    FAILING.add("b")
    workflow = chain(optional, give_up.si("c"), note.si("end")).enqueue()
    drain()
    assert send_again_and_run_all(workflow) == "FAILED"
    assert DONE == ["b", "b"]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_requeued_optional_step_that_ends_together_with_a_later_step_does_not_stop_the_chain(
    is_reversed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database may return both steps in any order."""
    FAILING.add("a")
    workflow = chain(note.si("a").optional(), note.si("b"), note.si("c")).enqueue()
    run_in_one_batch()
    FAILING.clear()
    (letter,) = dead_letters.find().letters
    dead_letters.requeue(letter.pk)
    really = Advance._record_jobs

    def in_order(self: Advance, *given: Any) -> Any:
        wave = really(self, *given)
        return sorted(wave, key=lambda one: one.step.position, reverse=is_reversed)

    monkeypatch.setattr(Advance, "_record_jobs", in_order)
    run_in_one_batch()
    drain()
    assert (get_workflow(workflow.id).status, DONE[-1]) == ("SUCCESSFUL", "c")


def test_interrupted_cancel_is_completed_by_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = group(note.si("a"), note.si("b")).enqueue()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(steering, "_end_jobs", die)
    with pytest.raises(KeyboardInterrupt):
        flow.cancel()
    sweep_requests(settings_for())
    drain()
    assert (DONE, get_workflow(flow.id).status) == ([], "CANCELLED")
    sweep_requests(settings_for())
    assert not Cancellation.objects.exists()


def test_cancel_leaves_the_jobs_of_a_retry_that_begins_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workflow = group(note.si("a"), note.si("b")).enqueue()
    really, batches = steering.end_waiting, []

    def end_waiting(*given: Any) -> Any:
        gone = really(*given)
        batches.append(gone)
        if len(batches) == 1:  # upkeep has been faster than the rest of cancel()
            sweep_requests(settings_for())
            assert get_workflow(workflow.id).retry() == 2
        return gone

    monkeypatch.setattr(steering, "AT_ONCE", 1)
    monkeypatch.setattr(steering, "end_waiting", end_waiting)
    workflow.cancel()
    drain()
    assert get_workflow(workflow.id).status == "SUCCESSFUL"


def test_steps_added_by_a_member_of_a_failed_group_never_run() -> None:
    FAILING.add("bad")
    group([add_one.si("a"), note.si("bad")], on_failure="stop").enqueue()
    settings = settings_for()
    broker, executor = broker_for(settings), Executor(settings, worker_id="worker 1")
    claimed = broker.claim(ClaimRequest(10, holder=uuid.uuid4(), lease_seconds=60))
    attempted = [executor.run(one) for one in claimed]
    for one in sorted(attempted, key=lambda one: one.outcome.kind != "failed"):
        finish(settings, broker, [one])
    drain()
    assert sorted(DONE) == ["a", "bad"]


@task(max_attempts=1)
def add_many(count: int) -> None:
    pairs = (chain(note.si("a").undo(note.si("undo")), note.si("b")) for _ in range(count))
    current_workflow().add(group(pairs, at_once=1))


@pytest.mark.sqlite
def test_more_steps_are_added_than_a_statement_may_have_parameters() -> None:
    workflow = chain(add_many.si(1001)).enqueue()
    raw = connection.connection
    before = raw.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 1010)
    try:
        run_in_one_batch()
    finally:
        raw.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, before)
    progress = workflow.progress()
    assert (progress.total, progress.enqueued) == (1 + 3 * 1001, 1)
