"""Drain: waiting jobs run as in a worker, also inside a test's transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone

from stoker import dead_letters
from stoker.brokers.orm import claim as watermarks
from stoker.compat import task_signals
from stoker.exceptions import ConfigurationError
from stoker.jobs.outcomes import Retried
from stoker.models import Attempt, Claimed, DeadLetter, Deferred, Job, Ready
from stoker.testing import assert_not_enqueued, drain, enqueued

from tests.app.models import Account
from tests.integration.work import outside_the_database
from tests.servers.private import free_port
from tests.testing import tasks

pytestmark = pytest.mark.usefixtures("database")


def test_drain_runs_and_records_waiting_jobs(seen: list[Any]) -> None:
    result = tasks.note.enqueue("one")
    assert seen == []
    (ran,) = drain()
    assert seen == ["one"]
    assert (ran.id, ran.task, ran.args, ran.kwargs) == (
        result.id,
        "tests.testing.tasks.note",
        ("one",),
        {},
    )
    assert (ran.queue, ran.attempt, ran.outcome.kind) == ("default", 1, "succeeded")
    result.refresh()
    assert result.return_value == "one"
    assert result.worker_ids == ["test"]
    assert ran.result.return_value == "one"
    assert not Ready.objects.exists()
    assert not Claimed.objects.exists()
    assert drain() == []


def test_arguments_are_serialised(seen: list[Any]) -> None:
    given = {"a list": [1], "a tuple": (1, timedelta(1)), "bytes": b"\x00"}
    tasks.note.enqueue(given)
    given["a list"].append(2)  # type: ignore[attr-defined] # it is one
    drain()
    assert seen == [{"a list": [1], "a tuple": (1, timedelta(1)), "bytes": b"\x00"}]
    assert seen[0] is not given


def test_webhooks_are_enqueued_in_the_tests_transaction(settings: Any) -> None:
    """A thread would use a connection of its own, and its job would outlive the test."""
    receiver = {"url": f"http://127.0.0.1:{free_port()}/", "secret": "for this test only"}
    backend = {"BACKEND": "stoker.backend.StokerBackend"}
    settings.TASKS = {"default": {**backend, "OPTIONS": {"REPORTERS": {"webhook": receiver}}}}
    tasks.write_and_fail.using(max_attempts=1).enqueue(1)
    before = {*threading.enumerate()}
    failed, *sent = drain()
    assert failed.task == "tests.testing.tasks.write_and_fail"
    assert {one.task for one in sent} == {"stoker.reporters.webhook.send_webhook"}
    assert [one.outcome.kind for one in sent] == ["retry"] * 9 + ["failed"]
    started = {*threading.enumerate()} - before
    assert not [one for one in started if one.name == "stoker-webhook"]


@pytest.mark.usefixtures("lasting_watermarks")
def test_jobs_that_are_requeued_behind_a_watermark_run(
    seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermarks, "SHARE", 1e9)
    tasks.write_and_fail.using(max_attempts=1).enqueue(1)
    tasks.note.enqueue("older")
    assert len(drain(until_empty=False)) == 2
    dead_letters.requeue(dead_letters.find().letters[0].pk)
    tasks.note.enqueue("newer")
    assert len(drain(until_empty=False)) == 2


def test_task_that_leaves_a_transaction_open_fails(seen: list[Any]) -> None:
    tasks.leave_a_transaction_open.enqueue()
    depth = len(connection.atomic_blocks)
    tasks.note.enqueue("next")
    failed, noted = drain()
    assert failed.outcome.kind == "failed"
    assert DeadLetter.objects.get().exception_class == "stoker.exceptions.TransactionLeftOpen"
    assert "'default'" in DeadLetter.objects.get().message
    assert (noted.outcome.kind, seen) == ("succeeded", ["next"])
    assert len(connection.atomic_blocks) == depth
    assert not Account.objects.exists()
    with transaction.atomic():
        Account.objects.create(pk=1)
    assert Account.objects.exists()


def test_task_that_leaves_autocommit_off_fails(database: str) -> None:
    before = connection.get_autocommit()
    tasks.leave_autocommit_off.enqueue()
    (failed,) = drain()
    assert failed.outcome.kind == "failed"
    wanted = "TransactionLeftOpen" if database == "committing" else "TransactionManagementError"
    assert DeadLetter.objects.get().exception_class.endswith(wanted), "Django refuses it in a block"
    assert connection.get_autocommit() == before
    assert not Account.objects.exists()


def test_highest_priority_runs_first(seen: list[Any]) -> None:
    for priority in (0, -5, 5):
        tasks.note.using(priority=priority).enqueue(priority)
    tasks.note.using(priority=50, run_after=timezone.now() - timedelta(seconds=1)).enqueue(50)
    drain()
    assert seen == [50, 5, 0, -5]


def test_job_just_due_is_ordered_by_priority(seen: list[Any]) -> None:
    """A cluster's broker looks for due jobs a little later if it has found enough work."""
    tasks.note.enqueue("first")
    tasks.note.enqueue("low")
    drain(until_empty=False, most=1)
    tasks.note.using(priority=9, run_after=timezone.now() - timedelta(seconds=1)).enqueue("high")
    drain()
    assert seen == ["first", "high", "low"]


def test_jobs_enqueued_by_jobs_run(seen: list[Any]) -> None:
    tasks.note_then.enqueue("first", "second", "third")
    ran = drain()
    assert seen == ["first", "third", "second"]
    assert [one.args for one in ran.succeeded] == [
        ("first", "second", "third"),
        ("third",),
        ("second",),
    ]


def test_single_round_runs_only_jobs_that_wait_now(seen: list[Any]) -> None:
    tasks.note_then.enqueue("first", "second")
    tasks.succeed_at.enqueue(2)
    drain(until_empty=False)
    assert seen == ["first", 1]
    drain(until_empty=False)
    assert seen == ["first", 1, "second", 2] or seen == ["first", 1, 2, "second"]
    assert drain(until_empty=False) == []


def test_async_task_runs(seen: list[Any]) -> None:
    result = tasks.note_async.enqueue("async")
    drain().check()
    assert seen == ["async"]
    result.refresh()
    assert result.return_value == "async"


def test_retries_run_without_waiting(seen: list[Any]) -> None:
    result = tasks.succeed_at.enqueue(3)
    began = time.monotonic()
    ran = drain()
    assert time.monotonic() - began < 60
    assert seen == [1, 2, 3]
    assert [one.outcome.kind for one in ran] == ["retry", "retry", "succeeded"]
    assert [one.attempt for one in ran] == [1, 2, 3]
    assert len(ran.retried) == 2
    outcome = ran[0].outcome
    assert isinstance(outcome, Retried)
    assert outcome.delay_seconds == 3600, "the backoff can be read"
    result.refresh()
    assert result.return_value == 3
    assert len(result.errors) == 2
    assert Attempt.objects.count() == 2


def test_job_out_of_attempts_becomes_dead_letter(seen: list[Any]) -> None:
    result = tasks.succeed_at.enqueue(9)
    ran = drain()
    assert seen == [1, 2, 3]
    assert [one.id for one in ran.failed] == [result.id]
    assert DeadLetter.objects.get().job_id == Job.objects.get().pk
    with pytest.raises(AssertionError, match=r"1 of 3 attempts failed") as caught:
        ran.check()
    assert "tests.testing.tasks.succeed_at(9), attempt 3: failed" in str(caught.value)
    assert 'raise ConnectionError(f"attempt {context.attempt}")' in str(caught.value)
    assert "ConnectionError: attempt 3" in str(caught.value)


def test_writes_of_a_failed_attempt_are_kept() -> None:
    """A worker, too, has no open transaction."""
    tasks.write_and_fail.enqueue(5)
    drain()
    assert list(Account.objects.order_by("total").values_list("total", flat=True)) == [5, 6]


def test_database_error_does_not_break_later_jobs(database: str, seen: list[Any]) -> None:
    tasks.break_the_transaction.enqueue()
    tasks.note.enqueue("after")
    ran = drain()
    assert [one.outcome.kind for one in ran] == ["failed", "succeeded"]
    assert "IntegrityError" in ran[0].result.errors[0].exception_class_path
    assert seen == ["after"]
    # In a transaction, a failed statement rolls back the whole savepoint.
    assert Account.objects.exists() == (database == "committing")


def test_error_inside_a_tasks_own_atomic_block_does_not_end_the_drain() -> None:
    tasks.survive_an_error.enqueue()
    drain().check()
    assert tasks.seen == ["survived"]
    assert Account.objects.count() == 1


def test_on_commit_of_a_task_runs(database: str, seen: list[Any]) -> None:
    tasks.on_commit.enqueue("committed")
    drain().check()
    if database == "committing":
        assert seen == ["committed", "before", "committed inside"]
    else:
        assert seen == ["before", "committed", "committed inside"]


def test_on_commit_of_the_test_is_left_alone(
    database: str, django_capture_on_commit_callbacks: Any, seen: list[Any]
) -> None:
    if database == "committing":
        transaction.on_commit(lambda: seen.append("hook"))
    else:
        with django_capture_on_commit_callbacks(execute=True):
            transaction.on_commit(lambda: seen.append("hook"))
            tasks.note.enqueue("job")
            drain()
            assert seen == ["job"]
        assert seen == ["job", "hook"]


def test_connection_stays_open() -> None:
    connection.ensure_connection()
    raw = connection.connection
    tasks.note.enqueue("one")
    tasks.write_and_fail.enqueue(5)
    drain()
    assert connection.connection is raw
    assert [one.alias for one in connections.all(initialized_only=True)] == ["default"]


def test_task_is_in_a_transaction_only_if_the_test_is(database: str) -> None:
    tasks.say_whether_atomic.enqueue()
    (ran,) = drain()
    assert ran.result.return_value == (database == "in a transaction")


def test_deferred_jobs_wait(seen: list[Any]) -> None:
    tasks.note.using(run_after=3600).enqueue("later")
    tasks.note.enqueue("now")
    drain()
    assert seen == ["now"]
    assert len(enqueued()) == 1


def test_include_deferred_runs_deferred_jobs(seen: list[Any]) -> None:
    tasks.note.using(run_after=3600).enqueue("later")
    tasks.note.using(run_after=3600, priority=1).enqueue("sooner")
    tasks.note.enqueue("now")
    drain(include_deferred=True)
    assert seen == ["sooner", "later", "now"]
    assert enqueued() == []


def test_job_that_falls_due_runs(seen: list[Any]) -> None:
    tasks.note.using(run_after=0.05).enqueue("soon")
    deadline = time.monotonic() + 120
    while not drain():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert seen == ["soon"]


def test_task_that_defers_itself_runs_once_per_drain(seen: list[Any]) -> None:
    tasks.enqueue_itself_tomorrow.enqueue()
    drain(include_deferred=True)
    assert seen == ["today"]
    drain(include_deferred=True)
    assert seen == ["today", "today"]


def test_snoozed_job_waits(seen: list[Any]) -> None:
    tasks.snooze.enqueue(600)
    (ran,) = drain()
    assert ran.outcome.kind == "snoozed"
    assert Deferred.objects.get().attempts == 0
    assert drain() == []
    (ran,) = drain(include_deferred=True)
    assert ran.attempt == 1
    assert seen == ["snoozed", "snoozed"]


def test_endless_task_raises() -> None:
    tasks.enqueue_itself.enqueue()
    with pytest.raises(AssertionError, match="20 attempts were made") as caught:
        drain(most=20)
    assert "tests.testing.tasks.enqueue_itself(), attempt 1: succeeded" in str(caught.value)


def test_drain_with_queues_runs_only_their_jobs(seen: list[Any]) -> None:
    tasks.note.using(queue_name="mail").enqueue("mail")
    tasks.note.enqueue("default")
    drain(queues=["mail"])
    assert seen == ["mail"]
    drain()
    assert seen == ["mail", "default"]


def test_signals_are_sent_as_in_a_worker() -> None:
    sent = []

    def receive(signal: Any, task_result: Any, **_: Any) -> None:
        sent.append((signal, str(task_result.status)))

    signals = [task_signals.task_started, task_signals.task_finished]
    for signal in signals:
        signal.connect(receive)
    try:
        tasks.note.enqueue("one")
        drain()
    finally:
        for signal in signals:
            signal.disconnect(receive)
    assert sent == list(zip(signals, ["RUNNING", "SUCCESSFUL"], strict=True))


def test_system_exit_and_time_out_fail_the_job_and_not_the_test() -> None:
    tasks.exit_the_program.enqueue()
    tasks.take_too_long.enqueue()
    ran = drain()
    errors = [one.outcome.fault.exception_class for one in ran.failed]  # type: ignore[union-attr] # they are Failed
    assert errors == ["builtins.SystemExit", "stoker.exceptions.TaskTimeout"]


@pytest.mark.parametrize(
    "look",
    [
        drain,
        lambda: drain(include_deferred=True),
        lambda: drain(until_empty=False),
        enqueued,
        lambda: assert_not_enqueued(tasks.note),
    ],
)
def test_broker_in_memory_is_refused(settings: Any, look: Callable[[], object]) -> None:
    """In a test's transaction its jobs wait for a commit that never comes."""
    settings.TASKS = outside_the_database()
    tasks.note.enqueue("one")
    with pytest.raises(ConfigurationError, match='set BROKER to "orm://default"'):
        look()
