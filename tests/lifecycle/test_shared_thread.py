"""The thread in which all async tasks of a worker make their sync calls."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import SyncToAsync, async_to_sync, sync_to_async
from django.db import connection, connections, transaction

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.cluster.worker.clean_up import WorkerAftercare
from stoker.conf import settings_for
from stoker.exceptions import TransactionLeftOpen
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Attempted, Cancelled, Failed
from stoker.jobs.running import Running, listen
from stoker.store.engines import engine_for

from tests.app import chaos, tasks

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def aftercare(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerAftercare]:
    """The clean-up of a worker with CONCURRENCY above 1."""
    aftercare = WorkerAftercare()
    monkeypatch.setattr(SyncToAsync, "single_thread_executor", aftercare.shared_thread)
    yield aftercare
    aftercare.shared_thread.submit(connections.close_all).result()
    aftercare.shared_thread.shutdown()


@asynccontextmanager
async def call_of_another_task() -> AsyncIterator[None]:
    """Run a call that stays inside a transaction until the end of the block."""
    has_begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        with transaction.atomic(durable=True):
            connection.ensure_connection()
            has_begun.set()
            may_end.wait()

    call = asyncio.ensure_future(sync_to_async(work)())
    await asyncio.to_thread(has_begun.wait)
    try:
        yield
        assert not call.done()
    finally:
        may_end.set()
        await call


def opened(task: Any) -> Running:
    """Return a job of this task, ready to run."""
    task.using(max_attempts=1).enqueue()
    (delivery,) = broker_for(settings_for()).claim(ClaimRequest(1, uuid4(), 60))
    running = Executor(settings_for(), worker_id="me").open(delivery)
    assert isinstance(running, Running)
    return running


def begin_transaction() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")


def commit() -> None:
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")


def test_async_task_ends_while_a_call_of_another_one_runs(aftercare: WorkerAftercare) -> None:
    """The call may be in a transaction, but will end it."""

    async def end() -> None:
        before = aftercare.before_async()
        async with call_of_another_task():
            await aftercare.after_async(before)
        await aftercare.after_async(before)

    asyncio.run(end())


def turn_autocommit_off() -> None:
    """Let the next statement begin a transaction."""
    transaction.set_autocommit(False)


@pytest.mark.parametrize(
    "leave_open",
    [begin_transaction, lambda: transaction.atomic().__enter__(), turn_autocommit_off],
)
def test_call_that_leaves_a_transaction_open_fails_all_running_async_tasks(
    leave_open: Callable[[], None], aftercare: WorkerAftercare
) -> None:
    async def leave_and_end() -> None:
        befores = [aftercare.before_async() for _ in range(2)]
        await sync_to_async(leave_open)()
        for before in befores:
            with pytest.raises(TransactionLeftOpen):
                await aftercare.after_async(before)
        await aftercare.after_async(aftercare.before_async())

    asyncio.run(leave_and_end())


def test_transaction_that_a_later_call_has_ended_fails_no_task(aftercare: WorkerAftercare) -> None:
    async def begin_and_commit() -> None:
        before = aftercare.before_async()
        await sync_to_async(begin_transaction)()
        await sync_to_async(commit)()
        await aftercare.after_async(before)

    asyncio.run(begin_and_commit())


def test_closed_connection_is_in_no_transaction() -> None:
    connection.ensure_connection()
    assert not engine_for(connection).is_in_transaction(connection)
    connection.connection.close()
    try:
        assert not engine_for(connection).is_in_transaction(connection)
    finally:
        connection.connection = None


CLEAN_UP_FAILS = "its clean-up fails"


@pytest.mark.parametrize(
    "how",
    ["cancelled", f"cancelled, and {CLEAN_UP_FAILS}", f"timed out, and {CLEAN_UP_FAILS}", "failed"],
)
def test_attempt_that_does_not_succeed_ends_after_its_calls(
    how: str, aftercare: WorkerAftercare
) -> None:
    """Otherwise the next attempt would run beside them. Only after an interruption the hard
    time-out applies to them: otherwise it would replace the task's own error."""
    running, ends = opened(chaos.raise_keyboard_interrupt_async), []
    has_begun, may_end, is_over = threading.Event(), threading.Event(), asyncio.Event()
    if how.startswith("timed out"):
        running.timeout_seconds = 0.01

    def work() -> None:
        has_begun.set()
        may_end.wait()
        ends.append("call")

    async def function() -> None:
        call = asyncio.ensure_future(sync_to_async(work)())
        try:
            await asyncio.to_thread(has_begun.wait)
            if how == "failed":
                call.cancel()
                raise ConnectionError
            if how.startswith("cancelled"):
                running.interruption.cancel("enough")
            await call
        except asyncio.CancelledError:
            if how.endswith(CLEAN_UP_FAILS):
                raise ConnectionError from None
            raise
        finally:
            is_over.set()

    @contextmanager
    def limit() -> Iterator[None]:
        try:
            yield
        finally:
            ends.append("limit")

    async def run() -> Attempted:
        executor = Executor(settings_for(), worker_id="me", aftercare=aftercare)
        attempt = asyncio.ensure_future(executor.run_opened_async(running, asyncio.to_thread))
        attempt.add_done_callback(lambda _: ends.append("attempt"))
        await is_over.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        may_end.set()
        return await attempt

    running.function, running.hard_limit = function, limit()
    attempted = asyncio.run(run())
    assert isinstance(attempted.outcome, Cancelled if how == "cancelled" else Failed)
    first = ["limit", "call"] if how == "failed" else ["call", "limit"]
    assert ends == [*first, "attempt"]


def test_failed_attempt_does_not_wait_for_calls_of_others(aftercare: WorkerAftercare) -> None:
    running = opened(tasks.nothing)

    async def wait() -> None:
        async with call_of_another_task():
            await aftercare.wait_for_calls(running)

    asyncio.run(wait())


def test_coroutine_of_a_cancelled_sync_task_ends_before_the_attempt() -> None:
    """``async_to_sync`` runs it in another thread, but its sync calls in the task's thread."""
    listen()
    running, ends = opened(tasks.nothing), []

    async def work() -> None:
        running.interruption.cancel("enough")
        try:
            while True:
                running.interruption.remind()
                await asyncio.sleep(0.001)
        finally:
            await sync_to_async(note_thread)()
            ends.append("coroutine")

    def note_thread() -> None:
        ends.append(threading.current_thread())

    running.function = async_to_sync(work)
    executor = Executor(settings_for(), worker_id="me", aftercare=WorkerAftercare())
    attempted = executor.run_opened(running)
    assert isinstance(attempted.outcome, Cancelled)
    assert ends == [threading.main_thread(), "coroutine"]
