"""Large and nested groups: one transaction starts a limited number of jobs, and each group that has
started continues."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import Exists, OuterRef
from django.test.utils import CaptureQueriesContext

from stoker import WorkflowResult, chain, current_workflow, group, task
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.conf import settings_for
from stoker.jobs.execute import Executor
from stoker.jobs.record import finish
from stoker.models import Step
from stoker.models.step import UNDER_WAY
from stoker.tasks.signatures import GroupNode, Node
from stoker.testing import drain
from stoker.workflows import start
from stoker.workflows.start import Starter

from tests.integration.killed_walks import Killed
from tests.workflows.runner import StepByStep
from tests.workflows.tasks import DONE, FAILING, note

pytestmark = pytest.mark.django_db

WINDOW = 10
State = Step.State


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Counter[Starter]:
    """Return the number of jobs that each starter, so each transaction, has started."""
    counts = Counter[Starter]()
    really = Starter.deliver

    def deliver(self: Starter) -> None:
        counts[self] += len(self._messages)
        really(self)

    monkeypatch.setattr(start, "WINDOW", WINDOW)
    monkeypatch.setattr(Starter, "deliver", deliver)
    return counts


def notes(name: str, count: int) -> list[Node]:
    return [note.si(f"{name}.{number}") for number in range(count)]


def groups(name: str, count: int, size: int, **options: Any) -> list[GroupNode]:
    """Return groups of tasks."""
    return [group(*notes(f"{name}.{n}", size), **options) for n in range(count)]


def run_in_rounds(rounds: int = 1000) -> None:
    """Run the waiting jobs, then those that they started, and so on. Check after each round that
    each chain and group that has started has a step under way."""
    for _ in range(rounds):
        if not drain(until_empty=False):
            break
        below = Step.objects.filter(parent_id=OuterRef("pk"), state__in=UNDER_WAY)
        assert not Step.objects.filter(~Exists(below), state=State.STARTED).exists()


def assert_each_ran_once(workflow: WorkflowResult) -> None:
    workflow.refresh()
    assert workflow.status == "SUCCESSFUL"
    assert len(DONE) == len(set(DONE)) == workflow.progress().total


def steps_of(workflow: WorkflowResult, **values: Any) -> Any:
    return Step.objects.filter(workflow_id=workflow.id, **values)


@pytest.mark.parametrize(
    "make",
    [
        lambda: group(*notes("flat", 57)),
        lambda: group(*groups("nested", 20, 5)),
        lambda: group(*groups("few", 3, 40)),
        lambda: group(*notes("beside", 12), *groups("mixed", 12, 3)),
        lambda: group(*(group(*groups(f"deep {n}", 4, 6)) for n in range(5))),
        lambda: group(*(group(*groups(f"deeper {n}", 12, 1)) for n in range(12))),
        lambda: group(*(chain(group(*notes(f"chain {n}", 4)), note.si(f"{n}")) for n in range(12))),
        lambda: group(*groups("empty", 35, 0)),
        lambda: group(*groups("limited", 20, 5, at_once=2), at_once=3),
        lambda: group(*groups("limited members", 12, 12, at_once=1)),
        lambda: group(*groups("limited groups", 5, 12), at_once=2),
    ],
)
def test_transaction_starts_no_more_jobs_than_the_window(
    make: Callable[[], Node], started: Counter[Starter]
) -> None:
    workflow = chain(note.si("first"), make(), note.si("last")).enqueue()
    run_in_rounds()
    assert_each_ran_once(workflow)
    assert (DONE[0], DONE[-1]) == ("first", "last")
    assert max(started.values()) <= WINDOW


def test_enqueue_starts_no_more_jobs_than_the_window(started: Counter[Starter]) -> None:
    workflow = group(*groups("nested", 20, 5)).enqueue()
    assert list(started.values()) == [WINDOW]
    run_in_rounds()
    assert_each_ran_once(workflow)


def test_empty_groups_among_others_end_at_once(started: Counter[Starter]) -> None:
    members = [*groups("empty", 15, 0), *groups("full", 15, 3), *groups("also empty", 15, 0)]
    workflow = chain(group(*members), note.si("last")).enqueue()
    run_in_rounds()
    assert_each_ran_once(workflow)
    assert max(started.values()) <= WINDOW + 1, "the member after an empty group starts, too"


def test_groups_beside_a_large_group_do_not_wait_until_it_has_ended() -> None:
    """Its jobs may be slow, or of a queue that no cluster serves."""
    members = [group(*notes("large", 50)), *groups("other", 3, 50)]
    workflow = group(*members).enqueue()
    enqueued = steps_of(workflow, kind="task", state=State.ENQUEUED)
    per_group = Counter(enqueued.values_list("parent_id", flat=True))
    assert sorted(per_group.values()) == [2, 2, 3, 3]


def test_nested_at_once_is_kept_when_groups_continue() -> None:
    workflow = group(*groups("limited", 8, 7, at_once=2), at_once=3).enqueue()
    while drain(until_empty=False):
        under_way = steps_of(workflow, state__in=UNDER_WAY).exclude(parent_id=None)
        per_parent = Counter(under_way.values_list("parent_id", flat=True))
        limits = {
            pk: 3 if pk == steps_of(workflow).get(pk=pk).workflow_id else 2 for pk in per_parent
        }
        assert all(count <= limits[pk] for pk, count in per_parent.items())
    assert_each_ran_once(workflow)


def test_statements_of_a_start_do_not_grow_with_the_number_of_groups() -> None:
    counts = []
    for count in (2, 9):
        chain(note.si("first"), group(*groups(f"{count}", count, 5, at_once=1))).enqueue()
        hand = StepByStep()
        hand.claim()
        with CaptureQueriesContext(connection) as captured:
            hand.end("first")
        counts.append(len(captured))
        hand.run_all()
    assert counts[0] == counts[1]


def test_each_group_continues_when_members_of_many_end_in_one_transaction(
    started: Counter[Starter],
) -> None:
    workflows = [group(*notes(f"{number}", 30)).enqueue() for number in range(15)]
    hand = StepByStep()
    names = hand.claim()
    started.clear()
    hand.end(*names)
    (count,) = started.values()
    assert WINDOW < count <= WINDOW + len(workflows)
    for workflow in workflows:
        assert steps_of(workflow, state=State.ENQUEUED).exists()
    run_in_rounds()
    for workflow in workflows:
        workflow.refresh()
        assert workflow.status == "SUCCESSFUL"


def test_nested_groups_that_end_in_one_transaction_let_others_start(
    started: Counter[Starter],
) -> None:
    workflow = group(
        *(chain(one, note.si(str(n))) for n, one in enumerate(groups("g", 40, 1)))
    ).enqueue()
    hand = StepByStep()
    while names := hand.claim():
        started.clear()
        hand.end(*names)
        assert sum(started.values()) <= WINDOW + len(names)
    assert_each_ran_once(workflow)


def test_stopped_group_with_postponed_members_runs_each_undo() -> None:
    FAILING.add("bad")
    members = [
        chain(note.si(f"a {n}").undo(note.si(f"undo {n}")), *notes(f"b {n}", 2)) for n in range(25)
    ]
    pairs = [group(*members[n : n + 5]) for n in range(0, 25, 5)]
    workflow = group(note.si("bad"), group(*pairs), on_failure="stop").enqueue()
    hand = StepByStep()
    for _ in range(3):
        hand.claim()
        hand.end(*(name for name in hand.running if name != "bad"))
    assert steps_of(workflow, state=State.PENDING, kind="chain").exists(), "postponed members"
    hand.claim()
    hand.end("bad")
    hand.run_all()
    workflow.refresh()
    assert workflow.status == "FAILED"
    assert not steps_of(workflow, state__in=UNDER_WAY).exists()
    begun = {n for n in range(25) if f"a {n}" in DONE and f"b {n}.1" not in DONE}
    undone = [name for name in DONE if name.startswith("undo ")]
    assert len(begun) > 5
    assert sorted(undone) == sorted(f"undo {n}" for n in begun)


def test_postponed_members_of_a_cancelled_group_start_after_a_retry() -> None:
    workflow = group(*groups("nested", 20, 5)).enqueue()
    run_in_rounds(2)
    before = list(DONE)
    workflow.cancel()
    drain()
    assert before == DONE
    assert workflow.retry() > 0
    run_in_rounds()
    assert_each_ran_once(workflow)


def test_retry_of_many_stopped_groups_continues_each(started: Counter[Starter]) -> None:
    members = [group(*groups(f"{n}", 3, 4, at_once=1)) for n in range(10)]
    workflow = group(*members).enqueue()
    run_in_rounds(5)
    innermost = steps_of(workflow, kind="group", state=State.STARTED, at_once=1)
    count = innermost.count()
    assert count > WINDOW
    workflow.cancel()
    # As if the jobs had ended with success right after the cancellation.
    ended = steps_of(workflow, kind="task", state=State.CANCELLED)
    ran = len(DONE) + ended.update(state=State.SUCCESSFUL)
    DONE.clear()
    started.clear()
    assert workflow.retry() >= count
    assert count <= sum(started.values()) <= WINDOW + count
    run_in_rounds()
    workflow.refresh()
    assert (workflow.status, ran + len(DONE)) == ("SUCCESSFUL", workflow.progress().total)


def test_on_error_starts_no_more_jobs_than_the_window(started: Counter[Starter]) -> None:
    FAILING.add("bad")
    chain(note.si("bad")).on_error(group(*groups("told", 5, 5))).enqueue()
    run_in_rounds()
    assert len(DONE) == len(set(DONE)) == 1 + 25
    assert max(started.values()) <= WINDOW


@task(max_attempts=1)
def add_groups() -> None:
    current_workflow().add(group(*groups("added", 5, 5)))
    DONE.append("adding")


def test_added_groups_start_no_more_jobs_than_the_window(started: Counter[Starter]) -> None:
    workflow = chain(add_groups.si(), note.si("last")).enqueue()
    run_in_rounds()
    assert_each_ran_once(workflow)
    assert DONE[-1] == "last"
    assert max(started.values()) <= WINDOW


@pytest.mark.django_db(transaction=True)
def test_start_that_was_killed_is_repeated(
    monkeypatch: pytest.MonkeyPatch, started: Counter[Starter]
) -> None:
    workflow = chain(note.si("first"), group(*groups("nested", 20, 5)), note.si("last")).enqueue()
    really, calls = Starter.deliver, list[Starter]()

    def deliver(self: Starter) -> None:
        really(self)
        calls.append(self)
        if len(calls) % 2:  # the steps are changed, nothing is committed
            raise Killed

    monkeypatch.setattr(Starter, "deliver", deliver)
    settings = settings_for()
    broker, executor = broker_for(settings), Executor(settings, worker_id="test")
    kills = 0
    while deliveries := broker.claim(ClaimRequest(3, holder=uuid.uuid4(), lease_seconds=60)):
        attempts = [executor.run(one) for one in deliveries]
        try:
            finish(settings, broker, attempts)
        except Killed:
            kills += 1
            assert not finish(settings, broker, attempts)
    assert kills > 20
    assert_each_ran_once(workflow)
    assert max(started.values()) <= WINDOW + 3
