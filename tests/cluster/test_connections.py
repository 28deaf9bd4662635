"""How many connections a cluster opens, as the documentation says."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests.app import chaos
from tests.cluster.clusters import WAIT_SECONDS, running_cluster, wait_for
from tests.cluster.ends import value_of
from tests.docs.pages import DOCS

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


def test_cluster_opens_as_many_connections_as_documented(tmp_path: Path) -> None:
    page = (DOCS / "howto" / "run-in-production.md").read_text()
    (more,) = re.findall(r"A cluster needs `WORKERS` \+ (\d+) connections", page)
    kept = {"STOKER_TEST_CONN_MAX_AGE": str(round(5 * WAIT_SECONDS))}
    with running_cluster(tmp_path, environment=kept) as cluster:
        cluster.wait_for_crew()
        workers: set[Any] = set()
        while len(workers) < 2:  # until both have used the database
            results = chaos.session_id.enqueue_many([((0.5,), {})] * 2)
            workers |= {value_of(result, cluster) for result in results}
        wait_for(lambda: _sessions() == 2 + int(more), lambda: f"there are {_sessions()}")


def _sessions() -> int:
    """Return how many other clients are connected to the database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])
