"""A shop with a site, a cluster and users, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import DEFAULT_DB_ALIAS, connection, connections
from playwright.sync_api import BrowserContext

from tests.app.models import Account
from tests.browser import seeds
from tests.browser.site import running_site
from tests.browser.window import Window, chromium, open_browser
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_for
from tests.tables import empty_tables

PASSWORD = "open sesame"
VIEWS = ("view_job", "view_deadletter", "view_schedule", "view_workflow", "view_cluster")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    chromium()
    with open_browser(tmp_path_factory.mktemp("profile")) as context:
        yield context
        # Its driver runs an event loop in this thread, so Django opened other connections.
        connections.close_all()


@pytest.fixture(scope="session")
def shop(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Fill the shop's database, with users: each test looks at its own jobs."""
    chromium()
    with django_db_blocker.unblock():
        empty_tables(DEFAULT_DB_ALIAS)
        User.objects.create_superuser("alice", password=PASSWORD)
        viewer = User.objects.create_user("bob", password=PASSWORD)
        viewer.user_permissions.set(Permission.objects.filter(codename__in=VIEWS))
        seeds.history()
        yield
        # The processes have ended, but their sessions on the server may last a moment longer.
        wait_for(lambda: _sessions_of_others() == 0)
        empty_tables(DEFAULT_DB_ALIAS)
        connections.close_all()


def _sessions_of_others() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        return int(cursor.fetchone()[0])


@pytest.fixture(scope="session")
def site(shop: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_site(tmp_path_factory.mktemp("site")) as address:
        yield address


@pytest.fixture(scope="session")
def cluster(shop: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    with running_cluster(folder, WORKERS=2) as running:
        running.wait_for_crew(2)
        yield running


@pytest.fixture
def db(shop: None) -> None:
    """Replace pytest-django's fixture of this name: a test must not roll back or empty the
    database, which a cluster uses."""


@pytest.fixture(autouse=True)
def _undo_mend(db: None) -> Iterator[None]:
    """Let the shop's bank be unreachable again, whatever the test has mended."""
    yield
    Account.objects.all().delete()


@pytest.fixture
def window(db: None, site: str, browser: BrowserContext) -> Iterator[Window]:
    """Give a page without a session, and check that it logged no errors in the end."""
    window = Window(browser, site)
    yield window
    window.page.close()
    assert not window.complaints


@pytest.fixture
def alice(window: Window) -> Window:
    """Give a page with a superuser's session."""
    window.come_as("alice")
    return window
