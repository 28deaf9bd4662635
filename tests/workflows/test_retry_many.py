"""Retry workflows with many failed steps: in batches, each step once."""

import json
from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker import WorkflowResult, chain, group
from stoker.conf import settings_for
from stoker.dead_letters import requeueing
from stoker.dead_letters.requeueing import Wish
from stoker.dead_letters.undoing import take_back_together
from stoker.exceptions import WorkflowNotFound
from stoker.models import BulkOperation, DeadLetter, Job, Ready, Requeue, Step
from stoker.operations import bulk, bulk_walk, steps
from stoker.operations.operation import Operation, Operator
from stoker.operations.waiting_jobs import HOLD
from stoker.operations.workflows import RETRY
from stoker.store.statements import deciding
from stoker.testing import drain
from stoker.workflows import control

from tests.integration.killed_walks import LONG, Killed, walk_despite_kills
from tests.workflows.runner import StepByStep
from tests.workflows.tasks import DONE, FAILING, note

pytestmark = pytest.mark.django_db(transaction=True)


def failed_group(count: int, **options: Any) -> WorkflowResult:
    """Return a group of chains of two, of which each first step has failed."""
    names = [f"m{number}" for number in range(count)]
    FAILING.update(names)
    chains = [chain(note.si(name), note.si(f"after {name}")) for name in names]
    workflow = group(*chains, **options).enqueue()
    drain()
    FAILING.clear()
    DONE.clear()
    workflow.refresh()
    assert workflow.status == "FAILED"
    return workflow


def assert_each_ran_once(count: int) -> None:
    names = [f"m{number}" for number in range(count)]
    assert Counter(DONE) == Counter([*names, *(f"after {name}" for name in names)])


def test_all_batches_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "AT_A_TIME", 2)
    monkeypatch.setattr(control, "ON_A_PAGE", 3)
    workflow = failed_group(7)
    assert workflow.retry(by="anna", because="mended") == 7
    sent = Requeue.objects.values_list("by", "because", "kind")
    assert list(sent) == [("anna", "mended", "person")] * 7
    drain()
    workflow.refresh()
    assert workflow.status == "SUCCESSFUL"
    assert_each_ran_once(7)


def test_cancelled_chains_and_jobs_of_all_batches_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "AT_A_TIME", 2)
    monkeypatch.setattr(control, "ON_A_PAGE", 3)
    chains = [chain(note.si(f"a{number}"), note.si(f"b{number}")) for number in range(8)]
    workflow = group(*chains).enqueue()
    drain(until_empty=False)
    workflow.cancel()
    # As if half of the jobs had ended with success right after the cancellation.
    firsts = Step.objects.filter(workflow_id=workflow.id, kind="task", position=0)
    ended = list(firsts.filter(state="CANCELLED").order_by("pk").values_list("pk", flat=True))[:4]
    Step.objects.filter(pk__in=ended).update(state="SUCCESSFUL")
    assert workflow.retry() == 8
    assert not Requeue.objects.exists(), "cancelled jobs have no dead letters"
    drain()
    workflow.refresh()
    assert workflow.status == "SUCCESSFUL"
    assert sum(name.startswith("b") for name in DONE) == 8


def test_retried_groups_start_at_most_at_once_members() -> None:
    FAILING.update({"a0", "b0"})
    inner = [
        group(*(note.si(f"{name}{n}") for n in range(4)), at_once=2, on_failure="stop")
        for name in "ab"
    ]
    workflow = group(*inner).enqueue()
    drain()
    FAILING.clear()
    before = Counter(DONE)
    workflow.retry()
    under_way = Step.objects.filter(workflow_id=workflow.id, kind="task", state="ENQUEUED")
    per_group = Counter(under_way.values_list("parent_id", flat=True))
    assert set(per_group.values()) == {2}, "as many as at_once allows"
    drain()
    workflow.refresh()
    assert workflow.status == "SUCCESSFUL"
    assert set(Counter(DONE) - before) >= {"a0", "b0"}
    assert len(set(DONE)) == 8


def test_retry_that_was_killed_between_two_batches_loses_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "AT_A_TIME", 2)
    workflow = failed_group(7)
    really, calls = control.retry_together, []

    def together(*args: Any) -> Any:
        outcomes = really(*args)
        calls.append(args[2])
        if len(calls) % 2 == 0:  # the steps are changed, nothing is committed
            raise Killed
        return outcomes

    monkeypatch.setattr(control, "retry_together", together)
    kills = 0
    while workflow.status != "SUCCESSFUL":
        try:
            workflow.retry()
        except Killed:
            kills += 1
        drain()
        workflow.refresh()
    assert kills == 3
    assert_each_ran_once(7)
    assert Requeue.objects.count() == 7
    assert {one.failure_count for one in DeadLetter.objects.all()} == {1}


def test_statements_of_a_batch_do_not_grow_with_its_steps() -> None:
    workflow = failed_group(64)
    settings, workflow_id = settings_for(), UUID(workflow.id)
    counts = []
    now = timezone.now()
    found, _ = control.steps_to_retry(settings.database, workflow_id, "", now)
    ids = [step_id for step_id, _ in found]
    assert len(ids) == 64
    for part in (ids[:4], ids[4:]):
        with CaptureQueriesContext(connection) as captured, deciding(settings.database):
            outcomes, _ = control.retry_together(settings, workflow_id, part, Wish())
        assert not any(one.refusal for one in outcomes)
        counts.append(len(captured))
    assert counts[1] <= counts[0] <= 50


def test_retry_of_one_step_does_not_read_the_groups_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lock of the workflow is held meanwhile, and a large workflow has many batches."""
    read: list[UUID] = []
    really = Step.from_db

    def from_db(db: Any, names: Any, values: Any) -> Step:
        read.append(values[0])
        return really(db, names, values)

    FAILING.add("bad")
    counts = []
    for count in (2, 9):
        others = [group(*(note.si(f"{n}.{m}") for m in range(5)), at_once=1) for n in range(count)]
        workflow = group(note.si("bad"), *others).enqueue()
        hand = StepByStep()
        hand.claim()
        hand.end("bad")
        step = Step.objects.get(workflow_id=workflow.id, state="FAILED")
        read.clear()
        with monkeypatch.context() as patched, CaptureQueriesContext(connection) as captured:
            patched.setattr(Step, "from_db", from_db)
            assert control.retry_step(settings_for(), UUID(workflow.id), step.pk, Wish()) == 1
        counts.append((len(read), len(captured)))
        hand.run_all()
    assert counts[0] == counts[1]


def test_step_that_fails_again_during_a_retry_is_not_retried_again() -> None:
    workflow = failed_group(3)
    begun_at = timezone.now()
    FAILING.add("m1")
    failed = Step.objects.filter(workflow_id=workflow.id, state="FAILED", kind="task")
    step = failed.order_by("job_id")[1]  # that of m1
    workflow.retry(step=step.pk)
    drain()
    found, _ = control.steps_to_retry("default", UUID(workflow.id), "", begun_at)
    assert len(found) == 2
    assert step.pk not in dict(found)
    later, _ = control.steps_to_retry("default", UUID(workflow.id), "", timezone.now())
    assert len(later) == 3


@pytest.mark.parametrize("is_in_background", [False, True])
def test_steps_that_failed_on_a_host_with_a_fast_clock_are_retried(is_in_background: bool) -> None:
    workflow = failed_group(3)
    Job.objects.update(finished_at=timezone.now() + timedelta(hours=1))
    if is_in_background:
        row = bulk.start(Operator(settings_for(), "alice"), steps.RETRY, {"workflow": workflow.id})
        assert row.matched == 3
        bulk_walk.go_on(settings_for(), LONG)
    else:
        assert workflow.retry() == 3
    drain()
    workflow.refresh()
    assert workflow.status == "SUCCESSFUL"


# -- as a bulk operation --------------------------------------------------------------------------


@pytest.fixture
def alice(monkeypatch: pytest.MonkeyPatch) -> Operator:
    monkeypatch.setattr(bulk_walk, "COUNTED_READS", 100)
    monkeypatch.setattr(bulk, "AT_ONCE_SECONDS", 0.0)
    monkeypatch.setattr(control, "AT_A_TIME", 2)
    monkeypatch.setattr(control, "ON_A_PAGE", 3)
    return Operator(settings_for(), "alice", "mended")


def test_retry_of_a_large_workflow_continues_in_the_background(alice: Operator) -> None:
    workflow = failed_group(7)
    done = RETRY.perform(alice, workflow.id)
    row = bulk.get(alice.settings, done.value.pk)
    assert (row.state, row.matched, row.done) == ("running", 7, 2), "one batch in the request"
    assert "2 of 7 steps retried so far. A cluster continues it." in done.sentence
    assert not RETRY.perform(alice, workflow.id).is_good, "it runs again"
    bulk_walk.go_on(alice.settings, LONG)
    row.refresh_from_db()
    assert (row.state, row.done, row.refused, row.by) == ("done", 7, 0, "alice")
    assert BulkOperation.objects.count() == 1, "its entry in the history"
    drain()
    workflow.refresh()
    assert workflow.status == "SUCCESSFUL"
    assert_each_ran_once(7)


def test_killed_bulk_retry_continues_without_doubling(
    alice: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = failed_group(7)
    row = bulk.start(alice, steps.RETRY, {"workflow": workflow.id})
    # What was retried ends before the next batch.
    assert walk_despite_kills(alice.settings, row, monkeypatch, drain) >= 3
    row.refresh_from_db()
    assert (row.done, row.refused) == (7, 0)
    workflow.refresh()
    assert workflow.status == "SUCCESSFUL"
    assert_each_ran_once(7)


def test_failed_batch_is_repeated_step_by_step(
    alice: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = failed_group(4)
    failed = Step.objects.filter(workflow_id=workflow.id, kind="task", state="FAILED")
    bad = failed.order_by("job_id")[1].job_id
    really = requeueing._Requeue._send

    def send(self: Any, newcomers: Any) -> Any:
        if bad in {seen.job_id for seen, _ in newcomers}:
            raise RuntimeError("unexpected")
        return really(self, newcomers)

    monkeypatch.setattr(requeueing._Requeue, "_send", send)
    row = bulk.start(alice, steps.RETRY, {"workflow": workflow.id})
    bulk_walk.go_on(alice.settings, LONG)
    row.refresh_from_db()
    assert (row.done, row.refused) == (3, 1)
    assert bulk.refusals_of(alice.settings, row, 2)[0].refusal == "RuntimeError: unexpected"
    drain()
    assert sum(name.startswith("m") for name in DONE) == 3


def test_undo_of_a_bulk_retry_leaves_what_has_begun(alice: Operator) -> None:
    workflow = failed_group(5)
    row = bulk.start(alice, steps.RETRY, {"workflow": workflow.id})
    bulk_walk.go_on(alice.settings, LONG)
    begun = Step.objects.filter(workflow_id=workflow.id, state="ENQUEUED").order_by("pk")[0]
    Ready.objects.exclude(pk=begun.job_id).update(queue="elsewhere")
    drain(queues=["default"])
    undo = bulk.undo_at_once(alice, str(row.pk)).value
    bulk_walk.go_on(alice.settings, LONG)
    undo.refresh_from_db()
    assert (undo.done, undo.refused) == (4, 1)
    assert "4 of 5 retries undone" in bulk.sum_up(alice.settings, undo).sentence
    workflow.refresh()
    assert workflow.status == "FAILED"
    assert DeadLetter.objects.filter(state="open").count() == 4


def test_undo_that_was_killed_goes_on_and_restores_each_step(
    alice: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = failed_group(7)
    steps_before = list(Step.objects.filter(workflow_id=workflow.id).order_by("pk").values())
    row = bulk.start(alice, steps.RETRY, {"workflow": workflow.id})
    bulk_walk.go_on(alice.settings, LONG)
    undo = bulk.UNDO.attempt(alice, str(row.pk)).value
    assert walk_despite_kills(alice.settings, undo, monkeypatch) == 3, "four batches"
    undo.refresh_from_db()
    assert (undo.done, undo.refused) == (7, 0)
    assert not Ready.objects.exists()
    workflow.refresh()
    assert workflow.status == "FAILED"
    assert (
        list(Step.objects.filter(workflow_id=workflow.id).order_by("pk").values()) == steps_before
    )
    letters = DeadLetter.objects.values_list("state", "requeued_count", "successor_id")
    assert set(letters) == {("open", 0, None)}


def test_statements_of_an_undo_do_not_grow_with_its_steps() -> None:
    names = [f"m{number}" for number in range(64)]
    FAILING.update(names)
    workflow = group(note.si(name) for name in names).enqueue()
    drain()
    FAILING.clear()
    assert workflow.retry() == 64
    letters = list(DeadLetter.objects.values_list("pk", flat=True))
    counts = []
    for part in (letters[:4], letters[4:54], letters[54:]):  # the last one ends the workflow, too
        with CaptureQueriesContext(connection) as captured:
            answers = take_back_together(settings_for(), part, "anna", "too early")
        assert {one.fate.name for one in answers} == {"TAKEN_BACK"}
        counts.append(len(captured))
    assert counts[1] <= counts[0] <= 40
    workflow.refresh()
    assert workflow.status == "FAILED"
    assert DeadLetter.objects.filter(state="open").count() == 64


def test_workflow_that_is_cancelled_meanwhile_is_not_revived(alice: Operator) -> None:
    workflow = failed_group(6)
    row = bulk.start(alice, steps.RETRY, {"workflow": workflow.id})
    bulk_walk.go_on(alice.settings, 0)
    workflow.cancel()
    bulk_walk.go_on(alice.settings, LONG)
    row.refresh_from_db()
    assert (row.state, row.done, row.refused) == ("done", 2, 4)
    assert "cancelled meanwhile" in bulk.refusals_of(alice.settings, row, 1)[0].refusal
    workflow.refresh()
    assert workflow.status == "CANCELLED"


@pytest.mark.parametrize(
    ("operation", "filters"),
    [
        (steps.RETRY, {}),
        (steps.RETRY, {"workflow": "x"}),
        (steps.RETRY, {"workflow": "ID", "q": "a"}),
        (steps.RETRY, {"ids": ["ID"]}),
        (steps.RETRY, {"workflow": "ID"}),
        (HOLD, {"workflow": "ID"}),
    ],
)
def test_impossible_bulk_retry_is_refused(operation: Operation, filters: Any) -> None:
    workflow = chain(note.si("a")).enqueue()
    text = json.dumps(filters).replace("ID", workflow.id)
    operator = Operator(settings_for())
    with pytest.raises(ValueError, match=r"needs the filter workflow|has no step to retry"):
        bulk.start(operator, operation, json.loads(text))
    with pytest.raises(WorkflowNotFound):
        bulk.start(operator, steps.RETRY, {"workflow": str(uuid4())})
    assert not BulkOperation.objects.exists()
