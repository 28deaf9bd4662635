"""Clusters that the tests of a module share, on a database that is not reset between them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS, connections

from tests.cluster.clusters import WAIT_SECONDS, ProcessCluster, running_cluster
from tests.tables import empty_tables

EVERYWHERE = {
    "test_at_most_once",
    "test_atomic",
    "test_cancel",
    "test_clean_up",
    "test_dead_letters",
    "test_job_logs",
    "test_leases",
    "test_prefetch",
    "test_processes",
    "test_schedules",
    "test_single",
    "test_transactions",
    "test_upkeep",
}
"""Modules about things that differ between databases: leases, locks, wake-ups, transactions. The
others are about processes and start their clusters on one database only."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run tests in which the database plays no part on SQLite only."""
    module = item.nodeid.partition("::")[0].rpartition("/")[2].removesuffix(".py")
    names_one = any(item.get_closest_marker(name) for name in ("postgres", "mariadb", "sqlite"))
    if module not in EVERYWHERE and not names_one:
        item.add_marker(pytest.mark.sqlite)


@pytest.fixture(autouse=True, scope="module")
def patience(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Let tests wait for SQLite's write lock as long as for anything else."""
    with django_db_blocker.unblock(), pytest.MonkeyPatch.context() as patch:
        on_sqlite = [one for one in connections.all() if one.vendor == "sqlite"]
        for connection in on_sqlite:
            options = connection.settings_dict.setdefault("OPTIONS", {})
            patch.setitem(options, "timeout", WAIT_SECONDS)
            connection.close()
        yield
        for connection in on_sqlite:
            connection.close()


@pytest.fixture(scope="module")
def shared_database(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Empty the database once per module; tests look only at their own jobs."""
    with django_db_blocker.unblock():
        empty_tables(DEFAULT_DB_ALIAS)
        yield
        empty_tables(DEFAULT_DB_ALIAS)
        connections.close_all()


@pytest.fixture
def db(shared_database: None) -> None:
    """Replace pytest-django's fixture: do not reset the database, because a cluster works on it."""


@pytest.fixture(scope="module")
def share_cluster(
    shared_database: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., ProcessCluster]]:
    """Yield a function that starts a cluster for all tests of the module."""
    with ExitStack() as stack:

        def start(**options: Any) -> ProcessCluster:
            folder = tmp_path_factory.mktemp("cluster")
            cluster = stack.enter_context(running_cluster(folder, **options))
            cluster.wait_for_crew(options.get("WORKERS", 2))
            return cluster

        yield start
