"""Unique jobs: the outcome of an enqueue, by the state of the job with the same key."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker import DuplicateJob, InSequence, Lock, Rate, Unique
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery, Return
from stoker.compat import InvalidTask, TaskResultDoesNotExist, task_signals
from stoker.conf import settings_for
from stoker.exceptions import InvalidTaskOption
from stoker.guards.sweep import sweep_keys
from stoker.jobs.package import Package, sealer_for
from stoker.jobs.results import Result
from stoker.jobs.states import JobState
from stoker.models import Blocked, DeadLetter, Deferred, Job, Need, Ready, UniqueKey
from stoker.store.written import MICROSECONDS, database_now_us

from tests.app.tasks import add, echo, fail
from tests.integration.work import work_off

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["stoker"])

KEY = "sum of {first}"
STATES = ("ready", "deferred", "retry", "claimed", "ended", "cancelled", "gone", "within")
KEPT, CHANGED, NEW, REFUSED = "kept", "changed", "new", "refused"
FATES: dict[tuple[str, str], tuple[str, ...]] = {
    # in the order of STATES
    ("finished", "keep"): (KEPT, KEPT, KEPT, KEPT, NEW, NEW, NEW, KEPT),
    ("finished", "raise"): (REFUSED, REFUSED, REFUSED, REFUSED, NEW, NEW, NEW, REFUSED),
    ("finished", "replace"): (CHANGED, CHANGED, CHANGED, NEW, NEW, NEW, NEW, KEPT),
    ("finished", "postpone"): (CHANGED, CHANGED, CHANGED, NEW, NEW, NEW, NEW, KEPT),
    ("finished", "after"): (KEPT, KEPT, KEPT, NEW, NEW, NEW, NEW, KEPT),
    ("started", "keep"): (KEPT, KEPT, NEW, NEW, NEW, NEW, NEW, KEPT),
    ("started", "raise"): (REFUSED, REFUSED, NEW, NEW, NEW, NEW, NEW, REFUSED),
    ("started", "replace"): (CHANGED, CHANGED, NEW, NEW, NEW, NEW, NEW, KEPT),
    ("started", "postpone"): (CHANGED, CHANGED, NEW, NEW, NEW, NEW, NEW, KEPT),
}
CASES = [
    pytest.param(until, mode, state, fate, id=f"{until}-{mode}-{state}")
    for (until, mode), fates in FATES.items()
    for state, fate in zip(STATES, fates, strict=True)
]


@pytest.fixture
def announced() -> Iterator[list[str]]:
    """The ids of jobs for which Django sent its signal."""
    ids: list[str] = []

    def receive(sender: Any, task_result: Any, **_: Any) -> None:
        ids.append(task_result.id)

    task_signals.task_enqueued.connect(receive)
    yield ids
    task_signals.task_enqueued.disconnect(receive)


def unique(mode: str = "keep", **options: Any) -> Unique:
    if mode == "postpone":
        options = {"delay": 3600, **options}
    return Unique(options.pop("key", KEY), on_conflict=mode, **options)


def claim() -> list[Delivery]:
    return broker_for(settings_for()).claim(
        ClaimRequest(100, holder=uuid.uuid4(), lease_seconds=60)
    )


def put_back(delivery: Delivery, seconds: float = 0.0) -> None:
    """Release a job as after a failed attempt."""
    back = Return(delivery.lease, delay_seconds=seconds, attempts=delivery.attempt)
    assert not broker_for(settings_for()).settle(again=[back])


def bring_into(state: str, until: str) -> Result[int]:
    """Make a job of the key in this state. With "within", the key outlives the job."""
    guard = unique(until=until, within=3600 if state == "within" else None)
    if state == "deferred":
        return add.using(unique=guard, run_after=3600).enqueue(1, 10)
    result = add.using(unique=guard).enqueue(1, 10)
    if state in ("retry", "claimed"):
        (delivery,) = claim()
        if state == "retry":
            put_back(delivery, 3600.0)
    elif state == "cancelled":
        assert result.cancel()
    elif state != "ready":
        assert work_off() == 1
        if state == "gone":
            Job.objects.all().delete()
    return result


def package_of(job_id: str) -> Package:
    return sealer_for(settings_for()).open(bytes(Job.objects.get(pk=job_id).package))


def alive() -> set[str]:
    return {str(pk) for pk in Job.objects.filter(status=None).values_list("pk", flat=True)}


def key_holder() -> str:
    return str(UniqueKey.objects.get().job_id)


@pytest.mark.parametrize(("until", "mode", "state", "fate"), CASES)
def test_duplicate_enqueue_has_the_outcome_of_its_mode_and_state(
    until: str, mode: str, state: str, fate: str
) -> None:
    first = bring_into(state, until)
    before = alive()
    newcomer = add.using(unique=unique(mode, until=until), queue_name="mail", priority=5)
    if fate == REFUSED:
        told = rf"^The job {first.id} of {add.module_path} has the unique key 'sum of 1' already\.$"
        with pytest.raises(DuplicateJob, match=told) as refused:
            newcomer.enqueue(1, 20)
        assert (refused.value.result.id, refused.value.result.was_duplicate) == (first.id, True)
        assert alive() == before
        return
    result = newcomer.enqueue(1, 20)
    assert (result.id == first.id) == (fate != NEW)
    assert result.was_duplicate == (fate != NEW)
    assert alive() == (before if fate != NEW else {*before, result.id})
    assert key_holder() == result.id
    if state != "gone":
        assert package_of(first.id).args == ((1, 20) if fate == CHANGED else (1, 10))
        assert result.args == ([1, 10] if fate == KEPT else [1, 20])
    result.refresh()
    assert (result.job.queue, result.job.priority) == (
        ("default", 0) if fate == KEPT else ("mail", 5)
    )


# -- changed ------------------------------------------------------------------------------------


def test_replaced_job_has_the_options_of_the_new_call() -> None:
    first = add.using(unique=unique("replace"), priority=1).enqueue(1, 10)
    soon = timezone.now() + timedelta(hours=1)
    newcomer = add.using(
        unique=unique("replace"), queue_name="mail", priority=7, run_after=soon,
        max_attempts=9, timeout=5.0, expires=7200,
    )  # fmt: skip
    result = newcomer.enqueue(1, 20)
    package = package_of(first.id)
    assert (package.args, package.queue, package.priority) == ((1, 20), "mail", 7)
    assert (package.options.max_attempts, package.options.timeout_seconds) == (9, 5.0)
    assert str(package.job_id) == first.id
    place = Deferred.objects.get()
    assert (str(place.job_id), place.queue, place.rank) == (first.id, "mail", -7)
    assert place.due_us == round(soon.timestamp() * MICROSECONDS)
    assert not Ready.objects.exists()
    job = Job.objects.get()
    assert (job.queue, job.priority, job.run_after) == ("mail", 7, soon)
    assert (result.id, result.state, result.args) == (first.id, JobState.DEFERRED, [1, 20])
    assert add.using(unique=unique("replace")).enqueue(1, 30).state is JobState.READY
    assert not Deferred.objects.exists()
    assert work_off() == 1
    first.refresh()
    assert (first.return_value, first.attempts) == (31, 1)


def test_replaced_job_keeps_its_turn_and_its_attempts() -> None:
    first = add.using(unique=unique("replace")).enqueue(1, 10)
    (delivery,) = claim()
    put_back(delivery, 3600.0)
    other = add.enqueue(5, 5)
    result = add.using(unique=unique("replace")).enqueue(1, 20)
    assert result.was_duplicate
    place = Ready.objects.get(job_id=first.id)
    assert (place.attempts, place.crashes) == (1, 0)
    claimed = sorted(claim(), key=lambda one: one.job_id)
    assert [str(one.job_id) for one in claimed] == [first.id, other.id]
    assert [one.attempt for one in claimed] == [2, 1]


def test_result_of_a_replaced_job_has_its_attempts_and_errors() -> None:
    task = fail.using(unique=Unique("f", on_conflict="replace"), max_attempts=3)
    task.enqueue("once")
    assert work_off() == 1
    result = task.enqueue("twice")
    assert (result.args, result.attempts, len(result.errors)) == (["twice"], 1, 1)


def test_replaced_job_has_the_guards_of_the_new_call() -> None:
    guard = unique("replace")
    first = add.using(unique=guard, lock=Lock("lock {second}")).enqueue(1, 10)
    add.using(unique=guard, lock=Lock("lock {second}"), rate=Rate("5/h", "r")).enqueue(1, 20)
    names = Need.objects.filter(job_id=first.id).order_by("pk").values_list("name", flat=True)
    assert list(names) == ["unique sum of 1", "lock lock 20", "rate r per 3600 s"]
    assert Ready.objects.get().guards == 3
    add.using(unique=Unique(KEY), lock=None).enqueue(2, 1)
    add.using(unique=guard).enqueue(1, 30)
    assert Need.objects.filter(job_id=first.id).count() == 1
    assert Ready.objects.get(job_id=first.id).guards == 1
    assert work_off() == 2
    assert not Need.objects.exists()


def test_replaced_job_waiting_for_its_retry_keeps_its_place_in_the_sequence() -> None:
    guarded = add.using(unique=unique("replace"), sequence=InSequence("s{first}"))
    first = guarded.enqueue(1, 10)
    (delivery,) = claim()
    put_back(delivery)
    before = Need.objects.get(job_id=first.id, name="sequence s1")
    assert before.holds is not None
    guarded.using(lock=Lock("another guard, so that all are written anew")).enqueue(1, 20)
    after = Need.objects.get(job_id=first.id, name="sequence s1")
    assert (after.holds, after.fence) == (before.holds, before.fence)
    assert after.pk != before.pk
    assert [str(one.job_id) for one in claim()] == [first.id]


def test_replaced_blocked_job_is_ready_if_its_new_guard_is_free() -> None:
    guarded = add.using(unique=unique("replace"), lock=Lock("{second}"))
    holder = add.using(lock=Lock("10")).enqueue(9, 9)
    (held,) = claim()
    assert str(held.job_id) == holder.id
    first = guarded.enqueue(1, 10)
    assert claim() == []
    assert str(Blocked.objects.get().job_id) == first.id
    result = guarded.enqueue(1, 20)
    assert (result.id, result.was_duplicate, result.state) == (first.id, True, JobState.READY)
    assert [str(one.job_id) for one in claim()] == [first.id]


# -- following ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["replace", "postpone", "after"])
def test_duplicate_of_a_running_job_runs_once_after_it(mode: str) -> None:
    guarded = add.using(unique=unique(mode, **({"delay": 0.001} if mode == "postpone" else {})))
    first = guarded.enqueue(1, 10)
    if mode == "postpone":
        Deferred.objects.update(due_us=0)
    (running,) = claim()
    follower = guarded.enqueue(1, 20)
    assert (follower.was_duplicate, follower.id != first.id) == (False, True)
    third = guarded.enqueue(1, 30)
    assert (third.was_duplicate, third.id) == (True, follower.id)
    assert package_of(follower.id).args == ((1, 20) if mode == "after" else (1, 30))
    Deferred.objects.update(due_us=0)
    assert claim() == []
    follower.refresh()
    assert follower.state is JobState.BLOCKED
    put_back(running, 60)
    assert claim() == []  # not between two attempts of the first, either
    Deferred.objects.update(due_us=0)
    (running,) = claim()
    assert str(running.job_id) == first.id
    broker_for(settings_for()).settle([running.lease])
    assert [str(one.job_id) for one in claim()] == [follower.id]


def test_job_released_before_its_start_has_its_key_unless_another_has_taken_it() -> None:
    guarded = add.using(unique=unique(until="started"))
    first = guarded.enqueue(1, 10)
    broker = broker_for(settings_for())
    (claimed,) = claim()
    broker.settle(again=[Return(claimed.lease, delay_seconds=0.0, attempts=0)])
    assert guarded.enqueue(1, 20).id == first.id
    (claimed,) = claim()
    second = guarded.enqueue(1, 30)
    assert not second.was_duplicate
    broker.settle(again=[Return(claimed.lease, delay_seconds=0.0, attempts=0)])
    assert guarded.enqueue(1, 40).id == second.id
    assert {str(one.job_id) for one in claim()} == {first.id, second.id}


@pytest.mark.parametrize(
    "earlier", [unique("keep"), unique("raise"), unique("replace", until="started")]
)
def test_follower_waits_for_a_running_job_of_another_policy(earlier: Unique) -> None:
    first = add.using(unique=earlier).enqueue(1, 10)
    (running,) = claim()
    assert str(running.job_id) == first.id
    follower = add.using(unique=unique("after")).enqueue(1, 20)
    assert (follower.was_duplicate, claim()) == (False, [])
    put_back(running)
    (running,) = claim()  # not between two attempts of the first, either
    assert str(running.job_id) == first.id
    sweep_keys("default", None, 10, only_lines=True)
    assert claim() == []
    broker_for(settings_for()).settle([running.lease])
    Job.objects.filter(pk=first.id).update(status="SUCCESSFUL")
    sweep_keys("default", None, 10, only_lines=True)
    assert [str(one.job_id) for one in claim()] == [follower.id]
    assert Need.objects.get().job_id == uuid.UUID(follower.id)


# -- postponed ----------------------------------------------------------------------------------


def due_in() -> float:
    """Seconds until the one deferred job is due."""
    return (Deferred.objects.get().due_us - database_now_us("default")) / MICROSECONDS


def test_each_enqueue_postpones_the_start_up_to_the_longest_wait() -> None:
    guarded = add.using(unique=unique("postpone", delay=1000, longest_wait=2500))
    result = guarded.enqueue(1, 1)
    assert result.state is JobState.DEFERRED
    assert 900 < due_in() <= 1000
    UniqueKey.objects.update(taken_us=UniqueKey.objects.get().taken_us - 1000 * MICROSECONDS)
    guarded.enqueue(1, 2)
    assert 900 < due_in() <= 1000
    UniqueKey.objects.update(taken_us=UniqueKey.objects.get().taken_us - 1000 * MICROSECONDS)
    guarded.enqueue(1, 3)
    assert 400 < due_in() <= 500
    UniqueKey.objects.update(taken_us=UniqueKey.objects.get().taken_us - 1000 * MICROSECONDS)
    last = guarded.enqueue(1, 4)
    assert due_in() < 0
    assert last.id == result.id
    assert work_off() == 1
    assert add.get_result(result.id).return_value == 5


def test_postponed_job_starts_no_earlier_than_its_run_after() -> None:
    guarded = add.using(unique=unique("postpone", delay=10, longest_wait=20), run_after=3600)
    guarded.enqueue(1, 1)
    assert 3500 < due_in() <= 3600


def test_postponed_job_expiring_before_its_start_is_refused() -> None:
    guarded = add.using(unique=unique("postpone", delay=100), expires=50)
    with pytest.raises(InvalidTaskOption, match="would expire before it may start"):
        guarded.enqueue(1, 1)
    assert not UniqueKey.objects.exists()


# -- for some time ------------------------------------------------------------------------------


@pytest.mark.parametrize("until", ["finished", "started"])
def test_key_is_taken_for_its_period_and_then_free(until: str) -> None:
    guarded = add.using(unique=unique(until=until, within=3600))
    first = guarded.enqueue(1, 1)
    key = UniqueKey.objects.get()
    assert key.until_us == key.taken_us + 3600 * MICROSECONDS
    work_off()
    again = guarded.enqueue(1, 2)
    assert (again.id, again.was_duplicate, again.return_value) == (first.id, True, 2)
    UniqueKey.objects.update(until_us=database_now_us("default") - 1)
    third = guarded.enqueue(1, 3)
    assert (third.was_duplicate, third.id != first.id) == (False, True)
    assert UniqueKey.objects.get().until_us > database_now_us("default")


def test_key_outlives_its_pruned_job() -> None:
    guarded = add.using(unique=unique(within=3600))
    first = guarded.enqueue(1, 1)
    work_off()
    Job.objects.all().delete()
    result = guarded.enqueue(1, 2)
    assert (result.id, result.was_duplicate) == (first.id, True)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
    with pytest.raises(TaskResultDoesNotExist):
        result.wait(1)


# -- many at once -------------------------------------------------------------------------------


def calls(*pairs: tuple[int, int]) -> list[tuple[tuple[int, int], dict[str, Any]]]:
    return [(pair, {}) for pair in pairs]


@pytest.mark.parametrize("mode", ["keep", "after", "replace", "postpone"])
def test_duplicates_within_a_batch_share_one_job(mode: str, announced: list[str]) -> None:
    guarded = add.using(unique=unique(mode))
    there = guarded.enqueue(3, 1)
    announced.clear()
    results = guarded.enqueue_many(calls((1, 1), (2, 1), (1, 2), (3, 2), (1, 3), (3, 3)))
    first, other = results[0].id, results[1].id
    assert [result.id for result in results] == [first, other, first, there.id, first, there.id]
    assert [result.was_duplicate for result in results] == [False, False, True, True, True, True]
    assert announced == [first, other]
    assert alive() == {first, other, there.id}
    last = mode in ("replace", "postpone")
    assert package_of(first).args == ((1, 3) if last else (1, 1))
    assert package_of(there.id).args == ((3, 3) if last else (3, 1))
    assert {tuple(result.args) for result in results if result.id == first} == {
        package_of(first).args
    }
    Deferred.objects.update(due_us=0)
    assert work_off() == 3


def test_batch_with_a_duplicate_is_refused_as_a_whole() -> None:
    guarded = add.using(unique=unique("raise"))
    there = guarded.enqueue(3, 1)
    with transaction.atomic():
        before = add.enqueue(0, 0)
        with pytest.raises(DuplicateJob) as refused:
            guarded.enqueue_many(calls((1, 1), (2, 1), (3, 2), (4, 2)))
        after = add.enqueue(0, 0)
    assert refused.value.result.id == there.id
    assert alive() == {there.id, before.id, after.id}
    assert key_holder() == there.id
    with pytest.raises(DuplicateJob, match="More than one of these calls") as refused:
        guarded.enqueue_many(calls((1, 1), (2, 1), (1, 2)))
    assert refused.value.result is None
    assert alive() == {there.id, before.id, after.id}
    assert len(guarded.enqueue_many(calls((1, 1), (2, 1)))) == 2


STATEMENTS = {"postgresql": 14, "mysql": 20, "sqlite": 60}
"""Enough for each of the batches below; one statement per job would make hundreds. Django passes
SQLite at most 999 parameters at once."""


@pytest.mark.parametrize("mode", ["keep", "replace", "postpone"])
@pytest.mark.parametrize("state", ["new", "waits", "ended"])
def test_batches_take_few_statements(mode: str, state: str) -> None:
    guarded = echo.using(unique=Unique("{value}", **unique_options(mode)))
    batch = [((number,), {}) for number in range(300)]
    if state != "new":
        guarded.enqueue_many(batch)
    if state == "ended":
        Deferred.objects.update(due_us=0)
        assert work_off() == 300
    with CaptureQueriesContext(connection) as captured:
        results = guarded.enqueue_many(batch)
    assert [result.was_duplicate for result in results] == [state == "waits"] * 300
    assert len(captured) <= STATEMENTS[connection.vendor]


@pytest.mark.postgres
@pytest.mark.parametrize("state", ["new", "ended"])
def test_single_job_whose_key_is_free_takes_it_in_one_statement(state: str) -> None:
    """That statement inserts the job, too, so neither is there without the other."""
    guarded = echo.using(unique=Unique("{value}"))
    guarded.enqueue(1 if state == "ended" else 2)
    assert work_off() == 1
    with CaptureQueriesContext(connection) as captured:
        result = guarded.enqueue(1)
    (taken,) = [one["sql"] for one in captured if "INSERT INTO stoker_" in one["sql"]]
    assert "INSERT INTO stoker_unique" in taken
    assert "INSERT INTO stoker_job" in taken
    assert not result.was_duplicate
    assert UniqueKey.objects.filter(job_id=result.id).exists()
    assert Ready.objects.filter(job_id=result.id).exists()


def unique_options(mode: str) -> dict[str, Any]:
    return {"on_conflict": mode, **({"delay": 3600} if mode == "postpone" else {})}


# -- in transactions ----------------------------------------------------------------------------


class Undo(Exception):
    """Raised to roll a transaction back."""


@contextmanager
def undone() -> Iterator[None]:
    """Run a transaction or a savepoint and roll it back."""
    with suppress(Undo), transaction.atomic():
        yield
        raise Undo


@pytest.mark.parametrize("mode", ["keep", "replace", "postpone", "after"])
@pytest.mark.parametrize("state", ["new", "ready", "claimed", "ended"])
def test_rolled_back_enqueue_changes_nothing(mode: str, state: str) -> None:
    first = bring_into(state, "finished") if state != "new" else None
    before = list(UniqueKey.objects.values()), alive(), list(Need.objects.values())
    places = list(Ready.objects.values()), list(Deferred.objects.values())
    with undone():
        add.using(unique=unique(mode), lock=Lock("l"), priority=3).enqueue(1, 20)
        add.using(unique=unique(mode), queue_name="mail").enqueue(1, 30)
    assert (list(UniqueKey.objects.values()), alive(), list(Need.objects.values())) == before
    assert (list(Ready.objects.values()), list(Deferred.objects.values())) == places
    if first is not None:
        assert package_of(first.id).args == (1, 10)


def test_enqueue_rolled_back_to_a_savepoint_frees_the_key() -> None:
    guarded = add.using(unique=unique())
    with transaction.atomic():
        with undone():
            guarded.enqueue(1, 1)
        assert not UniqueKey.objects.exists()
        result = guarded.enqueue(1, 2)
        assert not result.was_duplicate
    assert work_off() == 1


def test_transaction_is_usable_after_a_refused_duplicate() -> None:
    guarded = add.using(unique=unique("raise"))
    with transaction.atomic():
        first = guarded.enqueue(1, 1)
        with pytest.raises(DuplicateJob) as refused:
            guarded.enqueue(1, 2)
        assert refused.value.result.id == first.id
        echo.enqueue("goes on")
    assert work_off() == 2


def test_wait_for_a_kept_job_inside_the_transaction_is_refused() -> None:
    """The job is held until the transaction ends, so the wait would never end."""
    guarded = add.using(unique=unique())
    guarded.enqueue(1, 1)
    with transaction.atomic():
        kept = guarded.enqueue(1, 2)
        with pytest.raises(TransactionManagementError, match="outside of transaction"):
            kept.wait(20)
    work_off()
    assert kept.wait(20) == 2


def test_wait_for_a_finished_duplicate_inside_a_transaction_returns() -> None:
    guarded = add.using(unique=unique(within=3600))
    guarded.enqueue(1, 1)
    work_off()
    with transaction.atomic():
        assert guarded.enqueue(1, 2).wait(20) == 2


def test_duplicate_enqueue_sends_no_signal(announced: list[str]) -> None:
    guarded = add.using(unique=unique("replace"))
    first = guarded.enqueue(1, 1)
    guarded.enqueue(1, 2)
    assert announced == [first.id]


# -- others -------------------------------------------------------------------------------------


def test_broker_without_guards_refuses_unique(settings: Any) -> None:
    backend = {**settings.TASKS["default"], "OPTIONS": {"BROKER": "memory://"}}
    settings.TASKS = {**settings.TASKS, "memory": backend}
    with pytest.raises(InvalidTask, match=r"memory:// does not support guards: set BROKER"):
        add.using(backend="memory", unique=unique()).enqueue(1, 1)
    add.using(backend="memory").enqueue(1, 1)


def test_tasks_share_only_keys_of_global_scope() -> None:
    first = add.using(unique=Unique("x", scope="global")).enqueue(1, 1)
    second = echo.using(unique=Unique("x", scope="global", on_conflict="replace")).enqueue("hello")
    assert (second.id, second.was_duplicate) == (first.id, True)
    assert Job.objects.get().task == "tests.app.tasks.echo"
    assert not echo.using(unique=Unique("x")).enqueue("hello").was_duplicate
    assert work_off() == 2
    assert echo.get_result(first.id).return_value == "hello"


def test_failures_with_one_unique_key_share_one_dead_letter() -> None:
    failing = fail.using(unique=Unique("pay {message}"), max_attempts=1)
    for message in ("a", "a", "A", "b"):
        failing.enqueue(message)
        assert work_off() == 1
    fail.using(max_attempts=1).enqueue("a")
    work_off()
    counts = DeadLetter.objects.order_by("pk").values_list("failure_count", flat=True)
    assert list(counts) == [2, 1, 1, 1]
    identities = set(DeadLetter.objects.values_list("identity", flat=True))
    assert len(identities) == 4
    assert any(identity.startswith("unique pay a ") for identity in identities)


def test_long_keys_with_the_same_beginning_have_separate_dead_letters() -> None:
    failing = fail.using(unique=Unique("{message}"), max_attempts=1)
    for end in "ab":
        failing.enqueue("x" * 300 + end)
    assert work_off() == 2
    assert DeadLetter.objects.count() == 2
