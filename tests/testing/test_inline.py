"""Inline: jobs run when they are enqueued, or when the transaction commits."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.test import TestCase, override_settings

from stoker.models import DeadLetter, Ready
from stoker.testing import enqueued, inline

from tests.app import chaos
from tests.testing import tasks


class Rollback(Exception):
    """Raised to roll a block back."""


@contextmanager
def rolled_back() -> Iterator[None]:
    """Run a block and roll it back."""
    with suppress(Rollback), transaction.atomic():
        yield
        raise Rollback


@pytest.mark.usefixtures("database")
class TestInline:
    def test_job_runs_at_once_and_its_result_is_fresh(self, seen: list[Any]) -> None:
        with inline() as ran:
            result = tasks.note.enqueue("one")
            assert seen == ["one"]
            assert result.is_finished
            assert result.return_value == "one"
        assert [one.args for one in ran] == [("one",)]
        tasks.note.enqueue("two")
        assert seen == ["one"]

    def test_keyboard_interrupt_ends_the_test(self) -> None:
        """In a worker, a job fails by KeyboardInterrupt only if SIGINT cannot have raised it."""
        # A shell ignores SIGINT for what it starts in the background.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with inline(), pytest.raises(KeyboardInterrupt):
                chaos.raise_keyboard_interrupt.enqueue()
        finally:
            signal.signal(signal.SIGINT, before)

    def test_inline_is_a_decorator(self, seen: list[Any]) -> None:
        @inline()
        def enqueue() -> None:
            tasks.note.enqueue("decorated")
            assert seen == ["decorated"]

        enqueue()
        enqueue_again = enqueue
        seen.clear()
        enqueue_again()

    def test_arguments_are_serialised_and_checked(self, seen: list[Any]) -> None:
        given = [("tuple",)]
        with inline():
            tasks.note.enqueue(given)
        assert seen == [[("tuple",)]]
        assert seen[0] is not given
        with inline(), pytest.raises(TypeError, match="does not take"):
            tasks.note.enqueue("one", "too many")  # type: ignore[call-arg] # the mistake is meant

    def test_enqueue_many_runs_jobs_in_order(self, seen: list[Any]) -> None:
        with inline():
            results = tasks.note.enqueue_many([((number,), {}) for number in range(5)])
        assert seen == [0, 1, 2, 3, 4]
        assert [result.return_value for result in results] == seen

    def test_jobs_enqueued_by_a_job_run_after_it(self, seen: list[Any]) -> None:
        with inline():
            tasks.note_then.enqueue("first", "second", "third")
            assert seen == ["first", "third", "second"]

    def test_long_chain_does_not_recurse(self, seen: list[Any]) -> None:
        with inline():
            tasks.note_then.enqueue("start", *map(str, range(300)))
        assert len(seen) == 301

    def test_retries_run_at_once(self, seen: list[Any]) -> None:
        with inline() as ran:
            assert tasks.succeed_at.enqueue(3).return_value == 3
        assert seen == [1, 2, 3]
        assert len(ran.retried) == 2

    def test_failure_is_recorded_and_not_raised(self) -> None:
        with inline() as ran:
            result = tasks.write_and_fail.enqueue(5)
        assert result.status == "FAILED"
        assert len(ran.failed) == 1
        assert DeadLetter.objects.count() == 1
        with pytest.raises(AssertionError, match="ValueError: 5"):
            ran.check()

    def test_deferred_jobs_wait(self, seen: list[Any]) -> None:
        with inline():
            tasks.note.using(run_after=3600).enqueue("later")
            tasks.note.enqueue("now")
        assert seen == ["now"]
        assert [job.args for job in enqueued()] == [("later",)]

    def test_job_runs_when_the_outermost_block_commits(self, seen: list[Any]) -> None:
        with inline():
            with transaction.atomic():
                with transaction.atomic():
                    result = tasks.note.enqueue("committed")
                assert seen == []
            assert seen == ["committed"]
            result.refresh()
            assert result.is_finished

    def test_job_does_not_run_after_rollback(self, seen: list[Any]) -> None:
        with inline() as ran:
            with rolled_back():
                tasks.note.enqueue("rolled back")
            tasks.note.enqueue("after")
        assert seen == ["after"]
        assert len(ran) == 1

    def test_rollback_of_inner_block_drops_only_its_jobs(self, seen: list[Any]) -> None:
        with inline(), transaction.atomic():
            tasks.note.enqueue("outer")
            with rolled_back():
                tasks.note.enqueue("inner")
        assert seen == ["outer"]

    def test_blocks_around_inline_do_not_count(self, seen: list[Any]) -> None:
        with transaction.atomic(), inline():
            tasks.note.enqueue("one")
            assert seen == ["one"]
            with transaction.atomic():
                tasks.note.enqueue("two")
                assert seen == ["one"]
            assert seen == ["one", "two"]

    def test_block_without_savepoint_runs_its_jobs_at_the_end(self, seen: list[Any]) -> None:
        with inline(), transaction.atomic(savepoint=False):
            tasks.note.enqueue("one")
        assert seen == ["one"]

    def test_inline_blocks_can_be_nested(self, seen: list[Any]) -> None:
        with inline() as outer:
            with inline() as inner, transaction.atomic():
                tasks.note.enqueue("one")
            with transaction.atomic():
                tasks.note.enqueue("two")
        assert seen == ["one", "two"]
        assert len(outer) + len(inner) == 2

    def test_error_in_the_block_restores_the_connection(self, seen: list[Any]) -> None:
        with pytest.raises(Rollback), inline():
            raise Rollback
        assert "savepoint_commit" not in vars(connection._connections[connection._alias])  # type: ignore[attr-defined] # of the proxy
        tasks.note.enqueue("after")
        assert seen == []

    def test_internal_error_fails_the_test(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Django only logs errors of signal receivers, but the test must fail."""

        def break_down(*_: Any) -> None:
            raise ConnectionError("no store")

        monkeypatch.setattr("stoker.testing.running.finish", break_down)
        with pytest.raises(ConnectionError, match="no store"), inline():
            tasks.note.enqueue("one")

    def test_endless_task_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stoker.testing.running.JobRunner.run.__defaults__", (20,))
        with pytest.raises(AssertionError, match="20 attempts were made"), inline():
            tasks.enqueue_itself.enqueue()

    def test_connection_stays_open(self) -> None:
        connection.ensure_connection()
        raw = connection.connection
        with inline():
            tasks.note.enqueue("one")
        assert connection.connection is raw


@pytest.mark.django_db(transaction=True)
def test_job_enqueued_by_async_code_runs(seen: list[Any]) -> None:
    async def view() -> Any:
        try:
            result = await tasks.note_async.aenqueue("async")
            assert seen == ["async"]
            return result.return_value
        finally:
            await sync_to_async(connections.close_all)()  # in the thread that asgiref has chosen

    with inline():
        assert asyncio.run(view()) == "async"


@pytest.mark.django_db
def test_other_backend_is_left_alone(seen: list[Any]) -> None:
    from django.conf import settings

    other = {"BACKEND": "stoker.backend.StokerBackend", "QUEUES": ["other"]}
    with override_settings(TASKS={**settings.TASKS, "other": other}), inline():
        tasks.note.using(backend="other", queue_name="other").enqueue("other")
        assert seen == []
    assert Ready.objects.count() == 1


class InATestCase(TestCase):
    """Django's TestCase, whose transaction never commits."""

    @inline()
    def test_job_runs_in_atomic_block(self) -> None:
        with transaction.atomic():
            tasks.note.enqueue("one")
        assert tasks.seen == ["one"]

    def test_job_runs_with_captured_on_commit_callbacks(self) -> None:
        with inline(), self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            tasks.note.enqueue("one")
        assert tasks.seen == ["one"]


class BegunBeforeATestCase(TestCase):
    """Inline for the whole class: blocks that Django opens later are not the tests' own."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.enterClassContext(inline())
        super().setUpClass()

    def test_job_runs_when_the_tests_own_block_commits(self) -> None:
        tasks.note.enqueue("one")
        assert tasks.seen == ["one"]
        with transaction.atomic():
            tasks.note.enqueue("two")
            assert tasks.seen == ["one"]
        assert tasks.seen == ["one", "two"]
