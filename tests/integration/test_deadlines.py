"""What a cluster's own processes set on their connections, whatever the project has set."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
from django.db import connection

from stoker.cluster.patience import set_deadlines
from stoker.conf import settings_for
from stoker.ids import new_job_id
from stoker.models import Job
from stoker.models.job import NewJob

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def cluster_of_a_project(**database: Any) -> Iterator[None]:
    """Let the connection be that of a cluster's own process, where DATABASES says this."""
    before = connection.settings_dict
    connection.close()
    connection.settings_dict = deepcopy(before)
    options = {**before["OPTIONS"], **database.pop("OPTIONS", {})}
    connection.settings_dict.update(database, OPTIONS=options)
    try:
        set_deadlines(settings_for())
        yield
    finally:
        connection.close()
        connection.settings_dict = before


@pytest.mark.postgres
@pytest.mark.parametrize("pool", [True, {"min_size": 1, "max_size": 4}])
def test_a_project_that_has_its_connections_from_a_pool_can_run_a_cluster(pool: object) -> None:
    with cluster_of_a_project(OPTIONS={"pool": pool}):
        connection.ensure_connection()


def test_a_cluster_commits_though_the_project_does_so_by_hand() -> None:
    with cluster_of_a_project(AUTOCOMMIT=False):
        Job.objects.ensure([NewJob(new_job_id(), "task", "default", 0, b"", 1.0)])
    assert Job.objects.count() == 1
