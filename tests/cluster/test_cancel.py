"""Jobs that are cancelled while they run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from stoker import Task
from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.jobs.cancel import sweep_requests
from stoker.models import Cancellation, Claimed, Job, Need

from tests.app import cancelling, tasks
from tests.app.models import Account
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_for
from tests.cluster.ends import End, end_of, value_of

REASON = "the customer called"

pytestmark = pytest.mark.usefixtures("db")


@pytest.fixture(scope="module", params=[1, 4])
def cluster(
    request: pytest.FixtureRequest,
    shared_database: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProcessCluster]:
    """A cluster whose workers run tasks in the main thread, or in threads beside a loop."""
    options = {"CONCURRENCY": request.param, "TIMEOUT_GRACE_SECONDS": 5, "UPKEEP_SECONDS": 3600}
    with running_cluster(tmp_path_factory.mktemp("cluster"), **options) as cluster:
        cluster.wait_for_crew()
        yield cluster


@pytest.fixture
def began(tmp_path: Path) -> Path:
    """A file that the task creates when it has begun."""
    return tmp_path / "began"


def cancelled(one: Task[..., Any], began: Path, cluster: ProcessCluster, *more: Any) -> Any:
    """Enqueue a job and cancel it while it runs."""
    result = one.enqueue(str(began), *more)
    wait_for(began.exists, cluster.tail)
    assert result.cancel(REASON) is True
    return result


def assert_cancelled(end: End) -> None:
    assert (end.job.status, end.job.reason) == (Job.Status.CANCELLED, REASON)
    (attempt,) = end.attempts
    assert (attempt.number, attempt.kind, attempt.message) == (1, "cancelled", REASON)
    assert end.dead_letter is None
    assert not Claimed.objects.filter(pk=end.job.pk).exists()


def was_cleaned(began: Path) -> bool:
    return began.with_name("began-cleaned").exists()


def kills(cluster: ProcessCluster) -> int:
    return cluster.text().count("was killed")


@pytest.mark.parametrize("one", [cancelling.work, cancelling.wait_async])
def test_cancelled_task_can_clean_up(
    cluster: ProcessCluster, began: Path, one: Task[..., Any]
) -> None:
    killed = kills(cluster)
    result = cancelled(one, began, cluster)
    assert_cancelled(end_of(result, cluster))
    assert was_cleaned(began)
    assert kills(cluster) == killed
    assert result.cancel() is False, "it is over"


def test_cancelled_task_in_a_wait_ends_or_is_killed(cluster: ProcessCluster, began: Path) -> None:
    """A signal ends a wait in the main thread; a thread that waits in C has to be killed."""
    assert_cancelled(end_of(cancelled(cancelling.wait, began, cluster), cluster))


def test_task_that_ignores_its_cancellation_is_killed(cluster: ProcessCluster, began: Path) -> None:
    killed = kills(cluster)
    assert_cancelled(end_of(cancelled(cancelling.do_not_listen, began, cluster), cluster))
    assert kills(cluster) == killed + 1
    assert "continued after it was cancelled" in cluster.text()


@pytest.mark.postgres
@pytest.mark.mariadb
def test_cancelled_atomic_task_is_rolled_back(cluster: ProcessCluster, began: Path) -> None:
    """On SQLite the request cannot be written while the task's transaction is open."""
    account = Account.objects.create()
    result = cancelled(cancelling.work_atomic, began, cluster, account.pk)
    assert_cancelled(end_of(result, cluster))
    account.refresh_from_db()
    assert account.total == 0


def test_lock_of_a_cancelled_job_is_free(
    cluster: ProcessCluster, began: Path, tmp_path: Path
) -> None:
    first = cancelled(cancelling.work_locked, began, cluster)
    assert_cancelled(end_of(first, cluster))
    second = cancelling.work_locked.enqueue(str(tmp_path / "second"))
    wait_for((tmp_path / "second").exists, cluster.tail)
    second.cancel()
    assert end_of(second, cluster).job.status == Job.Status.CANCELLED
    assert not Need.objects.filter(job_id__in=[first.id, second.id]).exists()


def test_job_that_returns_despite_its_cancellation_succeeds(
    cluster: ProcessCluster, began: Path
) -> None:
    result = cancelled(cancelling.end_in_good_order, began, cluster)
    assert value_of(result, cluster) == f"ended: {REASON}"


def test_job_that_fails_after_its_cancellation_is_not_retried(
    cluster: ProcessCluster, began: Path
) -> None:
    result = cancelled(cancelling.fail_when_told, began, cluster)
    broker, job_id = broker_for(settings_for()), UUID(result.id)
    wait_for(lambda: broker.states([job_id]) != {job_id: "running"}, cluster.tail)
    sweep_requests(settings_for())
    end = end_of(result, cluster)
    assert (end.job.status, end.job.reason) == (Job.Status.CANCELLED, REASON)
    assert [one.kind for one in end.attempts] == ["failed"]


def test_cancelled_jobs_prefetched_by_a_worker_do_not_run(
    cluster: ProcessCluster, began: Path, tmp_path: Path
) -> None:
    """Or they are interrupted as soon as they begin."""
    results = [cancelling.work.enqueue(str(tmp_path / f"{number}")) for number in range(12)]
    wait_for((tmp_path / "0").exists, cluster.tail)
    for result in results:
        assert result.cancel(REASON) is True
    for result in results:
        job = end_of(result, cluster).job
        assert (job.status, job.reason) == (Job.Status.CANCELLED, REASON)
    assert value_of(tasks.add.enqueue(1, 2), cluster) == 3


def test_cancel_request_is_deleted_after_the_job_ends(cluster: ProcessCluster, began: Path) -> None:
    result = cancelled(cancelling.work, began, cluster)
    assert Cancellation.objects.filter(pk=result.id).exists()
    end_of(result, cluster)
    sweep_requests(settings_for())
    assert not Cancellation.objects.exists()


@pytest.mark.parametrize("one", [cancelling.work, cancelling.do_not_listen])
def test_new_pusher_reads_a_pending_cancel_request(
    cluster: ProcessCluster, began: Path, one: Task[..., Any]
) -> None:
    """The first pusher is killed before it reads the request."""
    result = one.enqueue(str(began))
    wait_for(began.exists, cluster.tail)
    pusher = cluster.pause_at_rest("pusher")
    assert result.cancel(REASON) is True
    pusher.kill()
    assert_cancelled(end_of(result, cluster))


def test_task_told_to_cancel_is_killed_though_the_pusher_dies(
    cluster: ProcessCluster, began: Path
) -> None:
    """The task ignores its cancellation and is killed; the reason is still recorded."""
    result = cancelling.hear_and_go_on.enqueue(str(began))
    wait_for(began.exists, cluster.tail)
    assert result.cancel(REASON) is True
    wait_for(began.with_name("began-told").exists, cluster.tail)
    cluster.kill("pusher")
    assert_cancelled(end_of(result, cluster))


def test_killed_worker_is_reported_to_the_next_pusher(cluster: ProcessCluster, began: Path) -> None:
    """The first pusher is paused while the worker is killed, and then killed itself."""
    killed = kills(cluster)
    result = cancelling.hear_and_go_on.enqueue(str(began))
    wait_for(began.exists, cluster.tail)
    assert result.cancel(REASON) is True
    wait_for(began.with_name("began-told").exists, cluster.tail)
    pusher = cluster.pause_at_rest("pusher")
    wait_for(lambda: kills(cluster) > killed, cluster.tail)
    pusher.kill()
    assert_cancelled(end_of(result, cluster))
