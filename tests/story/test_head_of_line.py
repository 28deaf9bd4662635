"""Short jobs behind long ones: no worker is idle while a job waits, on any broker."""

from pathlib import Path

import pytest

from stoker.models import Job

from tests.app.chaos import beat, run_until
from tests.app.models import Ledger
from tests.cluster.clusters import WAIT_SECONDS, running_cluster, wait_for
from tests.cluster.ends import end_of
from tests.story.beats import spans

pytestmark = [
    pytest.mark.quick("postgres"),
    pytest.mark.postgres,
    pytest.mark.mariadb,
    pytest.mark.sqlite,
    pytest.mark.on_redis,
    pytest.mark.on_mongodb,
    pytest.mark.on_disque,
    pytest.mark.on_ironmq,
    pytest.mark.on_sqs,
    pytest.mark.django_db(transaction=True),
]


def test_short_jobs_queued_behind_long_ones_end_first(tmp_path: Path) -> None:
    """The first cluster knows one of the long jobs as a short one, and nothing of the other. What
    it cannot start, the second cluster runs."""
    beats, may_end = tmp_path / "beats", tmp_path / "may end"
    with running_cluster(tmp_path, WORKERS=2) as first:
        first.wait_for_crew()
        for result in beat.enqueue_many([((str(beats), 0.0), {})] * 200):
            end_of(result, first)
        long = [
            beat.enqueue(str(beats), 10 * WAIT_SECONDS, str(may_end)),
            run_until.enqueue(str(may_end)),
        ]
        wait_for(lambda: long[0].id in spans(beats), first.tail)
        wait_for(lambda: Ledger.objects.filter(job_id=long[1].id).exists(), first.tail)
        short = beat.enqueue_many([((str(beats), 0.0), {})] * 30)
        with running_cluster(tmp_path, WORKERS=2) as second:
            for result in short:
                assert end_of(result, second).job.attempts == 1
            assert not Job.objects.filter(pk__in=[one.id for one in long]).exclude(status=None)
            may_end.touch()
            for result in long:
                end = end_of(result, first)
                assert (end.job.status, end.job.attempts) == (Job.Status.SUCCESSFUL, 1)
            assert second.stop() == 0
        assert first.stop() == 0
    assert all(len(executions) == 1 for executions in spans(beats).values())
