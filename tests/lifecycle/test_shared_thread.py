"""The thread in which all async tasks of a worker make their sync calls."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from asgiref.sync import SyncToAsync, sync_to_async
from django.db import connection, connections, transaction

from stoker.cluster.worker.workload import WorkerAftercare
from stoker.exceptions import TransactionLeftOpen
from stoker.store.engines import engine_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def aftercare(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerAftercare]:
    """The clean-up of a worker with CONCURRENCY above 1."""
    aftercare = WorkerAftercare()
    monkeypatch.setattr(SyncToAsync, "single_thread_executor", aftercare.shared_thread)
    yield aftercare
    aftercare.shared_thread.submit(connections.close_all).result()
    aftercare.shared_thread.shutdown()


class Neighbour:
    """A call of another async task, which stays inside a transaction until it may end."""

    def __init__(self) -> None:
        self._has_begun, self._may_end = threading.Event(), threading.Event()
        self._call: asyncio.Future[None] | None = None

    async def begin(self) -> None:
        self._call = asyncio.ensure_future(sync_to_async(self._work)())
        await asyncio.to_thread(self._has_begun.wait)

    async def end(self) -> None:
        assert self._call is not None
        assert not self._call.done()
        self._may_end.set()
        await self._call

    def _work(self) -> None:
        with transaction.atomic(durable=True):
            connection.ensure_connection()
            self._has_begun.set()
            self._may_end.wait()


def begin_transaction() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")


def commit() -> None:
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")


def test_async_task_ends_while_a_call_of_another_one_runs(aftercare: WorkerAftercare) -> None:
    """The call may be in a transaction, but will end it."""

    async def end_beside_neighbour() -> None:
        neighbour = Neighbour()
        before = aftercare.before_async()
        await neighbour.begin()
        await aftercare.after_async(before)
        await neighbour.end()
        await aftercare.after_async(before)

    asyncio.run(end_beside_neighbour())


@pytest.mark.parametrize(
    "leave_open", [begin_transaction, lambda: transaction.atomic().__enter__()]
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
