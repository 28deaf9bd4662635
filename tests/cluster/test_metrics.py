"""The history of metrics that a real cluster writes."""

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from stoker.conf import settings_for
from stoker.metrics import by_task
from stoker.models import Job, Sample

from tests.app import atomic, tasks
from tests.app.models import Account
from tests.cluster.clusters import running_cluster, wait_for

pytestmark = pytest.mark.usefixtures("db")


def test_stopped_cluster_has_counted_every_job(tmp_path: Path) -> None:
    begun = timezone.now() - timedelta(minutes=1)
    account = Account.objects.create()
    tasks.nothing.enqueue_many([((), {})] * 60)
    atomic.add.enqueue_many([((account.pk,), {})] * 5)
    tasks.fail_unretried.enqueue_many([((), {})] * 3)
    # Samples name only queues with jobs, and the other jobs may end before the first sample.
    tasks.nothing.using(queue_name="later", run_after=begun + timedelta(days=1)).enqueue()
    open_jobs = Job.objects.filter(status=None).exclude(queue="later")
    with running_cluster(tmp_path) as cluster:
        wait_for(lambda: not open_jobs.exists(), cluster.tail)
        tasks.kill_itself.using(
            max_attempts=1
        ).enqueue()  # alone, because other jobs would crash with it
        wait_for(lambda: not open_jobs.exists(), cluster.tail)
        wait_for(Sample.objects.exists, cluster.tail)
        assert cluster.stop() == 0
    ended = Counter(Job.objects.exclude(queue="later").values_list("task", "status"))
    found = by_task(settings_for(), begun, timezone.now() + timedelta(minutes=1))
    assert ended == Counter(
        {
            (one.task, status): number
            for one in found
            for status, number in (
                ("SUCCESSFUL", one.figures.successful),
                ("FAILED", one.figures.failed),
            )
            if number
        }
    )
    assert all(one.figures.run.count == one.figures.finished for one in found)
    waits = {one.task: one.figures.wait.count for one in found}
    assert waits[tasks.nothing.module_path] == 60
    assert waits[atomic.add.module_path] == 5
