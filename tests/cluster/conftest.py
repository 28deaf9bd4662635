"""Clusters that the tests of a module share, on a database that stays as they leave it."""

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
    "test_leases",
    "test_processes",
    "test_schedules",
    "test_transactions",
    "test_upkeep",
}
"""Modules about what databases do differently: leases, locks, wake-ups, transactions. The others
are about processes, and start their clusters on one database only."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave out what the database plays no part in, but where it is looked at on one of them."""
    module = item.nodeid.partition("::")[0].rpartition("/")[2].removesuffix(".py")
    names_one = any(item.get_closest_marker(name) for name in ("postgres", "mariadb", "sqlite"))
    if module not in EVERYWHERE and not names_one:
        item.add_marker(pytest.mark.sqlite)


@pytest.fixture(autouse=True, scope="module")
def patience(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Let the tests wait for SQLite's one write lock for as long as they wait for anything else."""
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
    """The database for a whole module: its tests look at their own jobs only."""
    with django_db_blocker.unblock():
        empty_tables(DEFAULT_DB_ALIAS)
        yield
        empty_tables(DEFAULT_DB_ALIAS)
        connections.close_all()


@pytest.fixture
def db(shared_database: None) -> None:
    """In the place of pytest-django's fixture of this name: it has the database made, but here each
    test leaves it as it is, for a cluster is at work on it."""


@pytest.fixture(scope="module")
def share_cluster(
    shared_database: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., ProcessCluster]]:
    """Start a cluster that runs until the module's tests are over."""
    with ExitStack() as stack:

        def start(**options: Any) -> ProcessCluster:
            folder = tmp_path_factory.mktemp("cluster")
            cluster = stack.enter_context(running_cluster(folder, **options))
            cluster.wait_for_crew(options.get("WORKERS", 2))
            return cluster

        yield start
