"""Database connections of a cluster's own processes: deadlines, poolers, wake-ups."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.backends.signals import connection_created

from stoker.checks import check_databases
from stoker.conf import settings_for
from stoker.exceptions import PoolerRefused
from stoker.models import Job
from stoker.models.job import JobColumns
from stoker.store import prepared
from stoker.store.engines import engine_of
from stoker.store.engines.sessions import explain
from stoker.store.statements import set_deadlines
from stoker.values.ids import new_job_id

from tests.servers.proxy import Proxy

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def project_database(**database: Any) -> Iterator[None]:
    """Use these values in DATABASES."""
    before, receivers = connection.settings_dict, connection_created.receivers.copy()
    wrappers = connection.execute_wrappers.copy()
    connection.close()
    connection.settings_dict = deepcopy(before)
    options = {**before["OPTIONS"], **database.pop("OPTIONS", {})}
    connection.settings_dict.update(database, OPTIONS=options)
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict = before
        connection.execute_wrappers[:] = wrappers
        connection_created.receivers = receivers
        connection_created.sender_receivers_cache.clear()


@contextmanager
def cluster_of_a_project(
    *, is_cluster: bool = True, database_seconds: float = 15.0, **database: Any
) -> Iterator[None]:
    """Make the connection that of a cluster's own process, with these values in DATABASES."""
    with project_database(**database):
        settings = replace(settings_for(), database_seconds=database_seconds)
        set_deadlines(settings, is_cluster=is_cluster)
        yield


@pytest.mark.postgres
@pytest.mark.parametrize("pool", [True, {"min_size": 1, "max_size": 4}])
def test_cluster_runs_with_a_connection_pool(pool: object) -> None:
    with cluster_of_a_project(OPTIONS={"pool": pool}):
        connection.ensure_connection()


def test_cluster_commits_though_project_disables_autocommit() -> None:
    with cluster_of_a_project(AUTOCOMMIT=False):
        engine_of("default").ensure_jobs(one_job())
    assert Job.objects.count() == 1


@pytest.mark.postgres
@pytest.mark.parametrize(
    "options", ["", "-c lock_timeout=60s -c idle_in_transaction_session_timeout=0"]
)
def test_postgresql_ends_silent_transactions_and_long_waits_of_a_cluster(options: str) -> None:
    with cluster_of_a_project(OPTIONS={"options": options}):
        settings = settings_for()
        limits = {
            "lock_timeout": "1s",
            "idle_in_transaction_session_timeout": "15s",
            "tcp_keepalives_idle": "15",
            "tcp_user_timeout": "15000",
        }
        assert settings.database_seconds == 15
        with connection.cursor() as cursor:
            for name, value in limits.items():
                cursor.execute(f"SHOW {name}")
                assert cursor.fetchone() == (value,)


@pytest.mark.postgres
@pytest.mark.parametrize("is_pooled", [False, True])
def test_postgresql_ends_long_calls_to_a_database_with_an_outbox(*, is_pooled: bool) -> None:
    """The client's deadline alone would leave the call on the server, where it may wait for a
    locked table. A pooler may refuse options of the session."""
    with project_database(DISABLE_SERVER_SIDE_CURSORS=is_pooled):
        engine_of("default").limit_calls(connection, 1.0)
        for block in (nullcontext(), transaction.atomic()):
            with pytest.raises(OperationalError, match="statement timeout"), block:
                connection.cursor().execute("SELECT pg_sleep(600)")
        assert "statement_timeout" not in str(connection.settings_dict["OPTIONS"])


@pytest.mark.mariadb
def test_mariadb_ends_silent_transactions_and_long_waits_of_a_cluster() -> None:
    """MySQL has no limit for a silent transaction, so it ends silent sessions."""
    is_mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined] # of this backend
    chosen = "max_statement_time" if is_mariadb else "max_execution_time"
    limits = {"innodb_lock_wait_timeout": 1, chosen: 7777}
    if is_mariadb:
        limits["idle_transaction_timeout"] = 15
    options = {"init_command": f"SET SESSION {chosen} = 7777"}
    with cluster_of_a_project(OPTIONS=options), connection.cursor() as cursor:
        for name, value in limits.items():
            cursor.execute(f"SELECT @@{name}")
            assert cursor.fetchone() == (value,)
        cursor.execute("SELECT @@wait_timeout = @@global.wait_timeout")
        assert cursor.fetchone() == (is_mariadb,)


@pytest.mark.postgres
def test_command_waits_for_locks_as_long_as_for_answers() -> None:
    with cluster_of_a_project(is_cluster=False), connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("15s",)


@pytest.mark.postgres
def test_project_may_choose_its_own_statement_timeout() -> None:
    options = {"options": "-c statement_timeout=7s"}
    with cluster_of_a_project(OPTIONS=options), connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("7s",)


@pytest.mark.postgres
@pytest.mark.parametrize("is_psycopg3", [True, False])
def test_statements_are_prepared_only_with_psycopg_3(
    monkeypatch: pytest.MonkeyPatch, *, is_psycopg3: bool
) -> None:
    """The connection of psycopg 2 has no attribute ``read_only`` and no ``pgconn``."""
    monkeypatch.setattr("django.db.backends.postgresql.psycopg_any.is_psycopg3", is_psycopg3)
    with cluster_of_a_project():
        set_deadlines(settings_for(), keeps_statements=True)
        assert prepared.are_kept(connection) is is_psycopg3


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.parametrize("moment", ["query", "commit", "prepared"])
def test_call_to_silent_server_raises_after_its_deadline(moment: str) -> None:
    if moment == "prepared" and connection.vendor != "postgresql":
        pytest.skip("Only PostgreSQL has prepared statements.")
    given = connection.settings_dict
    port = int(given["PORT"] or {"postgresql": 5432, "mysql": 3306}[connection.vendor])
    with Proxy(given["HOST"], port) as proxy:
        through = {"HOST": "127.0.0.1", "PORT": str(proxy.port)}
        with cluster_of_a_project(database_seconds=1.0, **through):
            connection.ensure_connection()
            client_port = proxy.client_ports[-1]
            with pytest.raises(OperationalError):
                add_job(moment, lambda: proxy.silence(client_port))
            assert Job.objects.count() == 0


@pytest.mark.postgres
@pytest.mark.parametrize(
    "refusal",
    [
        "FATAL:  unsupported startup parameter in options: statement_timeout",
        "FATAL:  Feature not supported: RDS Proxy doesn't support command-line options.",
        "FATAL:  Feature not supported: RDS Proxy doesn\u2019t support command-line options.",
    ],
)
def test_refusal_by_a_pooler_says_which_setting_it_needs(refusal: str) -> None:
    told = explain(OperationalError(f"connection failed: {refusal}"), "default")
    assert isinstance(told, PoolerRefused)
    assert '"DISABLE_SERVER_SIDE_CURSORS": True' in str(told)


@pytest.mark.postgres
@pytest.mark.parametrize("is_pooled", [True, False])
def test_session_options_without_effect_are_reported(*, is_pooled: bool) -> None:
    """PgBouncer drops them if they are in its ``ignore_startup_parameters``."""
    with cluster_of_a_project(DISABLE_SERVER_SIDE_CURSORS=is_pooled):
        engine = engine_of("default")
        assert engine.weaknesses() == []
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = 0")
        told = engine.weaknesses()
        assert told == [] if is_pooled else "DISABLE_SERVER_SIDE_CURSORS" in told[0]


@pytest.mark.postgres
@pytest.mark.parametrize("value", ["5s", "5000ms"])
def test_lock_timeout_of_the_project_in_any_unit_is_not_reported(value: str) -> None:
    """A check compares it with the server's setting, which is in milliseconds."""
    with project_database(OPTIONS={"options": f"-c lock_timeout={value}"}):
        assert engine_of("default").weaknesses() == []
    with cluster_of_a_project(OPTIONS={"options": f"-c lock_timeout={value}"}):
        assert engine_of("default").weaknesses() == []


@pytest.mark.postgres
@pytest.mark.parametrize("is_pooled", [True, False])
def test_cluster_listens_only_without_a_pooler(*, is_pooled: bool) -> None:
    with (
        cluster_of_a_project(DISABLE_SERVER_SIDE_CURSORS=is_pooled),
        closing(engine_of("default").open_wake()) as wake,
    ):
        assert (wake.fileno() is None) is is_pooled


@pytest.mark.postgres
@pytest.mark.parametrize("in_transaction", [True, False])
def test_lost_connection_behind_a_pooler_raises_an_error_of_django(*, in_transaction: bool) -> None:
    with cluster_of_a_project(DISABLE_SERVER_SIDE_CURSORS=True):
        Job.objects.count()
        end_session()
        with pytest.raises(OperationalError), atomic_if(in_transaction):
            Job.objects.count()
        connection.close()
        assert Job.objects.count() == 0


@pytest.mark.mariadb
def test_settings_that_stoker_cannot_use_are_reported() -> None:
    engine = engine_of("default")
    assert engine.weaknesses() == []
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.execute("ALTER TABLE stoker_note ENGINE=MyISAM")
    try:
        tables, mode = engine.weaknesses()
        assert "has 1 of Stoker's tables in MyISAM" in tables
        assert "STRICT_TRANS_TABLES" in mode
        found = check_databases(databases=["default"])
        assert [(one.id, one.msg) for one in found] == [
            ("stoker.W013", tables),
            ("stoker.W013", mode),
        ]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE stoker_note ENGINE=InnoDB")
        connection.close()


def atomic_if(is_wanted: bool) -> AbstractContextManager[object]:
    return transaction.atomic() if is_wanted else nullcontext()


def end_session() -> None:
    """Let the server end the session of Django's connection."""
    raw = connection.connection
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            if connection.vendor == "mysql":
                cursor.execute("KILL %s", [raw.thread_id()])
            else:
                cursor.execute("SELECT pg_terminate_backend(%s, 60000)", [raw.info.backend_pid])
    finally:
        other.close()


def one_job() -> JobColumns:
    return JobColumns(
        job_ids=[new_job_id().hex],
        tasks=["task"],
        queues=["default"],
        priorities=[0],
        packages=[b""],
        enqueued_at=[1.0],
    )


def add_job(moment: str, then: Callable[[], None]) -> None:
    """Add a job in a transaction, and call ``then`` before the given statement."""
    with transaction.atomic():
        engine_of("default").ensure_jobs(one_job())
        then()
        if moment == "query":
            Job.objects.count()
        elif moment == "prepared":
            prepared.fetch_kept(connection, "SELECT 1", {})
