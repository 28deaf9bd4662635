"""Checkpoints of tasks whose workers are killed."""

from pathlib import Path

import pytest

from tests.app.models import Account
from tests.app.noting import store_pages
from tests.cluster.clusters import WAIT_SECONDS, running_cluster

pytestmark = pytest.mark.django_db(transaction=True)


def test_checkpointed_task_stores_each_page_once_though_workers_die(tmp_path: Path) -> None:
    dies = [(1, "before"), (4, "after")]
    result = store_pages.enqueue(6, dies)
    with running_cluster(tmp_path) as cluster:
        assert result.wait(WAIT_SECONDS) == len(dies) + 1, cluster.tail()
    assert sorted(Account.objects.values_list("total", flat=True)) == [0, 1, 2, 3, 4, 5]
