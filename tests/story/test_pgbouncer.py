"""A cluster behind PgBouncer in transaction mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.backends.signals import connection_created

from stoker.conf import settings_for
from stoker.models import Job, Ready
from stoker.store.engines import engine_of
from stoker.store.statements import set_deadlines

from tests.app.tasks import nothing
from tests.cluster.clusters import run_command, running_cluster, wait_for
from tests.servers.pgbouncer import PrivatePgbouncer
from tests.servers.private import NotInstalledError

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def pooler() -> Iterator[PrivatePgbouncer]:
    given = connection.settings_dict
    made = PrivatePgbouncer(given["HOST"], int(given["PORT"] or 5432))
    try:
        with made:
            yield made
    except NotInstalledError as missing:
        pytest.skip(str(missing))


def test_cluster_without_pooler_settings_refuses_with_advice(pooler: PrivatePgbouncer) -> None:
    done = run_command("stoker", "run", environment={"STOKER_TEST_POSTGRES_URL": pooler.url})
    assert done.returncode
    said = done.stdout + done.stderr
    assert '"DISABLE_SERVER_SIDE_CURSORS": True' in said
    assert "Traceback" not in said


def test_cluster_with_pooler_settings_runs_jobs(pooler: PrivatePgbouncer, tmp_path: Path) -> None:
    environment = {"STOKER_TEST_POSTGRES_URL": pooler.url, "STOKER_TEST_POOLER": "1"}
    nothing.enqueue_many([((), {})] * 100)
    with running_cluster(tmp_path, environment=environment) as cluster:
        wait_for(lambda: Job.objects.filter(status="SUCCESSFUL").count() == 100, cluster.tail)
        assert cluster.stop() == 0
        assert "Traceback" not in cluster.text()


@contextmanager
def connected_through(pooler: PrivatePgbouncer, **database: Any) -> Iterator[None]:
    """Let this thread's connection go through the pooler, with these values in DATABASES."""
    before, receivers = connection.settings_dict, connection_created.receivers.copy()
    wrappers = connection.execute_wrappers.copy()
    connection.close()
    through = {"HOST": "127.0.0.1", "PORT": str(pooler.port), "OPTIONS": {}}
    connection.settings_dict = {**before, **through, **database}
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict = before
        connection.execute_wrappers[:] = wrappers
        connection_created.receivers = receivers
        connection_created.sender_receivers_cache.clear()


def test_jobs_enqueued_through_an_undeclared_pooler_are_all_added(
    pooler: PrivatePgbouncer,
) -> None:
    """Each enqueue may get another session of the server, which has not prepared its statement."""
    with connected_through(pooler):
        first = connection.copy()
        try:
            sessions = set()
            for _ in range(4):
                nothing.enqueue()
                sessions.add(session_of(connection))
            with first.cursor() as cursor:
                cursor.execute("BEGIN")  # keeps the session that has been used so far
                sessions.add(session_of(first))
                for _ in range(4):
                    nothing.enqueue()
                    sessions.add(session_of(connection))
                cursor.execute("COMMIT")
        finally:
            first.close()
    assert len(sessions) > 1
    assert Job.objects.count() == Ready.objects.count() == 8


def session_of(through: Any) -> int:
    """Return the id of the server's process that answers now."""
    with through.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def test_every_call_through_the_pooler_has_a_deadline(pooler: PrivatePgbouncer) -> None:
    """Other clients of the pooler do not get these deadlines."""
    wrappers = connection.execute_wrappers.copy()
    with connected_through(pooler, DISABLE_SERVER_SIDE_CURSORS=True):
        set_deadlines(replace(settings_for(), database_seconds=1.0))
        for _ in range(2):
            with pytest.raises(OperationalError, match="statement timeout"):
                ask("SELECT pg_sleep(60)")
            with pytest.raises(OperationalError, match="statement timeout"), transaction.atomic():
                ask("SELECT pg_sleep(60)")
        with transaction.atomic():
            assert ask("SHOW lock_timeout") == "250ms"
            assert ask("SHOW idle_in_transaction_session_timeout") == "2s"
        connection.execute_wrappers[:] = wrappers
        assert ask("SHOW statement_timeout") == "0"


def test_deadline_of_another_database_needs_no_pooler_settings(pooler: PrivatePgbouncer) -> None:
    """A scheduler sets it for databases that have an outbox only."""
    with connected_through(pooler):
        engine_of("default").limit_calls(connection, 15.0)
        assert ask("SHOW statement_timeout") == "15s"
        connection.execute_wrappers.clear()
        assert ask("SHOW statement_timeout") == "0", "other clients do not get this deadline"


def ask(statement: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return str(cursor.fetchone()[0])
