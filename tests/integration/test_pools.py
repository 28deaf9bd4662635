"""Stoker returns each connection to Django's connection pool."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.test import override_settings
from psycopg import generators

from stoker.cluster.worker.clean_up import WorkerAftercare
from stoker.exceptions import TaskTimeout
from stoker.locks.stores.contract import LockClaim
from stoker.locks.stores.database import DatabaseLocks
from stoker.models import Job, Outgoing
from stoker.models.outbox import forget_tables
from stoker.store import past_cursor, prepared, wake
from stoker.store.transactions import roll_back

from tests.app.tasks import nothing
from tests.guards.sessions import session
from tests.integration.work import another_database

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


class Pool:
    """A pool with one connection, which has the methods of psycopg_pool that Django calls."""

    def __init__(self) -> None:
        self.taken = 0

    def open(self) -> None:
        """Do nothing: this pool needs no opening."""

    def getconn(self) -> Any:
        assert self.taken == 0, "the pool has no free connection"
        parameters = connection.get_connection_params()
        raw = connection.Database.connect(**parameters)
        raw.autocommit = True
        raw._pool = self
        self.taken += 1
        return raw

    def putconn(self, raw: Any) -> None:
        assert raw.closed or not raw.pgconn.pipeline_status
        raw._pool = None
        raw.close()
        self.taken -= 1


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """Let the thread's connection be one of a pool."""
    made = Pool()
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", True)
    monkeypatch.setitem(connection._connection_pools, connection.alias, made)
    yield made
    connection.close()


def leave_a_query_running() -> None:
    """Leave the connection as a query does that an exception has interrupted."""
    connection.ensure_connection()
    connection.connection.pgconn.send_query(b"SELECT 1")


def test_connection_with_an_interrupted_query_returns_to_its_pool(pool: Pool) -> None:
    leave_a_query_running()
    roll_back(connection)
    assert pool.taken == 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def test_time_out_during_a_query_is_not_reported_as_an_open_transaction(
    events: list[tuple[str, dict[str, Any]]],
) -> None:
    def interrupt() -> None:
        leave_a_query_running()
        raise TaskTimeout

    try:
        interrupt()
    except TaskTimeout:
        WorkerAftercare().after_sync(None)
    assert connection.connection is None
    assert "transaction_left_open" not in [name for name, _ in events]


def test_first_enqueue_in_a_transaction_needs_no_second_connection(pool: Pool) -> None:
    forget_tables()
    with another_database() as store:
        options = {"BROKER": "memory://", "DATABASE": store, "CLUSTER": uuid4().hex}
        tasks = {"default": {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": options}}
        with override_settings(TASKS=tasks), transaction.atomic():
            nothing.enqueue()
            assert Outgoing.objects.exists()
            transaction.set_rollback(True)


def test_lock_is_renewed_on_a_connection_outside_the_pool(pool: Pool) -> None:
    store = DatabaseLocks("default")
    owner = uuid4()
    store.take(LockClaim("one", owner, 30.0))
    assert pool.taken == 1
    with session() as renewal:
        renewal.do(lambda: store.give_up_after(5))
        assert renewal.do(lambda: store.renew("one", owner, 30.0))


@pytest.mark.parametrize("notifies", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, TaskTimeout])
def test_connection_of_an_interrupted_enqueue_is_not_lent_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], *, notifies: bool
) -> None:
    """psycopg ends the statement, but not its pipeline."""
    monkeypatch.setattr(wake, "may_notify", lambda _: notifies)
    monkeypatch.delitem(connection.settings_dict, prepared.KEPT_KEY, raising=False)
    connection.ensure_connection()
    past_cursor._used.add(connection.connection)
    execute = generators.execute

    def execute_interrupted(session: Any) -> Any:
        waiting = execute(session)
        yield next(waiting)
        yield from waiting
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(generators, "execute", execute_interrupted)
        with pytest.raises(error):
            nothing.enqueue()
    assert connection.connection is None
    assert pool.taken == 0
    nothing.enqueue()
    assert Job.objects.filter(status=None).count() >= 1
