"""Many jobs with long packages: what the pusher holds of them is bounded."""

import re
from pathlib import Path

import pytest

from stoker.models import Job

from tests.app.tasks import length_of, nothing
from tests.cluster.clusters import running_cluster, wait_for
from tests.story.ledgers import unfinished

LONG_BYTES, JOBS, AT_ONCE = 1_000_000, 500, 20
LEARNED = 400
"""Short jobs from which the pusher learns that it may claim hundreds."""
MOST_BYTES = 400 << 20
"""Limit of the pusher's memory, while all packages are 500 MB: some 70 MiB for Python, Django and
Stoker, 32 MiB of packages whose jobs are being recorded, and claims of 16 MiB. The clients of Redis
and MongoDB hold their data two or three times: up to 320 MiB were seen."""

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.mariadb,
    pytest.mark.sqlite,
    pytest.mark.on_redis,
    pytest.mark.on_mongodb,
    pytest.mark.django_db(transaction=True),
]


def test_claims_of_long_packages_take_little_memory(tmp_path: Path) -> None:
    nothing.using(priority=9).enqueue_many([((), {})] * LEARNED)
    long = []
    for _ in range(0, JOBS, AT_ONCE):
        long += length_of.enqueue_many([(("x" * LONG_BYTES,), {})] * AT_ONCE)
    with running_cluster(tmp_path) as cluster:
        pusher = cluster.wait_for_crew()["pusher"][0].pid
        job_ids = [result.id for result in long]
        ended = Job.objects.filter(pk__in=job_ids).exclude(status=None)
        wait_for(ended.exists, cluster.tail)
        (short,) = nothing.using(priority=9).enqueue_many([((), {})])
        wait_for(lambda: not unfinished(), cluster.tail, seconds=600)
        status = Path(f"/proc/{pusher}/status").read_text()
        assert cluster.stop() == 0
    found = ended.order_by("finished_at").values_list("status", "attempts", "finished_at")
    assert {(status, attempts) for status, attempts, _ in found} == {(Job.Status.SUCCESSFUL, 1)}
    assert len(found) == JOBS
    assert Job.objects.get(pk=short.id).finished_at < found[JOBS // 2][2]
    print(status)
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    assert int(peak) << 10 < MOST_BYTES, f"{int(peak) >> 10} MiB"
