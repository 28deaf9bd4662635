"""What jobs waited for is known after they have ended, on any broker."""

from pathlib import Path
from uuid import UUID

import pytest

from stoker import Lock
from stoker.conf import settings_for
from stoker.inspect.timeline import timeline
from stoker.models import Attempt, Blocked
from stoker.values.durations import in_words
from stoker.why import why

from tests.app.chaos import run_until, succeed_at_second
from tests.app.models import Ledger
from tests.app.tasks import nothing
from tests.cluster.clusters import running_cluster, wait_for
from tests.cluster.ends import end_of

pytestmark = [
    pytest.mark.quick,
    pytest.mark.postgres,
    pytest.mark.mariadb,
    pytest.mark.sqlite,
    pytest.mark.on_redis,
    pytest.mark.django_db(transaction=True),
]

ROUNDING_SECONDS = 0.02


def test_waits_of_ended_jobs_add_up_by_cause(tmp_path: Path) -> None:
    """One job is blocked by the lock of another one, and one is retried."""
    may_end, lock = tmp_path / "may end", Lock("feed:7")
    with running_cluster(tmp_path, WORKERS=2) as cluster:
        holder = run_until.using(lock=lock).enqueue(str(may_end))
        wait_for(lambda: Ledger.objects.filter(job_id=holder.id).exists(), cluster.tail)
        blocked = nothing.using(lock=lock).enqueue()
        wait_for(Blocked.objects.exists, cluster.tail)
        since_us = Blocked.objects.get().since_us
        retried = succeed_at_second.enqueue()
        end_of(retried, cluster)
        may_end.touch()
        freed_at = end_of(holder, cluster).job.finished_at
        ended = end_of(blocked, cluster).job
        assert cluster.stop() == 0
    assert freed_at is not None
    assert ended.started_at is not None
    waits = timeline(settings_for(), UUID(blocked.id)).waits
    assert waits is not None
    causes = {f"{one.cause.value} {one.name}".strip(): one.seconds for one in waits.parts}
    assert causes.keys() <= {"lock lock feed:7", "queue", "broker"}
    assert causes["lock lock feed:7"] >= freed_at.timestamp() - since_us / 1e6 - ROUNDING_SECONDS
    expected = (ended.started_at - ended.enqueued_at).total_seconds()
    assert waits.seconds == pytest.approx(expected, abs=ROUNDING_SECONDS)
    told = why(settings_for(), UUID(blocked.id)).facts["waited"]
    assert f"{in_words(causes['lock lock feed:7'])} blocked by lock feed:7" in told
    again = timeline(settings_for(), UUID(retried.id)).waits
    assert again is not None
    attempt = Attempt.objects.get(job_id=retried.id)
    assert attempt.retry_at is not None
    delay = (attempt.retry_at - attempt.finished_at).total_seconds()
    found = {one.cause.value: one.seconds for one in again.parts}
    assert found["retry"] == pytest.approx(delay, abs=ROUNDING_SECONDS)
