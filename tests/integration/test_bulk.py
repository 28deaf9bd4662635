"""Operations on many: each target once, whatever happens, and back again."""

import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.test import override_settings
from django.utils import timezone

from stoker import chain, dead_letters
from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.dead_letters import requeueing
from stoker.exceptions import BulkOperationNotFound
from stoker.models import BulkItem, BulkOperation, DeadLetter, Deferred, Job, Ready, Requeue
from stoker.operations import bulk, bulk_walk, waiting_jobs
from stoker.operations.dead_letters import DISCARD, REQUEUE
from stoker.operations.jobs import CANCEL
from stoker.operations.operation import Operation, Operator
from stoker.testing import drain
from stoker.testing.store import promote_due

from tests.app import frail, payments, tasks
from tests.integration.killed_walks import LONG, walk_despite_kills
from tests.integration.letters import dead
from tests.integration.work import work_off

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("nothing_broken")]


@pytest.fixture
def alice(monkeypatch: pytest.MonkeyPatch) -> Operator:
    # A busy machine may need more than a moment for a few targets.
    monkeypatch.setattr(bulk, "AT_ONCE_SECONDS", LONG)
    return Operator(settings_for(), "alice", "the bank is back")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_jobs, "AT_A_TIME", 2)
    monkeypatch.setattr("stoker.operations.dead_letters.AT_A_TIME", 2)
    monkeypatch.setattr("stoker.inspect.jobs.WALKED", 3)
    monkeypatch.setattr("stoker.dead_letters.search.WALKED", 3)
    monkeypatch.setattr(bulk_walk, "COUNTED_READS", 5)


def whole(alice: Operator, operation: Operation, filters: Any, options: Any = None) -> Any:
    row = bulk.start(alice, operation, filters, options)
    bulk_walk.go_on(alice.settings, LONG)
    return bulk.get(alice.settings, row.pk)


def queues_of(jobs: list[Any]) -> list[str]:
    found = dict(Job.objects.values_list("pk", "queue"))
    return [found[UUID(job.id)] for job in jobs]


# -- each once ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("state", ["", "ready"])
def test_all_that_match_are_changed_and_no_others(state: str, alice: Operator) -> None:
    wanted = [payments.plain.enqueue(n, note="alice") for n in range(8)]
    others = [payments.plain.enqueue(n, note="bob") for n in range(3)]
    filters = {"state": state, "q": "note=alice", "since": "1h"}
    row = bulk.start(alice, waiting_jobs.MOVE, filters, {"queue": "slow"})
    others.append(payments.plain.enqueue(9, note="alice"))  # later than the start
    assert (row.matched, row.is_counted, row.state) == (8, True, "running")
    assert queues_of(wanted) == ["default"] * 8, "the start changes nothing yet"
    bulk_walk.go_on(alice.settings, LONG)
    assert queues_of(wanted) == ["slow"] * 8
    assert queues_of(others) == ["default"] * 4
    row = bulk.get(alice.settings, row.pk)
    assert (row.state, row.done, row.refused, row.by) == ("done", 8, 0, "alice")
    assert bulk.sum_up(alice.settings, row).sentence == "8 of 8 jobs moved."
    targets = set(BulkItem.objects.filter(bulk_id=row.pk).values_list("target", flat=True))
    assert targets == {UUID(job.id) for job in wanted}


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("state", ["", "ready"])
@pytest.mark.parametrize("narrow", [{"task": payments.plain.module_path}, {"queue": "default"}, {}])
def test_filters_without_an_index_find_all_targets_in_small_reads(
    narrow: Any, state: str, alice: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.inspect.jobs.LOOKED_AT", 2)
    monkeypatch.setattr("stoker.inspect.jobs.COUNTED_AMONG", 2)
    later = [payments.plain.using(run_after=60).enqueue(n) for n in range(3)]
    ready = [payments.plain.enqueue(n) for n in range(3)]
    others = [tasks.nothing.using(queue_name="mail").enqueue() for _ in range(5)]
    ready += [payments.plain.enqueue(n) for n in range(4)]
    row = whole(alice, waiting_jobs.MOVE, {"state": state, **narrow}, {"queue": "slow"})
    wanted = ready if state else [*later, *ready]
    wanted = wanted if narrow else [*wanted, *others]
    assert (row.state, row.done, row.refused) == ("done", len(wanted), 0)
    assert queues_of(wanted) == ["slow"] * len(wanted)
    assert Job.objects.filter(queue="slow").count() == len(wanted)
    assert row.is_counted or "queue" in narrow or state == ""
    assert row.matched == len(wanted) if row.is_counted else row.matched <= len(wanted)


@pytest.mark.usefixtures("small_batches")
def test_only_chosen_targets_are_changed(alice: Operator) -> None:
    jobs = [tasks.nothing.enqueue() for _ in range(5)]
    gone = "01a1ffdb-f411-7482-86ed-55b43acb2507"
    row = whole(alice, waiting_jobs.HOLD, {"ids": [jobs[1].id, gone, jobs[3].id]})
    assert (row.done, row.refused) == (2, 1)
    assert "is not waiting" in bulk.refusals_of(alice.settings, row, 5)[0].refusal
    assert set(Deferred.objects.values_list("pk", flat=True)) == {
        UUID(jobs[1].id),
        UUID(jobs[3].id),
    }


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", ["jobs", "letters"])
def test_killed_operation_continues_without_doubling(
    kind: str, alice: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "jobs":
        for number in range(7):
            payments.plain.enqueue(number)
        row = bulk.start(alice, waiting_jobs.MOVE, {}, {"queue": "slow"})
    else:
        for number in range(7):
            dead(frail.charge, f"order {number}")
        row = bulk.start(alice, REQUEUE, {"task": frail.charge.module_path})
    assert walk_despite_kills(alice.settings, row, monkeypatch) >= 3
    row = bulk.get(alice.settings, row.pk)
    assert (row.done, row.refused) == (7, 0)
    assert BulkItem.objects.count() == 7
    if kind == "letters":
        assert Requeue.objects.count() == Ready.objects.count() == 7
        assert DeadLetter.objects.filter(state="requeued", requeued_count=1).count() == 7
    else:
        assert set(Ready.objects.values_list("queue", flat=True)) == {"slow"}


@pytest.mark.usefixtures("small_batches")
def test_two_processes_share_an_operation(alice: Operator) -> None:
    for number in range(20):
        dead(frail.charge, f"order {number}")
    row = bulk.start(alice, REQUEUE, {"task": frail.charge.module_path})
    errors: list[BaseException] = []

    def walk() -> None:
        try:
            while bulk.get(alice.settings, row.pk).state == "running":
                bulk_walk.go_on(alice.settings, LONG)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=walk) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    row = bulk.get(alice.settings, row.pk)
    assert (row.done, row.refused) == (20, 0)
    assert Requeue.objects.count() == 20


def test_command_waits_while_a_cluster_processes_the_operation(
    alice: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.nothing.enqueue()
    row, pauses = bulk.start(alice, waiting_jobs.HOLD, {}), []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        bulk_walk.go_on(alice.settings, LONG)

    monkeypatch.setattr(bulk, "go_on", lambda *_, **__: 0)
    monkeypatch.setattr(bulk, "time", SimpleNamespace(sleep=pause))
    assert bulk.finish(alice, row).state == "done"
    assert len(pauses) == 1


def test_list_reads_a_bounded_number_of_other_operations(
    alice: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operations on one target and those of other backends are in the same table."""
    monkeypatch.setattr(bulk, "SCANNED", 2)
    row = bulk.start(alice, CANCEL, {})
    for job in [tasks.nothing.enqueue() for _ in range(2)]:
        CANCEL.perform(alice, job.id)
    other = bulk.start(alice, CANCEL, {})
    BulkOperation.objects.filter(pk=other.pk).update(backend="other")
    pages, after = [], ""
    for _ in range(3):
        page = bulk.find(alice.settings, 5, after)
        pages.append(([one.pk for one in page.rows], page.is_cut))
        after = page.next or ""
    assert pages[:2] == [([], True), ([row.pk], False)]
    assert BulkOperation.objects.count() == 4


def test_dead_letters_of_a_queue_are_all_found_in_small_reads(
    alice: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.dead_letters.search.LOOKED_AT", 2)
    monkeypatch.setattr("stoker.dead_letters.search.COUNTED_AMONG", 2)
    for number in range(7):
        dead(frail.charge.using(queue_name="mail" if number % 3 else "default"), f"order {number}")
    row = whole(alice, DISCARD, {"queue": "mail"})
    assert (row.done, row.is_counted) == (4, False)
    states = DeadLetter.objects.order_by("pk").values_list("queue", "state")
    assert set(states) == {("mail", "discarded"), ("default", "open")}


def test_dead_letter_that_fails_again_is_requeued_once(
    alice: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.dead_letters.search.WALKED", 1)
    letters = [dead(frail.charge, f"order {number}") for number in range(3)]
    frail.broken.update(f"order {number}" for number in range(3))
    row = bulk.start(alice, REQUEUE, {"task": frail.charge.module_path})
    while bulk.get(alice.settings, row.pk).state == "running":
        bulk_walk.go_on(alice.settings, 0)
        drain()  # those that were requeued fail again, later than the start
    assert Requeue.objects.count() == 3
    assert {one.failure_count for one in DeadLetter.objects.all()} == {2}
    assert len(letters) == bulk.get(alice.settings, row.pk).done


@pytest.mark.usefixtures("small_batches")
def test_dead_letters_are_requeued_in_batches(
    alice: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [dead(frail.charge, f"order {number}") for number in range(4)]
    dead_letters.discard(letters[2].pk)
    really, batches = bulk_walk.requeue_together, []

    def together(settings: Any, ids: list[UUID], wish: Any) -> Any:
        batches.append(len(ids))
        return really(settings, ids, wish)

    monkeypatch.setattr(bulk_walk, "requeue_together", together)
    gone = "01a1ffdb-f411-7482-86ed-55b43acb2507"
    of_job = str(letters[3].job_id)
    ids = [*(str(one.pk) for one in letters[:3]), of_job, gone]
    row = whole(alice, REQUEUE, {"ids": ids})
    assert batches == [2, 2, 1]
    assert (row.done, row.refused) == (3, 2)
    sent = dict(Requeue.objects.values_list("from_job_id", "by"))
    assert sent == {letters[at].job_id: "alice" for at in (0, 1, 3)}
    assert [one.refusal for one in bulk.refusals_of(alice.settings, row, 5)] == [
        "Nothing was done: it is discarded.", "Nothing was done: there is no such dead letter."
    ]  # fmt: skip
    kept = BulkItem.objects.filter(refusal="").values_list("before", flat=True)
    new = Requeue.objects.values_list("pk", flat=True)
    assert sorted(one["job"] for one in kept) == sorted(map(str, new))


def test_one_bad_dead_letter_does_not_hold_up_its_batch(
    alice: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [dead(frail.charge, f"order {number}") for number in range(4)]
    really = requeueing._Requeue._send

    def send(self: Any, newcomers: Any) -> Any:
        if letters[1].pk in {seen.pk for seen, _ in newcomers}:
            raise RuntimeError("unexpected")
        return really(self, newcomers)

    monkeypatch.setattr(requeueing._Requeue, "_send", send)
    row = whole(alice, REQUEUE, {"task": frail.charge.module_path})
    assert (row.done, row.refused) == (3, 1)
    assert bulk.refusals_of(alice.settings, row, 5)[0].refusal == "RuntimeError: unexpected"
    assert Requeue.objects.count() == Ready.objects.count() == 3


def test_one_bad_target_does_not_hold_up_the_others(
    alice: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [tasks.nothing.enqueue() for _ in range(5)]
    really = bulk_walk.change

    def change(settings: Any, ids: list[UUID], wanted: Any) -> Any:
        if UUID(jobs[2].id) in ids:
            raise RuntimeError("unexpected")
        return really(settings, ids, wanted)

    monkeypatch.setattr(bulk_walk, "change", change)
    row = whole(alice, waiting_jobs.HOLD, {})
    assert (row.state, row.done, row.refused) == ("done", 4, 1)
    assert bulk.refusals_of(alice.settings, row, 5)[0].refusal == "RuntimeError: unexpected"


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("start", ["2h", "2030-01-31 06:00"])
def test_all_batches_of_a_rescheduling_set_the_same_start_time(start: str, alice: Operator) -> None:
    """A cluster does the rest later, and in another time zone than the request."""
    for _ in range(5):
        tasks.nothing.enqueue()
    with timezone.override("America/New_York"):
        row = bulk.start(alice, waiting_jobs.RESCHEDULE, {}, {"run_after": start})
        bulk_walk.go_on(alice.settings, 0)
    (due_us,) = set(Deferred.objects.values_list("due_us", flat=True))
    assert bulk.get(alice.settings, row.pk).done == 2
    bulk_walk.go_on(alice.settings, LONG)
    assert list(Deferred.objects.values_list("due_us", flat=True)) == [due_us] * 5


# -- pause, stop ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_batches")
def test_pause_holds_an_operation_between_two_batches(alice: Operator) -> None:
    for _ in range(6):
        tasks.nothing.enqueue()
    row = bulk.start(alice, waiting_jobs.HOLD, {})

    def pause() -> None:
        assert bulk.PAUSE.attempt(alice, str(row.pk)).is_good

    bulk_walk.go_on(alice.settings, LONG, beat=pause)
    assert Deferred.objects.count() == 2
    bulk_walk.go_on(alice.settings, LONG)
    assert Deferred.objects.count() == 2
    assert not bulk.PAUSE.attempt(alice, str(row.pk)).is_good
    assert bulk.RESUME.attempt(alice, str(row.pk)).is_good
    bulk_walk.go_on(alice.settings, LONG)
    assert Deferred.objects.count() == 6


@pytest.mark.usefixtures("small_batches")
def test_operation_finished_at_the_time_limit_is_reported_as_done(
    alice: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the answer would count all jobs, and not offer to undo it."""
    monkeypatch.setattr(bulk, "AT_ONCE_SECONDS", 0.0)
    monkeypatch.setattr(waiting_jobs, "AT_A_TIME", 3)
    for number in range(3):
        payments.plain.enqueue(number)
    done = bulk.perform(alice, waiting_jobs.HOLD, {})
    assert bulk.get(alice.settings, done.value.pk).state == bulk_walk.State.DONE
    assert done.undo


def test_stopped_operation_keeps_what_is_done(alice: Operator) -> None:
    for _ in range(4):
        tasks.nothing.enqueue()
    row = bulk.start(alice, CANCEL, {})
    bulk_walk.go_on(alice.settings, LONG, beat=lambda: bulk.STOP.attempt(alice, str(row.pk)))
    assert Job.objects.filter(status="CANCELLED").count() == 1
    assert not bulk.RESUME.attempt(alice, str(row.pk)).is_good
    assert bulk.get(alice.settings, row.pk).ended_at is not None


# -- undo -----------------------------------------------------------------------------------------


def undone(alice: Operator, row: BulkOperation) -> BulkOperation:
    done = bulk.undo_at_once(alice, str(row.pk))
    bulk_walk.go_on(alice.settings, LONG)
    return bulk.get(alice.settings, done.value.pk)


CHANGES: tuple[tuple[Operation, dict[str, str]], ...] = (
    (waiting_jobs.RUN_NOW, {}),
    (waiting_jobs.HOLD, {}),
    (waiting_jobs.RESCHEDULE, {"run_after": "3h"}),
    (waiting_jobs.PRIORITISE, {"priority": "7"}),
    (waiting_jobs.MOVE, {"queue": "slow"}),
)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(
    ("operation", "options"), CHANGES, ids=lambda one: getattr(one, "name", "")
)
def test_undo_puts_each_job_back(operation: Operation, options: Any, alice: Operator) -> None:
    tasks.nothing.using(queue_name="mail", priority=3).enqueue()
    tasks.nothing.enqueue()
    tasks.nothing.using(run_after=3600).enqueue()
    before = places()
    row = whole(alice, operation, {}, options)
    assert (row.done, row.refused) == (3, 0)
    assert places() != before
    undo = undone(alice, row)
    assert (undo.done, undo.refused) == (3, 0)
    assert places() == before
    assert not bulk.undo_at_once(alice, str(row.pk)).is_good, "only once"
    assert not bulk.can_undo(alice.settings, undo)


def places() -> list[Any]:
    ready = [
        (pk, queue, rank, 0) for pk, queue, rank in Ready.objects.values_list("pk", "queue", "rank")
    ]
    later = Deferred.objects.values_list("pk", "queue", "rank", "due_us")
    return sorted([*ready, *((pk, queue, rank, due // 10) for pk, queue, rank, due in later)])


PICKLES = {
    "BACKEND": "stoker.backend.StokerBackend", "QUEUES": [], "OPTIONS": {"SERIALIZER": "pickle"}
}  # fmt: skip


@override_settings(TASKS={"default": PICKLES})
def test_undo_of_an_edit_leaves_a_newer_edit_of_pickled_arguments() -> None:
    """No JSON can tell whether such arguments are the same."""
    alice = Operator(settings_for(), "alice")
    job: Any = frail.keep.enqueue(1j, note="old")
    ids = {"ids": [job.id]}
    first, second = (
        whole(alice, waiting_jobs.EDIT, ids, {"arguments": {"note": note}}) for note in "ab"
    )
    whole(alice, waiting_jobs.MOVE, ids, {"queue": "slow"})
    undo = undone(alice, first)
    assert (undo.done, undo.refused) == (0, 1)
    assert "changed after the operation" in bulk.refusals_of(alice.settings, undo, 1)[0].refusal
    assert frail.keep.get_result(job.id).args == [1j, "b"]
    assert undone(alice, second).done == 1, "its place in the queue does not matter"
    assert frail.keep.get_result(job.id).args == [1j, "a"]


LATER: dict[str, tuple[Operation, dict[str, str]]] = {
    "run-job": (waiting_jobs.RESCHEDULE, {"run_after": "30d"}),
    "hold-job": (waiting_jobs.RESCHEDULE, {"run_after": "30d"}),
    "reschedule-job": (waiting_jobs.RUN_NOW, {}),
    "prioritise-job": (waiting_jobs.PRIORITISE, {"priority": "-7"}),
    "move-job": (waiting_jobs.MOVE, {"queue": "other"}),
}


@pytest.mark.parametrize(
    ("operation", "options"), CHANGES, ids=lambda one: getattr(one, "name", "")
)
def test_undo_leaves_values_that_were_changed_again(
    operation: Operation, options: Any, alice: Operator
) -> None:
    jobs = [tasks.nothing.using(run_after=3600).enqueue().id for _ in range(2)]
    before = places()
    row = whole(alice, operation, {}, options)
    whole(alice, LATER[operation.name][0], {"ids": jobs[1:]}, LATER[operation.name][1])
    again = places()
    undo = undone(alice, row)
    assert (undo.done, undo.refused) == (1, 1)
    assert "changed after the operation" in bulk.refusals_of(alice.settings, undo, 1)[0].refusal
    assert places() == sorted([before[0], again[1]])


def test_undo_of_a_new_start_time_works_when_that_time_has_come(alice: Operator) -> None:
    job = tasks.nothing.using(run_after=3600).enqueue()
    before = places()
    row = whole(alice, waiting_jobs.RESCHEDULE, {}, {"run_after": timezone.now().isoformat()})
    promote_due(broker_for(alice.settings))
    assert not Deferred.objects.filter(pk=job.id).exists()
    assert undone(alice, row).done == 1
    assert places() == before


@pytest.mark.parametrize(
    ("operation", "options"), CHANGES[2:], ids=lambda one: getattr(one, "name", "")
)
def test_undo_of_another_value_ignores_other_changes(
    operation: Operation, options: Any, alice: Operator
) -> None:
    tasks.nothing.using(run_after=3600).enqueue()
    row = whole(alice, operation, {}, options)
    for other, given in CHANGES[2:]:
        if other is not operation:
            whole(alice, other, {}, given)
    assert undone(alice, row).done == 1


def test_undo_leaves_a_job_that_waits_for_its_retry(alice: Operator) -> None:
    job = frail.insist.using(run_after=3600).enqueue("order 1")
    operations = [(waiting_jobs.MOVE, {"queue": "slow"}), (waiting_jobs.RUN_NOW, {})]
    rows = [whole(alice, one, {"ids": [job.id]}, options) for one, options in operations]
    frail.broken.add("order 1")
    work_off()
    before = places()
    assert Deferred.objects.get().attempts == 1
    for row in rows:
        undo = undone(alice, row)
        assert (undo.done, undo.refused) == (0, 1)
        assert "has started since" in bulk.refusals_of(alice.settings, undo, 1)[0].refusal
    assert places() == before


def test_undo_of_a_requeue_leaves_what_has_started(alice: Operator) -> None:
    letters = [dead(frail.charge, f"order {number}") for number in range(3)]
    row = whole(alice, REQUEUE, {"ids": [str(one.pk) for one in letters]})
    job_id = DeadLetter.objects.get(pk=letters[0].pk).successor_id
    frail.broken.add("order 0")
    Ready.objects.exclude(pk=job_id).update(queue="elsewhere")
    drain(queues=["default"])
    dead_letters.requeue(letters[0].pk, by="bob")
    undo = undone(alice, row)
    assert (undo.done, undo.refused) == (2, 1)
    assert "requeued again" in bulk.refusals_of(alice.settings, undo, 5)[0].refusal
    assert DeadLetter.objects.get(pk=letters[0].pk).last_requeued_by == "bob"
    assert DeadLetter.objects.filter(state="open").count() == 2


# -- dead letters with other arguments ------------------------------------------------------------


def test_dead_letters_chosen_by_their_jobs_are_requeued_once_and_the_undo_finds_them(
    alice: Operator,
) -> None:
    letters = [dead(frail.charge, f"order {number}") for number in range(3)]
    dead_letters.requeue(letters[0].pk)
    work_off()
    letters[0].refresh_from_db()
    assert letters[0].job_id != letters[0].pk
    ids = [str(one.job_id) for one in letters] + [str(letters[0].pk), str(letters[1].pk)]
    row = whole(alice, REQUEUE, {"ids": ids})
    assert (row.state, row.done, row.refused) == ("done", 3, 0)
    row = undone(alice, row)
    assert (row.state, row.done, row.refused) == ("done", 3, 0)
    assert set(DeadLetter.objects.values_list("state", flat=True)) == {"open"}
    assert Job.objects.filter(status="CANCELLED").count() == 3


def test_arguments_of_dead_letters_chosen_by_their_jobs_are_changed(alice: Operator) -> None:
    letter = dead(frail.charge, "order 1")
    dead_letters.requeue(letter.pk)
    work_off()
    letter.refresh_from_db()
    filters, options = {"ids": [str(letter.job_id)]}, {"arguments": {"order": "order 2"}}
    row = bulk.preview(alice, REQUEUE, filters, options)
    (sample,) = bulk_walk.samples_of(alice.settings, row, 5, reveal=True)
    assert "order 2" in sample.after
    row = whole(alice, REQUEUE, filters, options)
    assert (row.done, row.refused) == (1, 0)


def test_requeue_changes_arguments_by_a_template(alice: Operator) -> None:
    for number in range(3):
        dead(frail.charge, f"order {number}", note="first")
    changes = {"note": "{order}, was {note}"}
    row = whole(alice, REQUEUE, {"q": "order"}, {"arguments": changes})
    assert (row.done, row.refused) == (3, 0)
    drain()
    values = sorted(
        frail.charge.get_result(str(job_id)).args[1]
        for job_id in Requeue.objects.values_list("pk", flat=True)
    )
    assert values == [f"order {number}, was first" for number in range(3)]


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"colour": "red"}, "takes no argument 'colour'"),
        ({"more": {"copy": "{iban}"}}, "is hidden"),
        ({"more": "{more}"}, "is hidden"),
        ({"more": "{colour}"}, "no argument 'colour'"),
    ],
)
def test_template_that_cannot_be_filled_changes_nothing(
    changes: Any, refusal: str, alice: Operator
) -> None:
    payments.pay.enqueue(-1, payments.IBAN, more=payments.MORE)
    drain()
    row = whole(alice, REQUEUE, {}, {"arguments": changes})
    assert (row.done, row.refused) == (0, 1)
    assert refusal in bulk.refusals_of(alice.settings, row, 1)[0].refusal
    assert not Requeue.objects.exists()


@pytest.mark.parametrize("filters", [{"task": "tests.app.payments.pay"}, {"ids": []}, {}])
@pytest.mark.parametrize("changes", [{"iban": "DE00"}, {"more": {"iban": "DE00"}}])
def test_value_that_the_tasks_of_targets_hide_is_refused_at_the_start(
    changes: Any, filters: Any, alice: Operator
) -> None:
    job = payments.pay.enqueue(7, payments.IBAN)
    filters = {"ids": [job.id]} if "ids" in filters else filters
    with pytest.raises(ValueError, match="has hidden values: it cannot be changed in bulk"):
        bulk.start(alice, waiting_jobs.EDIT, filters, {"arguments": changes})
    assert not BulkOperation.objects.exists()


@pytest.mark.usefixtures("small_batches")
def test_value_that_a_later_target_hides_is_removed_from_the_record(alice: Operator) -> None:
    for number in range(4):
        payments.plain.enqueue(number, note="old")
    job = payments.discreet.enqueue(4, note="old")
    row = whole(alice, waiting_jobs.EDIT, {}, {"arguments": {"note": "new", "order_id": 7}})
    assert (row.done, row.refused) == (3, 2), "also those read together with it are refused"
    assert row.options["arguments"] == {"note": "[withheld]", "order_id": 7}
    assert payments.discreet.get_result(job.id).kwargs == {"note": "old"}


def test_template_is_refused_for_calls_that_are_not_complete(alice: Operator) -> None:
    """A step that receives a result has arguments whose places differ from the parameters'."""
    chain(payments.plain.si(1), payments.pay.s(payments.IBAN, more={})).enqueue()
    payments.pay.starmap([(-1, payments.IBAN)]).enqueue()
    drain()
    assert DeadLetter.objects.count() == 2
    row = whole(alice, REQUEUE, {}, {"arguments": {"more": "{order_id}"}})
    assert (row.done, row.refused) == (0, 2)
    refusals = BulkItem.objects.values_list("refusal", flat=True)
    assert {"come from the previous step" in one for one in refusals} == {True}


def test_template_copies_values_as_they_are(alice: Operator) -> None:
    letter = dead(frail.keep, datetime(2030, 1, 31, tzinfo=UTC))
    whole(alice, REQUEUE, {}, {"arguments": {"note": ["{thing}"]}})
    letter.refresh_from_db()
    result: Any = frail.keep.get_result(str(letter.successor_id))
    moment = datetime(2030, 1, 31, tzinfo=UTC)
    assert result.args == [moment, [moment]]


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "filters", "options"),
    [
        (waiting_jobs.MOVE, {}, {"queue": ""}),
        (waiting_jobs.RESCHEDULE, {}, {}),
        (waiting_jobs.RESCHEDULE, {}, {"run_after": " "}),
        (waiting_jobs.PRIORITISE, {}, {"priority": "high"}),
        (waiting_jobs.HOLD, {"since": "soon"}, {}),
        (waiting_jobs.HOLD, {"state": "failed"}, {}),
        (waiting_jobs.HOLD, {"ids": ["7"]}, {}),
        (waiting_jobs.HOLD, {"ids": []}, {}),
        (waiting_jobs.HOLD, {"colour": "red"}, {}),
        (DISCARD, {"reason": "odd"}, {}),
        (REQUEUE, {}, {"arguments": [1]}),
        (bulk.PAUSE, {}, {}),
    ],
)
def test_impossible_operation_is_refused_at_the_start(
    operation: Operation, filters: Any, options: Any, alice: Operator
) -> None:
    tasks.nothing.enqueue()
    with pytest.raises(ValueError):  # noqa: PT011 - of different functions
        bulk.start(alice, operation, filters, options)
    assert not BulkOperation.objects.exists()


@pytest.mark.parametrize(
    ("operation", "filters", "sentence"),
    [
        (CANCEL, {"reason": "ordered twice"}, "cancel-job does not support the filter 'reason'"),
        (CANCEL, {"fingerprint": "5f0c1e", "queue": "mail"}, "does not support the filter 'fing"),
        (DISCARD, {"state": "resolved"}, "discard-letter acts on open dead letters only"),
        (REQUEUE, {"state": "all"}, "requeue-letter acts on open dead letters only"),
        (DISCARD, {"workflow": str(UUID(int=1))}, "retry-step needs the filter workflow"),
    ],
)
def test_filter_that_the_operation_does_not_take_is_refused(
    operation: Operation, filters: Any, sentence: str, alice: Operator
) -> None:
    with pytest.raises(ValueError, match=sentence):
        bulk.start(alice, operation, filters)
    assert not BulkOperation.objects.exists()


@pytest.mark.parametrize("state", ["", "open", "unclosed"])
def test_states_that_include_open_dead_letters_are_accepted(state: str, alice: Operator) -> None:
    dead(frail.charge, "order 1")
    row = whole(alice, DISCARD, {"state": state, "q": "order 1"})
    assert (row.done, row.refused) == (1, 0)


def test_unknown_operation_is_not_found(alice: Operator) -> None:
    BulkOperation.objects.create(pk=UUID(int=1), backend="default", operation="of-a-newer-version")
    for one in (UUID(int=1), UUID(int=2), "7"):
        with pytest.raises(BulkOperationNotFound):
            bulk.get(alice.settings, one)
    bulk_walk.go_on(alice.settings, LONG)
    assert BulkOperation.objects.get().state == "running"


def test_old_operations_are_deleted_with_their_targets(
    alice: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        tasks.nothing.enqueue()
    whole(alice, waiting_jobs.HOLD, {})
    new = whole(alice, waiting_jobs.RUN_NOW, {})
    BulkOperation.objects.exclude(pk=new.pk).update(ended_at=datetime(2020, 1, 1, tzinfo=UTC))
    monkeypatch.setattr(bulk_walk, "FORGOTTEN_AT_ONCE", 2)
    while bulk_walk.forget_old(alice.settings):
        pass
    assert [one.pk for one in BulkOperation.objects.all()] == [new.pk]
    assert BulkItem.objects.count() == 5
