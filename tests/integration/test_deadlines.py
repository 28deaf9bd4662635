"""What a cluster's own processes set on their connections, whatever the project has set."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
from django.db import connection
from django.db.backends.signals import connection_created

from stoker.brokers.patience import set_deadlines
from stoker.conf import settings_for
from stoker.models import Job
from stoker.models.job import NewJob
from stoker.values.ids import new_job_id

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def cluster_of_a_project(*, is_cluster: bool = True, **database: Any) -> Iterator[None]:
    """Let the connection be that of a cluster's own process, where DATABASES says this."""
    before, receivers = connection.settings_dict, connection_created.receivers.copy()
    connection.close()
    connection.settings_dict = deepcopy(before)
    options = {**before["OPTIONS"], **database.pop("OPTIONS", {})}
    connection.settings_dict.update(database, OPTIONS=options)
    try:
        set_deadlines(settings_for(), is_cluster=is_cluster)
        yield
    finally:
        connection.close()
        connection.settings_dict = before
        connection_created.receivers = receivers
        connection_created.sender_receivers_cache.clear()


@pytest.mark.postgres
@pytest.mark.parametrize("pool", [True, {"min_size": 1, "max_size": 4}])
def test_a_project_that_has_its_connections_from_a_pool_can_run_a_cluster(pool: object) -> None:
    with cluster_of_a_project(OPTIONS={"pool": pool}):
        connection.ensure_connection()


def test_a_cluster_commits_though_the_project_does_so_by_hand() -> None:
    with cluster_of_a_project(AUTOCOMMIT=False):
        Job.objects.ensure([NewJob(new_job_id(), "task", "default", 0, b"", 1.0)])
    assert Job.objects.count() == 1


@pytest.mark.postgres
def test_server_ends_silent_transactions_and_long_waits_of_a_cluster() -> None:
    with cluster_of_a_project():
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


@pytest.mark.mariadb
def test_mariadb_ends_silent_transactions_and_long_waits_of_a_cluster() -> None:
    options = {"init_command": "SET SESSION max_statement_time = 77"}
    with cluster_of_a_project(OPTIONS=options), connection.cursor() as cursor:
        cursor.execute(
            "SELECT @@innodb_lock_wait_timeout, @@idle_transaction_timeout,"
            " @@wait_timeout = @@global.wait_timeout, @@max_statement_time"
        )
        assert cursor.fetchone() == (1, 15, 1, 77)


@pytest.mark.postgres
def test_command_waits_for_locks_as_long_as_for_any_answer() -> None:
    with cluster_of_a_project(is_cluster=False), connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("15s",)
