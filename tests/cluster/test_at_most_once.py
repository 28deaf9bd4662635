"""A task with at_most_once=True begins at most once on every broker."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.conf import settings_for
from stoker.models import Begun, Cluster, DeadLetter, Job

from tests.app import chaos, tasks
from tests.app.models import Ledger
from tests.cluster.clusters import is_alive, running_cluster, wait_for
from tests.cluster.ends import End, end_of, put_behind_long_jobs
from tests.story.beats import spans

LEASE_SECONDS = 6.0
WORKERS = 2

pytestmark = pytest.mark.django_db(transaction=True)


def began(result: Any) -> int:
    return Ledger.objects.filter(job_id=result.id).count()


def assert_was_refused(end: End) -> None:
    assert end.dead_letter is not None
    assert end.dead_letter.exception_class == "stoker.exceptions.AlreadyBegun"


@pytest.mark.parametrize(
    ("task", "concurrency"), [(chaos.run_once_until, 1), (chaos.run_once_async, 3)]
)
def test_interrupted_job_is_not_begun_again(task: Any, concurrency: int, tmp_path: Path) -> None:
    """A stop releases interrupted jobs uncounted, but such a task must not start again."""
    may_end = tmp_path / "may end"
    options = {"WORKERS": 1, "CONCURRENCY": concurrency}
    with running_cluster(tmp_path, **options, SHUTDOWN_SECONDS=0) as first:
        result = task.enqueue(str(may_end))
        wait_for(lambda: began(result) == 1, first.tail)
        assert first.stop() == 0
    may_end.touch()
    with running_cluster(tmp_path, **options) as second:
        assert_was_refused(end_of(result, second))
    assert began(result) == 1


@pytest.mark.chaos
def test_killed_job_is_a_dead_letter(tmp_path: Path) -> None:
    with running_cluster(tmp_path, WORKERS=1) as cluster:
        result = chaos.run_once_until.enqueue(str(tmp_path / "never"))
        wait_for(lambda: began(result) == 1, cluster.tail)
        (worker,) = cluster.crew()["worker"]
        worker.kill()
        wait_for(lambda: not is_alive(worker), cluster.tail)
        end = end_of(result, cluster)
    assert end.dead_letter is not None
    assert end.dead_letter.reason == "crash"
    assert began(result) == 1


def test_job_of_a_lost_host_runs_if_it_had_not_begun(tmp_path: Path) -> None:
    """The store knows which jobs had begun, even if the board is lost with the host."""
    unbegun, begun = [tasks.note_once.enqueue() for _ in range(2)]
    Begun.objects.create(job_id=begun.id, worker_id="lost", begun_at=timezone.now())
    counted = tasks.add.using(max_attempts=1).enqueue(1, 2)
    broker = broker_for(settings_for())
    held: list[Any] = []

    def are_claimed() -> bool:
        held.extend(broker.claim(ClaimRequest(10, holder=uuid4(), lease_seconds=0.2)))
        return len(held) == 3

    wait_for(are_claimed, lambda: str(held))
    broker.note_handed_out([one.lease for one in held])
    with running_cluster(tmp_path) as cluster:
        end = end_of(unbegun, cluster)
        assert (end.job.status, end.job.attempts) == (Job.Status.SUCCESSFUL, 1)
        for result in (begun, counted):
            end = end_of(result, cluster)
            assert end.dead_letter is not None
            assert end.dead_letter.reason == "crash"
    assert [began(result) for result in (unbegun, begun)] == [1, 0]


def test_last_attempts_of_a_lost_host_count_only_if_noted_as_handed_out(tmp_path: Path) -> None:
    results = [tasks.add.using(max_attempts=1).enqueue(number, 2) for number in range(4)]
    broker = broker_for(settings_for())
    held: list[Any] = []

    def are_claimed() -> bool:
        held.extend(broker.claim(ClaimRequest(10, holder=uuid4(), lease_seconds=0.2)))
        return len(held) == 4

    wait_for(are_claimed, lambda: str(held))
    handed_out = held[:2]
    broker.note_handed_out([one.lease for one in handed_out])
    lost = {str(one.job_id) for one in handed_out}
    with running_cluster(tmp_path) as cluster:
        ends = {result.id: end_of(result, cluster) for result in results}
    assert {job_id for job_id, end in ends.items() if end.dead_letter} == lost
    for job_id in ends.keys() - lost:
        job = ends[job_id].job
        assert (job.status, job.attempts) == (Job.Status.SUCCESSFUL, 1)


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.sqlite
@pytest.mark.on_redis
@pytest.mark.on_mongodb
@pytest.mark.slow
def test_last_attempts_of_a_lost_cluster_count_only_if_a_worker_received_them(
    tmp_path: Path,
) -> None:
    """Its board is lost with it. On a quick machine its cluster held more of them than it has
    workers."""
    may_end = tmp_path / "may end"
    with running_cluster(tmp_path, LEASE_SECONDS=LEASE_SECONDS) as lost:
        lost.wait_for_crew()
        line = put_behind_long_jobs(lost, may_end, 0.003, max_attempts=1)
        lost.pause_at_rest("pusher")
        crew = [one for members in lost.crew().values() for one in members]
        lost.kill("sentinel")
        wait_for(lambda: not any(map(is_alive, crew)), lost.tail)
        started = set(spans(line.beats))
        for cluster in Cluster.objects.all():
            Path(cluster.info["board"]).unlink()
    unstarted = []
    with running_cluster(tmp_path, LEASE_SECONDS=LEASE_SECONDS) as cluster:
        for result in [*line.long, *line.short]:
            end = end_of(result, cluster)
            if end.dead_letter is None:
                assert (end.job.status, end.job.attempts) == (Job.Status.SUCCESSFUL, 1)
                assert len(spans(line.beats)[result.id]) == 1
            elif result.id not in started:
                unstarted.append(end.dead_letter)
    assert len(unstarted) <= WORKERS
    assert DeadLetter.objects.count() >= 2, "the long jobs"


def test_job_that_snoozes_has_failed(tmp_path: Path) -> None:
    with running_cluster(tmp_path, WORKERS=1) as cluster:
        end = end_of(chaos.snooze_once.enqueue(), cluster)
    assert end.dead_letter is not None
    assert end.dead_letter.exception_class == "stoker.exceptions.Snooze"


def test_begun_rows_are_deleted_long_after_the_end_of_their_jobs() -> None:
    waiting = chaos.snooze_once.enqueue()
    Job.objects.get_or_create(
        pk=waiting.id, defaults={"task": "t", "package": b"", "enqueued_at": timezone.now()}
    )
    at_broker, *over = (uuid4() for _ in range(4))
    now = timezone.now()
    for job_id in (waiting.id, at_broker, *over):
        Begun.objects.create(job_id=job_id, worker_id="w", begun_at=now)
    assert list(Begun.objects.forget(3600.0, 10, lambda _: ())) == []
    assert sum(Begun.objects.forget(-1.0, 1, lambda _: {at_broker})) == len(over)
    assert {str(one.pk) for one in Begun.objects.all()} == {waiting.id, str(at_broker)}
