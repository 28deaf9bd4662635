"""A task with atomic=True commits its writes and its result together, or neither."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connection

from stoker import task
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import Broker, ClaimRequest, Delivery
from stoker.compat import InvalidTask
from stoker.conf import settings_for
from stoker.exceptions import InvalidTaskOption
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Attempted, Cancelled, Failed, Retried, Snoozed, Succeeded
from stoker.jobs.record import Recorder, finish
from stoker.jobs.running import Running
from stoker.models import Attempt, Claimed, Job
from stoker.testing import drain

from tests.app import atomic, tasks
from tests.app.models import Account
from tests.guards.sessions import session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def broker() -> Broker:
    return broker_for(settings_for())


@pytest.fixture
def account() -> Account:
    return Account.objects.create()


@pytest.mark.mariadb
def test_task_on_mariadb_reads_what_others_commit_though_the_project_reads_repeatably(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would miss the jobs that its lock blocks, and they would stay blocked."""
    options = {**connection.settings_dict["OPTIONS"], "isolation_level": "repeatable read"}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    connection.close()
    seen: list[int] = []

    def read_and_enqueue(*_: object) -> None:
        seen.append(Job.objects.count())
        with session() as other:
            other.do(tasks.nothing.enqueue)
        seen.append(Job.objects.count())

    monkeypatch.setattr(atomic, "time", SimpleNamespace(sleep=read_and_enqueue))
    atomic.add.enqueue(1)
    (delivery,) = broker.claim(ClaimRequest(1, uuid4(), 60))
    attempted = Executor(settings_for(), worker_id="w").run(delivery)
    assert isinstance(attempted.outcome, Succeeded)
    assert seen == [1, 2, 2, 3]
    connection.close()


@pytest.fixture
def claim(broker: Broker) -> Callable[[], Delivery]:
    def claim_one() -> Delivery:
        (delivery,) = broker.claim(
            ClaimRequest(1, holder=uuid4(), lease_seconds=60, queues=["default"])
        )
        return delivery

    return claim_one


def run(delivery: Delivery, **options: Any) -> Attempted:
    return Executor(settings_for(), worker_id="w", **options).run(delivery)


def total(account: Account) -> int:
    account.refresh_from_db()
    return account.total


def statuses() -> list[str | None]:
    return list(Job.objects.order_by("enqueued_at", "pk").values_list("status", flat=True))


# -- done -----------------------------------------------------------------------------------------


def test_effects_result_and_enqueued_job_commit_together(
    account: Account, claim: Callable[[], Delivery]
) -> None:
    result = atomic.add_and_enqueue.enqueue(account.pk)
    attempted = run(claim())
    assert isinstance(attempted.outcome, Succeeded)
    assert attempted.is_recorded
    result.refresh()
    assert (total(account), result.status.value) == (1, "SUCCESSFUL")
    assert result.worker_ids == ["w"]
    assert not Claimed.objects.exists()
    follow_up = claim()
    assert str(follow_up.job_id) == result.return_value


def test_result_is_recorded_before_the_commit(
    account: Account, claim: Callable[[], Delivery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may die between the two."""
    atomic.add.enqueue(account.pk)
    delivery = claim()
    seen = []

    def look_and_commit() -> None:
        seen.append((statuses(), Claimed.objects.count()))
        connection.connection.commit()

    monkeypatch.setattr(connection, "_commit", look_and_commit)
    run(delivery)
    assert seen == [(["SUCCESSFUL"], 0)]


def test_task_commits_though_autocommit_is_off(
    account: Account, claim: Callable[[], Delivery], monkeypatch: pytest.MonkeyPatch
) -> None:
    atomic.add.enqueue(account.pk)
    delivery = claim()
    with monkeypatch.context() as patch:
        connection.close()
        patch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
        assert run(delivery).is_recorded
        assert not connection.get_autocommit()
        connection.close()
    assert (total(account), statuses()) == (1, ["SUCCESSFUL"])
    assert not Claimed.objects.exists()


def test_outcome_that_the_worker_recorded_is_not_recorded_again(
    account: Account, broker: Broker, claim: Callable[[], Delivery]
) -> None:
    """This happens when a worker dies after it recorded its job but before it reported that."""
    atomic.add.enqueue(account.pk)
    delivery = claim()
    attempted = run(delivery)
    assert finish(settings_for(), broker, [attempted]) == {delivery.lease}
    assert statuses() == ["SUCCESSFUL"]


def test_failing_on_commit_hook_undoes_nothing(
    account: Account, claim: Callable[[], Delivery]
) -> None:
    atomic.add_with_a_hook_that_raises.enqueue(account.pk)
    attempted = run(claim())
    assert attempted.is_recorded
    assert isinstance(attempted.outcome, Succeeded)
    assert (total(account), statuses()) == (1, ["SUCCESSFUL"])


def test_time_limit_ends_before_recording(
    account: Account, claim: Callable[[], Delivery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The soft time-out would be raised wherever the thread is, even in the recording."""
    limited = []
    during_record = []
    record = Recorder.record_in_task

    @contextmanager
    def limit(seconds: float | None) -> Iterator[None]:
        limited.append(seconds)
        yield
        limited.pop()

    def look_and_record(*arguments: Any) -> Any:
        during_record.append(list(limited))
        return record(*arguments)

    monkeypatch.setattr(Recorder, "record_in_task", look_and_record)
    atomic.add.using(timeout=5).enqueue(account.pk)
    assert run(claim(), limit=limit).is_recorded
    assert during_record == [[]]


@pytest.mark.sqlite
def test_sqlite_limits_atomic_tasks_to_half_a_lease(
    account: Account, claim: Callable[[], Delivery]
) -> None:
    atomic.add.enqueue(account.pk)
    atomic.add.using(timeout=5).enqueue(account.pk)
    tasks.nothing.enqueue()
    executor = Executor(replace(settings_for(), lease_seconds=20.0), worker_id="w")
    opened = [executor.open(claim()) for _ in range(3)]
    assert [one.timeout_seconds for one in opened if isinstance(one, Running)] == [10, 5, None]


# -- not done -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "outcome"),
    [
        ("error", Retried),
        ("retry", Retried),
        ("snooze", Snoozed),
        ("cancel", Cancelled),
        ("exit", Retried),
    ],
)
def test_raising_task_writes_nothing(
    account: Account, broker: Broker, claim: Callable[[], Delivery], what: str, outcome: type
) -> None:
    atomic.add_and_raise.enqueue(account.pk, what)
    attempted = run(claim())
    assert isinstance(attempted.outcome, outcome)
    assert not attempted.is_recorded
    assert (total(account), Job.objects.count(), Claimed.objects.count()) == (0, 1, 1)
    assert finish(settings_for(), broker, [attempted]) == set()
    assert statuses() == ["CANCELLED" if what == "cancel" else None]


@pytest.mark.parametrize(
    "one",
    [
        atomic.add_and_return_what_cannot_be_kept,
        atomic.add_and_swallow_a_database_error,
        atomic.add_and_close_the_connection,
    ],
    ids=lambda one: one.name,
)
def test_failed_commit_is_a_failed_attempt(
    account: Account, claim: Callable[[], Delivery], one: Any
) -> None:
    one.enqueue(account.pk)
    attempted = run(claim())
    assert isinstance(attempted.outcome, Retried | Failed)
    assert not attempted.is_recorded
    assert (total(account), statuses()) == (0, [None])


@pytest.mark.mariadb
@pytest.mark.parametrize("savepoint", [False, True])
def test_task_that_swallows_a_deadlock_writes_nothing(
    account: Account,
    claim: Callable[[], Delivery],
    monkeypatch: pytest.MonkeyPatch,
    savepoint: bool,
) -> None:
    """MariaDB and MySQL have rolled back its transaction then, and would commit its later writes in
    another one."""
    with session() as other:
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:  # the task has written
                other.start(partial(Account.objects.filter(pk=account.pk).update, total=9))

        monkeypatch.setattr(atomic, "time", SimpleNamespace(sleep=pause))
        other.begin()
        # The servers roll back the transaction that has written less.
        others = [other.do(Account.objects.create) for _ in range(50)]
        atomic.add_and_create_another_even_if_one_is_locked.enqueue(
            account.pk, others[0].pk, savepoint
        )
        attempted = run(claim())
        other.roll_back()
    assert isinstance(attempted.outcome, Retried)
    assert "TransactionManagementError" in attempted.outcome.fault.exception_class
    assert not attempted.is_recorded
    assert (total(account), Account.objects.count(), statuses()) == (0, 1, [None])


def test_task_without_its_lease_writes_nothing(
    account: Account, broker: Broker, claim: Callable[[], Delivery]
) -> None:
    atomic.add.enqueue(account.pk)
    late = claim()
    Claimed.objects.update(leased_until_us=0)
    (newer,) = broker.claim_expired(ClaimRequest(1, holder=uuid4(), lease_seconds=60))
    attempted = run(late)
    assert not attempted.is_recorded
    assert isinstance(attempted.outcome, Retried)
    assert attempted.outcome.fault.exception_class.endswith("LeaseLost")
    assert finish(settings_for(), broker, [attempted]) == {late.lease}
    assert (total(account), statuses()) == (0, [None])
    assert run(newer._replace(package=late.package)).is_recorded
    assert (total(account), statuses()) == (1, ["SUCCESSFUL"])


@pytest.mark.parametrize("is_committed", [True, False])
def test_lease_shows_whether_a_commit_without_an_answer_was_made(
    account: Account,
    broker: Broker,
    claim: Callable[[], Delivery],
    monkeypatch: pytest.MonkeyPatch,
    is_committed: bool,
) -> None:
    """The connection breaks before the commit, or after it but before its answer arrives.
    Recording the attempt then shows by the lease whether it was committed."""
    atomic.add.enqueue(account.pk)
    delivery = claim()

    def commit_and_break() -> None:
        if is_committed:
            connection.connection.commit()
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch:
        patch.setattr(connection, "_commit", commit_and_break)
        attempted = run(delivery)
    assert isinstance(attempted.outcome, Retried)
    assert not attempted.is_recorded
    stale = finish(settings_for(), broker, [attempted])
    assert stale == ({delivery.lease} if is_committed else set())
    assert Attempt.objects.count() == (0 if is_committed else 1)
    assert statuses() == (["SUCCESSFUL"] if is_committed else [None])
    drain(include_deferred=True)
    assert (total(account), statuses()) == (1, ["SUCCESSFUL"])


def test_job_cancelled_before_it_began_writes_nothing(
    account: Account, claim: Callable[[], Delivery]
) -> None:
    atomic.add.enqueue(account.pk)
    executor = Executor(settings_for(), worker_id="w")
    opened = executor.open(claim())
    assert isinstance(opened, Running)
    opened.interruption.cancel("not wanted")
    attempted = executor.run_opened(opened)
    assert attempted.outcome == Cancelled("not wanted")
    assert total(account) == 0


# -- refused --------------------------------------------------------------------------------------


def test_async_task_is_refused_at_definition() -> None:
    with pytest.raises(InvalidTaskOption, match="add_later is async"):
        task(atomic=True)(tasks.add_later.func)


def test_value_other_than_a_boolean_is_refused() -> None:
    with pytest.raises(InvalidTaskOption, match="atomic='yes': write True or False"):
        task(atomic="yes")(tasks.add.func)  # type: ignore[call-overload] # on purpose


def test_atomic_in_using_is_refused() -> None:
    with pytest.raises(InvalidTaskOption, match="it belongs in @task"):
        tasks.add.using(atomic=True)  # type: ignore[call-arg] # as above


def test_broker_outside_the_database_is_refused(settings: Any) -> None:
    settings.TASKS = {
        "default": {
            "BACKEND": "stoker.backend.StokerBackend",
            "OPTIONS": {"BROKER": "memory://"},
        }
    }
    with pytest.raises(InvalidTask, match="set BROKER to a database"):
        atomic.add.enqueue(1)
