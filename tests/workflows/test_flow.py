"""Workflows run each step once, in order, with the right arguments."""

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext

from stoker import chain, chord, dead_letters, get_workflow, group
from stoker.models import Ready, Step
from stoker.testing import drain

from tests.workflows.tasks import (
    DONE,
    FAILING,
    add,
    add_and_fail_once,
    double,
    double_later,
    fan_out,
    give_up,
    note,
    tell,
    tell_result,
    total,
)

pytestmark = pytest.mark.django_db


def run(node: Any) -> Any:
    """Run a workflow to its end."""
    workflow = node.enqueue()
    drain()
    workflow.refresh()
    return workflow


def test_chain_passes_each_result_to_the_next_step() -> None:
    workflow = run(chain(add.s(1, 2), add.s(3), tell.si("end"), double.si(4)))
    assert DONE == [(1, 2), (3, 3), "end"]
    assert (workflow.status, workflow.value) == ("SUCCESSFUL", 8)


def test_chord_passes_the_results_in_order_to_its_callback() -> None:
    workflow = run(chord([double.s(number) for number in range(10)], total.s()))
    assert workflow.value == 90
    assert workflow.wait(timeout=0) == 90


def test_callback_with_high_priority_waits_for_every_member() -> None:
    """Its priority would put it first in the queue, but it is not enqueued before."""
    first = total.using(priority=100).s()
    assert run(chord([double.s(number) for number in range(4)], first)).value == 12


def test_nested_workflow_passes_results_through() -> None:
    node = add.s(1, 1) | (double.s() & (add.s(1) | double.s())) | tell.s()
    assert run(node).value == [4, 6]
    assert DONE[-1] == [4, 6]


def test_group_without_callback_returns_results_in_order() -> None:
    workflow = run(group(double.s(number) for number in range(5)))
    assert list(workflow.results()) == workflow.value == [0, 2, 4, 6, 8]
    assert workflow.progress().successful == 5


def test_chord_without_members_calls_its_callback_with_an_empty_list() -> None:
    assert run(chord([], tell.s())).value == []


@pytest.mark.parametrize("of_task", [double, double_later])
def test_map_runs_in_chunks(of_task: Any) -> None:
    workflow = run(chain(of_task.map(range(10), chunk=4), total.s()))
    assert workflow.value == 90
    assert workflow.progress().total == 4


def test_starmap_passes_each_tuple_as_arguments() -> None:
    assert run(add.starmap([(1, 2), (3, 4)])).value == [3, 7]


def test_failed_step_stops_its_chain() -> None:
    FAILING.add("b")
    workflow = run(chain(note.si("a"), note.si("b"), note.si("c")))
    assert (workflow.status, DONE) == ("FAILED", ["a", "b"])
    assert [step.label for step in workflow.failed_steps()] == ["tests.workflows.tasks.note"]
    progress = workflow.progress()
    assert (progress.successful, progress.failed, progress.waiting) == (1, 1, 1)


def test_failed_optional_step_does_not_stop_its_chain() -> None:
    FAILING.add("b")
    workflow = run(chain(note.si("a"), note.si("b").optional(), tell.s("c")))
    assert (workflow.status, DONE) == ("SUCCESSFUL", ["a", "b", ("c", None)])


def test_failed_chain_undoes_finished_steps_in_reverse() -> None:
    FAILING.add("c")
    node = chain(
        note.si("a").undo(tell.s("undo")),
        note.si("b").undo(note.si("not b")),
        note.si("c").undo(note.si("never")),
        note.si("d"),
    )
    workflow = run(node)
    assert DONE == ["a", "b", "c", "not b", ("undo", "a")]
    assert workflow.status == "FAILED"


def test_on_error_receives_the_result_of_the_failed_job() -> None:
    FAILING.add("b")
    run(chain(note.si("a"), note.si("b"), on_error=tell_result.s("oh")))
    assert DONE == ["a", "b", ("oh", "FAILED", None)]


@pytest.mark.parametrize("is_nested", [False, True])
def test_on_error_that_begins_with_an_empty_group_continues(is_nested: bool) -> None:
    FAILING.add("a")
    failing = chain(note.si("a"), on_error=chord([], tell.si("told")))
    run(chain(failing, note.si("never")) if is_nested else failing)
    assert DONE == ["a", "told"]
    assert not Step.objects.filter(state="STARTED").exists()


@pytest.mark.parametrize("is_nested", [False, True])
def test_on_error_of_a_step_that_begins_with_an_empty_group_continues(is_nested: bool) -> None:
    FAILING.add("a")
    failing = note.si("a").on_error(chord([], tell.si("told")))
    run(group(failing, note.si("b")) if is_nested else chain(failing))
    assert sorted(DONE) == (["a", "b", "told"] if is_nested else ["a", "told"])


def test_cancelled_step_fails_its_chain() -> None:
    assert run(chain(give_up.si("no"), note.si("b"))).status == "FAILED"
    assert DONE == []


def test_failed_member_lets_the_other_members_run_by_default() -> None:
    FAILING.add("a")
    workflow = run(chord([note.si("a"), note.si("b"), note.si("c")], tell.s()))
    assert (workflow.status, DONE) == ("FAILED", ["a", "b", "c"])


def test_failed_member_cancels_the_others_with_on_failure_stop() -> None:
    FAILING.add("a")
    members = group(note.si("a"), note.si("b"), note.si("c"), on_failure="stop")
    workflow = run(chain(members, note.si("d")))
    assert (workflow.status, DONE) == ("FAILED", ["a"])
    assert workflow.progress().cancelled == 2


def test_group_with_on_failure_continue_succeeds_despite_a_failed_member() -> None:
    FAILING.add("b")
    members = group(note.si("a"), note.si("b"), on_failure="continue")
    assert run(chain(members, tell.s())).value == ["a", None]


def test_group_with_at_once_limits_its_enqueued_members() -> None:
    workflow = group((note.si(name) for name in "abcde"), at_once=2).enqueue()
    enqueued = Step.objects.filter(state="ENQUEUED")
    assert enqueued.count() == 2
    drain(until_empty=False)
    assert (len(DONE), enqueued.count()) == (2, 2)
    drain()
    workflow.refresh()
    assert (workflow.status, sorted(DONE)) == ("SUCCESSFUL", [*"abcde"])


def test_requeued_members_do_not_raise_the_number_at_once() -> None:
    FAILING.update("abc")
    workflow = group((note.si(name) for name in "abcdefghijklmn"), at_once=2).enqueue()
    enqueued = Step.objects.filter(state="ENQUEUED")
    drain(until_empty=False)
    drain(until_empty=False)
    assert enqueued.count() == 2
    FAILING.clear()
    for letter in dead_letters.find().letters:
        dead_letters.requeue(letter.pk)
    assert enqueued.count() == 5, "a requeue starts its job at once"
    drain(until_empty=False)
    assert enqueued.count() == 2
    drain()
    workflow.refresh()
    assert (workflow.status, sorted(DONE)) == ("SUCCESSFUL", sorted("abcabcdefghijklmn"))


def test_cancel_ends_waiting_steps() -> None:
    workflow = chain(group(note.si("a"), note.si("b")), note.si("c")).enqueue()
    assert workflow.cancel("enough")
    assert not drain()
    assert (workflow.status, workflow.reason) == ("CANCELLED", "enough")
    assert workflow.progress().cancelled == 2
    assert not workflow.cancel()


def test_retry_continues_from_the_failed_step() -> None:
    FAILING.add("b")
    workflow = run(chain(note.si("a"), note.si("b"), tell.s("c")))
    FAILING.clear()
    assert workflow.retry() == 1
    assert workflow.status == "RUNNING"
    drain()
    workflow.refresh()
    assert (workflow.status, DONE) == ("SUCCESSFUL", ["a", "b", "b", ("c", "b")])


def test_retry_after_a_cancel_runs_the_workflow() -> None:
    workflow = chain(note.si("a"), note.si("b")).enqueue()
    workflow.cancel()
    assert workflow.retry() == 1
    drain()
    assert get_workflow(workflow.id).status == "SUCCESSFUL"


def test_retry_after_a_cancel_between_two_steps_continues_with_the_second() -> None:
    workflow = chain(note.si("a"), chain(note.si("b"), note.si("c")), note.si("d")).enqueue()
    drain(until_empty=False)
    Step.objects.filter(workflow_id=workflow.id, state="ENQUEUED").update(state="SUCCESSFUL")
    Ready.objects.all().delete()  # as if it had succeeded just before the workflow was cancelled
    workflow.cancel()
    assert workflow.retry() == 1
    drain()
    assert (get_workflow(workflow.id).status, DONE) == ("SUCCESSFUL", ["a", "c", "d"])


def test_retry_of_a_stopped_group_runs_all_members() -> None:
    FAILING.add("a")
    members = group((note.si(name) for name in "abcde"), on_failure="stop", at_once=3)
    workflow = run(chain(members, tell.s()))
    assert DONE == ["a"]
    FAILING.clear()
    workflow.retry()
    drain()
    workflow.refresh()
    assert workflow.value == [*"abcde"]


def test_task_adds_steps_that_run_before_the_next_step() -> None:
    workflow = run(chain(fan_out.s(5), double.s()))
    assert workflow.value == 40
    assert workflow.progress().total == 8


def test_number_of_queries_for_results_does_not_grow_with_the_number_of_chains() -> None:
    counts = []
    for size in (2, 9):
        members = [chain(double.si(one), chain(double.s(), fan_out.si(2))) for one in range(size)]
        workflow = run(group(*members, double.si(3)))
        with CaptureQueriesContext(connection) as queries:
            assert workflow.value == [2] * size + [6]
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_steps_added_by_a_failed_attempt_never_run() -> None:
    workflow = run(chain(add_and_fail_once.s("x"), tell.s("end")))
    assert DONE == ["x", "x", ("added", "x"), ("end", "x")]
    assert workflow.status == "SUCCESSFUL"


@pytest.mark.django_db(transaction=True)
def test_async_code_can_enqueue_and_await_a_workflow() -> None:
    """Like an async view: enqueue, then await the result."""

    async def make() -> Any:
        return await chain(add.s(1, 2), double.s()).aenqueue(name="later")

    workflow = async_to_sync(make)()
    drain()

    async def ask() -> Any:
        return await workflow

    assert async_to_sync(ask)() == 6
    assert workflow.name == "later"
