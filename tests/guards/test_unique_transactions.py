"""Unique jobs in concurrent transactions: which one waits, and the outcome of each when the other
commits or rolls back."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, as_completed
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from stoker import Lock, Unique
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery, Return
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.guards.unique import Decision, WantedKeys
from stoker.jobs.intake import Newcomers
from stoker.jobs.results import Result
from stoker.models import Deferred, Job, UniqueKey
from stoker.models.unique_key import KeySeen, UniqueKeyQuerySet
from stoker.store.transactions import TRIES, repeat_if_aborted

from tests.app.tasks import add, echo
from tests.guards.sessions import PATIENCE_SECONDS, Session, session, wait_until_waiting
from tests.integration.work import work_off

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["stoker"])


@pytest.fixture
def one() -> Iterator[Session]:
    with session() as opened:
        yield opened


@pytest.fixture
def other() -> Iterator[Session]:
    with session() as opened:
        yield opened


@pytest.fixture
def crowd() -> Iterator[list[Session]]:
    with ExitStack() as opened:
        yield [opened.enter_context(session()) for _ in range(4)]


def unique(mode: str = "keep", **options: Any) -> Any:
    if mode == "postpone":
        options = {"delay": 3600, **options}
    return add.using(unique=Unique("sum of {first}", on_conflict=mode, **options))


def call(second: int, mode: str = "keep", first: int = 1) -> Callable[[], Result[int]]:
    return lambda: unique(mode).enqueue(first, second)


def done(future: Future[Result[int]]) -> Result[int]:
    return future.result(PATIENCE_SECONDS)


def claim() -> list[Delivery]:
    return broker_for(settings_for()).claim(
        ClaimRequest(100, holder=uuid.uuid4(), lease_seconds=60)
    )


def claimed_ids() -> list[str]:
    return [str(delivery.job_id) for delivery in claim()]


def alive() -> set[str]:
    return {str(pk) for pk in Job.objects.filter(status=None).values_list("pk", flat=True)}


def arguments(job_id: str) -> list[Any]:
    return list(add.get_result(job_id).args)


# -- the holder of the key ---------------------------------------------------------------------


@pytest.mark.parametrize("is_in_transaction", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("state", ["new", "ended"])
@pytest.mark.parametrize("mode", ["keep", "replace"])
def test_second_enqueue_is_a_duplicate_if_the_first_commits(
    mode: str, state: str, is_in_transaction: bool, one: Session, other: Session
) -> None:
    first, future = meet(mode, state, is_in_transaction, one, other)
    one.commit()
    second = done(future)
    assert (second.id, second.was_duplicate) == (first.id, True)
    if is_in_transaction:
        other.commit()
    assert alive() == {first.id}
    assert arguments(first.id) == [1, 20 if mode == "replace" else 10]


@pytest.mark.parametrize("is_in_transaction", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("state", ["new", "ended"])
@pytest.mark.parametrize("mode", ["keep", "replace"])
def test_second_enqueue_takes_the_key_if_the_first_rolls_back(
    mode: str, state: str, is_in_transaction: bool, one: Session, other: Session
) -> None:
    first, future = meet(mode, state, is_in_transaction, one, other)
    one.roll_back()
    second = done(future)
    assert (second.id == first.id, second.was_duplicate) == (False, False)
    if is_in_transaction:
        other.commit()
    assert alive() == {second.id}


def meet(
    mode: str, state: str, is_in_transaction: bool, one: Session, other: Session
) -> tuple[Result[int], Future[Result[int]]]:
    """Enqueue in an open transaction of one session; the other session waits for its end."""
    if state == "ended":
        call(5, mode)()
        assert work_off() == 1
    one.begin()
    first = one.do(call(10, mode))
    assert not first.was_duplicate
    start = other.start_transaction if is_in_transaction else other.start
    future = start(call(20, mode))
    wait_until_waiting()
    return first, future


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.parametrize("commits", [False, True])
def test_transactions_that_wait_for_a_new_key_continue_when_the_first_ends(
    commits: bool, one: Session, crowd: list[Session]
) -> None:
    one.begin()
    first = one.do(call(10))
    waiting = {each.start_transaction(call(20)): each for each in crowd}
    wait_until_waiting(len(crowd))
    if commits:
        one.commit()
    else:
        one.roll_back()
    results = []
    for future in as_completed(waiting, PATIENCE_SECONDS):
        waiting[future].commit()
        results.append(future.result())
    assert [result.was_duplicate for result in results] == [commits, True, True, True]
    assert {result.id for result in results} == alive()
    assert (first.id in alive()) == commits


def test_batches_with_several_common_keys_do_not_deadlock(one: Session, other: Session) -> None:
    def batch(*keys: int) -> Callable[[], list[Result[int]]]:
        return lambda: list(unique().enqueue_many([((key, 0), {}) for key in keys]))

    one.begin()
    first = one.do(batch(1, 2, 3, 4))
    future = other.start_transaction(batch(4, 5, 1, 6))
    wait_until_waiting()
    one.commit()
    second = future.result(PATIENCE_SECONDS)
    other.commit()
    assert [result.was_duplicate for result in second] == [True, False, True, False]
    assert [second[0].id, second[2].id] == [first[3].id, first[0].id]
    assert len(alive()) == 6


# -- the job that is kept -----------------------------------------------------------------------


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.parametrize("mode", ["keep", "after"])
@pytest.mark.parametrize("state", ["ready", "deferred"])
def test_kept_job_does_not_start_before_the_duplicate_enqueue_commits(
    mode: str, state: str, one: Session, other: Session
) -> None:
    """So the job sees what the callers wrote. The callers do not wait for each other."""
    first = call(10, mode)()
    if state == "deferred":
        (delivery,) = claim()
        again = Return(delivery.lease, delay_seconds=60, attempts=1)
        broker_for(settings_for()).settle(again=[again])
        Deferred.objects.update(due_us=0)
    one.begin()
    other.begin()
    assert one.do(call(20, mode)).was_duplicate
    assert other.do(call(30, mode)).was_duplicate
    assert claimed_ids() == []
    one.commit()
    assert claimed_ids() == []
    other.roll_back()
    assert claimed_ids() == [first.id]
    assert arguments(first.id) == [1, 10]


@pytest.mark.postgres
@pytest.mark.mariadb
def test_kept_job_that_is_blocked_starts_after_the_duplicate_enqueue_commits(one: Session) -> None:
    """Its turn was passed over while it was held."""
    add.using(lock=Lock("l")).enqueue(0, 0)
    (holder,) = claim()
    guarded = add.using(unique=Unique("k"), lock=Lock("l"))
    first = guarded.enqueue(1, 10)
    assert claimed_ids() == []
    one.begin()
    assert one.do(lambda: guarded.enqueue(1, 20)).was_duplicate
    broker_for(settings_for()).settle([holder.lease])
    assert claimed_ids() == []
    one.commit()
    assert claimed_ids() == [first.id]


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.parametrize("mode", ["keep", "after", "raise"])
def test_running_job_ends_while_a_duplicate_enqueue_is_uncommitted(mode: str, one: Session) -> None:
    call(10)()
    (delivery,) = claim()
    one.begin()
    if mode == "raise":
        with pytest.raises(Exception, match="already"):
            one.do(call(20, mode))
    else:
        one.do(call(20, mode))
    with session() as worker:
        worker.do(lambda: broker_for(settings_for()).extend([delivery.lease], lease_seconds=60))
        worker.do(lambda: end(delivery))
    one.commit()


def end(delivery: Delivery) -> None:
    with transaction.atomic():
        assert not broker_for(settings_for()).settle([delivery.lease])
        Job.objects.filter(pk=delivery.job_id).update(status="SUCCESSFUL")


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.parametrize("ending", ["commit", "roll_back"])
def test_second_replace_waits_for_the_first_transaction(
    ending: str, one: Session, other: Session
) -> None:
    first = call(10)()
    one.begin()
    one.do(call(20, "replace"))
    future = other.start_transaction(call(30, "replace"))
    wait_until_waiting()
    getattr(one, ending)()
    assert done(future).id == first.id
    other.roll_back()
    assert arguments(first.id) == [1, 20 if ending == "commit" else 10]
    assert claimed_ids() == [first.id]


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.parametrize("mode", ["keep", "replace"])
def test_job_claimed_while_a_duplicate_enqueue_waits_is_checked_again(
    mode: str, one: Session, other: Session
) -> None:
    """The transaction that claims it has not committed yet."""
    first = call(10, mode)()
    one.begin()
    assert [str(delivery.job_id) for delivery in one.do(claim)] == [first.id]
    future = other.start_transaction(call(20, mode))
    wait_until_waiting()
    one.commit()
    second = done(future)
    other.commit()
    assert second.was_duplicate == (mode == "keep")
    assert (second.id == first.id) == (mode == "keep")


# -- the key changes after it was read ----------------------------------------------------------


@pytest.mark.parametrize("until", ["finished", "started"])
@pytest.mark.parametrize("lie", ["over", "another's", "nobody's"])
def test_taken_key_that_was_read_as_free_is_not_taken_again(
    lie: str, until: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read wrongly finds the key free."""
    first = unique(until=until).enqueue(1, 10)
    look = UniqueKeyQuerySet.look
    lies = []

    def seen_too_early(rows: Any, key_ids: Any) -> tuple[int, dict[Any, KeySeen]]:
        now_us, seen = look(rows, key_ids)
        if lies:
            return now_us, seen
        lies.append(lie)
        over = {"status": "SUCCESSFUL", "waits": None}
        change = {"over": over, "another's": {**over, "job_id": uuid.uuid4()}}.get(lie)
        if change is None:
            return now_us, {}
        return now_us, {key_id: one._replace(**change) for key_id, one in seen.items()}

    monkeypatch.setattr(UniqueKeyQuerySet, "look", seen_too_early)
    second = unique(until=until).enqueue(1, 20)
    assert lies
    assert (second.id, second.was_duplicate) == (first.id, True)
    assert alive() == {first.id}


def test_job_whose_key_was_taken_follows_the_running_job_although_another_key_was_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first read finds the second key with another job, so only the first key is taken over."""
    unique().enqueue_many([((1, 0), {}), ((2, 0), {})])
    running = {delivery.job_id for delivery in claim()}
    look = UniqueKeyQuerySet.look
    lies = []

    def wrongly_seen(rows: Any, key_ids: Any) -> tuple[int, dict[Any, KeySeen]]:
        now_us, seen = look(rows, key_ids)
        if lies:
            return now_us, seen
        lies.append(True)
        last = max(seen)
        return now_us, {**seen, last: seen[last]._replace(job_id=uuid.uuid4())}

    monkeypatch.setattr(UniqueKeyQuerySet, "look", wrongly_seen)
    seen: list[Decision] = []
    settle = WantedKeys._settle

    def note(keys: WantedKeys, key_id: uuid.UUID, decision: Decision) -> None:
        seen.append(decision)
        settle(keys, key_id, decision)

    monkeypatch.setattr(WantedKeys, "_settle", note)
    unique("after").enqueue_many([((1, 1), {}), ((2, 1), {})])
    assert lies
    assert {one.follows for one in seen} == running
    assert claimed_ids() == []


def test_taken_key_that_is_always_read_as_free_raises_broker_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call(10)()
    look = UniqueKeyQuerySet.look
    monkeypatch.setattr(
        UniqueKeyQuerySet, "look", lambda rows, key_ids: (look(rows, key_ids)[0], {})
    )
    with pytest.raises(BrokerUnavailable, match=r"'unique sum of 1' changes faster .* try again"):
        call(20)()
    assert len(alive()) == 1


def test_upkeep_keeps_a_key_that_has_just_been_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    call(10)()
    work_off()
    delete = UniqueKeyQuerySet._delete
    taken: list[Result[int]] = []

    def too_late(rows: Any, over: Any) -> int:
        assert len(over) == 1
        taken.append(call(20)())
        return delete(rows, over)

    monkeypatch.setattr(UniqueKeyQuerySet, "_delete", too_late)
    assert UniqueKey.objects.forget(None, 10) == (0, None)
    assert str(UniqueKey.objects.get().job_id) == taken[0].id


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.parametrize("ending", ["commit", "roll_back"])
def test_upkeep_skips_a_key_that_an_open_transaction_takes(ending: str, one: Session) -> None:
    call(10)()
    work_off()
    one.begin()
    taken = one.do(call(20))
    assert UniqueKey.objects.forget(None, 10) == (0, None)
    getattr(one, ending)()
    if ending == "commit":
        assert str(UniqueKey.objects.get().job_id) == taken.id
    else:
        assert UniqueKey.objects.forget(None, 10) == (1, None)


# -- old snapshots ------------------------------------------------------------------------------


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.parametrize("mode", ["keep", "replace"])
@pytest.mark.parametrize("change", ["taken", "taken over", "claimed", "over"])
def test_enqueue_in_an_old_snapshot_is_refused_and_adds_no_second_job(
    change: str, mode: str, one: Session
) -> None:
    """Under REPEATABLE READ a transaction does not see what others did since it began."""
    one.read_repeatably()
    if change != "taken":
        call(5, mode)()
    if change == "taken over":
        work_off()
    one.begin()
    one.do(Job.objects.count)
    if change in ("taken", "taken over"):
        call(10, mode)()
    elif change == "claimed":
        assert len(claim()) == 1
    else:
        work_off()
    before = alive()
    with pytest.raises(BrokerUnavailable):
        one.do(call(20, mode))
    one.roll_back()
    assert alive() == before
    one.begin()
    one.do(call(20, mode))
    one.commit()
    assert len(alive()) == (2 if (change, mode) == ("claimed", "replace") else 1)


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.parametrize("state", ["new", "ended"])
def test_enqueue_in_its_own_old_snapshot_is_retried(
    state: str, one: Session, other: Session
) -> None:
    other.read_repeatably()
    first, future = meet("keep", state, False, one, other)
    one.commit()
    assert (done(future).id, done(future).was_duplicate) == (first.id, True)
    assert alive() == {first.id}


# -- deadlocks ----------------------------------------------------------------------------------


@pytest.mark.postgres
@pytest.mark.mariadb
def test_deadlock_refuses_one_transaction_which_may_retry(one: Session, other: Session) -> None:
    one.begin()
    other.begin()
    one.do(call(1, first=1))
    other.do(call(2, first=2))
    futures = {one: one.start(call(1, first=2))}
    wait_until_waiting()
    futures[other] = other.start(call(2, first=1))
    (loser,) = [each for each, future in futures.items() if future.exception(PATIENCE_SECONDS)]
    assert isinstance(futures[loser].exception(), BrokerUnavailable)
    loser.roll_back()
    winner = other if loser is one else one
    assert not done(futures[winner]).was_duplicate
    winner.commit()
    loser.begin()
    results = [loser.do(call(3, first=key)) for key in (1, 2)]
    loser.commit()
    assert [result.was_duplicate for result in results] == [True, True]
    assert alive() == {result.id for result in results}


class Deadlock(Exception):
    """What the drivers raise."""

    sqlstate = "40P01"


@pytest.mark.parametrize("times", [3, 100])
@pytest.mark.parametrize("verb", ["enqueue", "enqueue_many"])
def test_enqueue_outside_a_transaction_is_retried_after_a_deadlock(
    verb: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = fail_at_first(times, monkeypatch)
    if times > 50:
        with pytest.raises(BrokerUnavailable):
            run(verb)
        assert len(failures) > 3
        assert not UniqueKey.objects.exists()
    else:
        assert run(verb) == [False]
        assert work_off() == 1


def test_enqueue_inside_the_callers_transaction_is_not_retried_after_a_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = fail_at_first(1, monkeypatch)
    with pytest.raises(BrokerUnavailable), transaction.atomic():
        run("enqueue")
    assert len(failures) == 1
    assert not UniqueKey.objects.exists()


@pytest.mark.slow
@pytest.mark.postgres
def test_cancel_is_repeated_if_it_is_the_victim_of_a_deadlock_of_others(
    one: Session, other: Session
) -> None:
    """It is first in the queue for a row, so that another transaction waits for it."""
    job = echo.enqueue(1)
    with session() as third:
        # PostgreSQL ends the transaction that looks for a deadlock first.
        for each, seconds in ((third, 1), (other, 4), (one, 60)):
            each.do(partial(run_sql, f"SET deadlock_timeout = '{seconds}s'"))
        row = f"SELECT 1 FROM stoker_ready WHERE job_id = '{job.id}' FOR UPDATE"
        take_row = partial(run_sql, row)
        take_other = partial(run_sql, "SELECT pg_advisory_xact_lock(1)")
        one.begin()
        one.do(take_row)
        cancelled = third.start(job.cancel)
        wait_until_waiting(1)
        other.begin()
        other.do(take_other)
        lost = other.start(take_row)
        wait_until_waiting(2)
        won = one.start(take_other)
        assert lost.exception(PATIENCE_SECONDS)
        other.roll_back()
        won.result(PATIENCE_SECONDS)
        one.commit()
        assert cancelled.result(PATIENCE_SECONDS)
    assert Job.objects.get().status == Job.Status.CANCELLED


def run_sql(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_transaction_without_autocommit_belongs_to_the_caller() -> None:
    tries: list[int] = []

    def conflict() -> None:
        tries.append(1)
        raise BrokerUnavailable("no") from told_by_the_database()

    for is_ours in (True, False):
        connection.set_autocommit(is_ours)
        with pytest.raises(BrokerUnavailable):
            repeat_if_aborted("default", conflict)
        assert len(tries) == (TRIES if is_ours else 1)
        tries.clear()
    connection.rollback()
    connection.set_autocommit(True)


def fail_at_first(times: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    failures: list[int] = []
    real = Newcomers.store

    def fail(newcomers: Newcomers) -> Any:
        if len(failures) < times:
            failures.append(1)
            raise BrokerUnavailable("no") from told_by_the_database()
        return real(newcomers)

    monkeypatch.setattr(Newcomers, "store", fail)
    return failures


def told_by_the_database() -> OperationalError:
    error = OperationalError("deadlock detected")
    error.__cause__ = Deadlock()
    return error


def run(verb: str) -> list[bool]:
    if verb == "enqueue":
        return [echo.using(unique=Unique("e")).enqueue(1).was_duplicate]
    batch = echo.using(unique=Unique("e")).enqueue_many([((1,), {})])
    return [result.was_duplicate for result in batch]
