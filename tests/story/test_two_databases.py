"""The queue on another database alias than the default."""

from pathlib import Path

import pytest
from django.db import transaction

from stoker import every, schedules
from stoker.models import Job, Ready, Schedule, Tick

from tests.app.models import Ledger
from tests.app.tasks import add, enqueue_another, fail_once, write_ledger
from tests.cluster.clusters import running_cluster, wait_for

pytestmark = [
    pytest.mark.two_databases,
    pytest.mark.django_db(transaction=True, databases=["default", "queue"]),
]


class RolledBack(Exception):
    """Raised on purpose inside a transaction."""


def test_jobs_are_only_in_the_queues_database() -> None:
    result = add.enqueue(1, 2)
    assert Job.objects.using("queue").filter(pk=result.id).exists()
    assert not Job.objects.using("default").exists()
    assert add.get_result(result.id).state == "READY"


def test_enqueue_rolls_back_with_the_queues_database() -> None:
    with pytest.raises(RolledBack), transaction.atomic(using="queue"):  # noqa: PT012 - as used
        add.enqueue(1, 2)
        raise RolledBack
    assert not Ready.objects.using("queue").exists()


def test_cluster_runs_jobs_of_the_queues_database(tmp_path: Path) -> None:
    results = [write_ledger.enqueue(), enqueue_another.enqueue(1, 2), fail_once.enqueue()]
    with running_cluster(tmp_path) as cluster:
        wait_for(lambda: Job.objects.using("queue").exclude(status=None).count() == 4, cluster.tail)
    for result in results:
        result.refresh()
    assert [result.state for result in results] == ["SUCCESSFUL", "SUCCESSFUL", "FAILED"]
    assert add.get_result(results[1].return_value).return_value == 3
    assert Ledger.objects.using("default").count() == 1


def test_schedules_are_only_in_the_queues_database(tmp_path: Path) -> None:
    schedules.create("seconds", write_ledger, every(seconds=1, repeats=2))
    assert not Schedule.objects.using("default").exists()
    with running_cluster(tmp_path) as cluster:
        wait_for(lambda: schedules.get("seconds").is_over, cluster.tail)
        wait_for(lambda: Ledger.objects.using("default").count() == 2, cluster.tail)
    assert Tick.objects.using("queue").filter(outcome="fired").count() == 2
