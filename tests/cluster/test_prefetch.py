"""Jobs that a cluster holds and cannot start yet."""

from pathlib import Path
from uuid import UUID

import pytest

from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.models import Claimed, Cluster

from tests.cluster.clusters import running_cluster, wait_for
from tests.cluster.ends import end_of, give_back, put_behind_long_jobs, take_over
from tests.story.beats import spans

pytestmark = pytest.mark.django_db(transaction=True)


def test_prefetched_job_whose_lease_is_lost_does_not_start(tmp_path: Path) -> None:
    """It waits behind long jobs when its lease is lost."""
    may_end, broker = tmp_path / "may end", broker_for(settings_for())
    with running_cluster(
        tmp_path,
        environment={"STOKER_TEST_MISCHIEF": "keep prefetched"},
        LEASE_SECONDS=24,
        HEARTBEAT_SECONDS=0.1,
    ) as cluster:
        line = put_behind_long_jobs(cluster, may_end)
        pusher = cluster.pause_at_rest("pusher")
        begun = [UUID(one.id) for one in [*line.long, *line.started]]
        unstarted = list(Claimed.objects.exclude(pk__in=begun).values_list("pk", flat=True))
        lost = next(one for one in line.short if UUID(one.id) == unstarted[0])
        delivery = take_over(lost, broker, cluster)
        pusher.resume()
        leases = len(line.long) + len(unstarted) - 1
        wait_for(lambda: Cluster.objects.get().info["leases"] == leases, cluster.tail)
        may_end.touch()
        for result in [*line.long, *line.short]:
            if result is not lost:
                assert end_of(result, cluster).job.attempts == 1
        assert lost.id not in spans(line.beats)
        give_back(delivery, broker)
        assert end_of(lost, cluster).job.attempts == 2
