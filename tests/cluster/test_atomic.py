"""Tasks with atomic=True in a real cluster: deaths, time-outs and what is recorded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker import Task
from stoker.models import Claimed, Job

from tests.app import atomic
from tests.app.models import Account
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_for
from tests.cluster.ends import End, end_of, value_of

LEASE_SECONDS = 6.0

pytestmark = pytest.mark.usefixtures("db")


@pytest.fixture(scope="module", params=[1, 4])
def cluster(
    request: pytest.FixtureRequest,
    shared_database: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProcessCluster]:
    """A cluster whose workers run tasks in the main thread, or in threads beside a loop."""
    options = {"CONCURRENCY": request.param, "TIMEOUT_GRACE_SECONDS": 0.3}
    folder = tmp_path_factory.mktemp("cluster")
    with running_cluster(folder, LEASE_SECONDS=LEASE_SECONDS, **options) as cluster:
        cluster.wait_for_crew()
        yield cluster


@pytest.fixture
def account() -> Account:
    return Account.objects.create()


def total(account: Account) -> int:
    account.refresh_from_db()
    return account.total


def kinds(end: End) -> list[str]:
    return [one.kind for one in end.attempts]


def test_concurrent_atomic_jobs_take_effect_once_each(
    account: Account, cluster: ProcessCluster
) -> None:
    results = atomic.add.enqueue_many([((account.pk,), {})] * 50)
    for result in results:
        assert value_of(result, cluster) == account.pk
    assert total(account) == 50
    assert not Claimed.objects.filter(job_id__in=[one.id for one in results]).exists()


@pytest.mark.parametrize(("moment", "died"), [("before", ["crashed"]), ("after", [])])
def test_worker_dying_around_the_commit_leaves_one_effect(
    account: Account, cluster: ProcessCluster, tmp_path: Path, moment: str, died: list[str]
) -> None:
    """A worker that dies after the commit cannot report it, but the job is not retried."""
    end = end_of(
        atomic.add_and_die_once.enqueue(account.pk, str(tmp_path / "died"), moment), cluster
    )
    assert (end.job.status, kinds(end)) == (Job.Status.SUCCESSFUL, died)
    assert end.job.attempts == 1 + len(died)
    # The next job succeeds, too.
    assert value_of(atomic.add.enqueue(account.pk), cluster) == account.pk
    assert total(account) == 2


@pytest.mark.parametrize("one", [atomic.add_too_long, atomic.add_and_swallow_the_timeout])
def test_timed_out_atomic_task_writes_nothing(
    account: Account, cluster: ProcessCluster, one: Task[..., None]
) -> None:
    """With the soft and the hard time-out."""
    end = end_of(one.enqueue(account.pk, 30.0), cluster)
    assert end.dead_letter is not None
    assert (end.dead_letter.reason, kinds(end)) == ("timeout", ["timed_out"])
    assert total(account) == 0


@pytest.mark.parametrize("savepoint", [True, False])
def test_atomic_task_leaving_inner_block_open_fails_and_writes_nothing(
    account: Account, cluster: ProcessCluster, savepoint: bool
) -> None:
    end = end_of(
        atomic.add_and_leave_an_inner_block_open.enqueue(account.pk, savepoint=savepoint), cluster
    )
    assert (end.job.status, end.job.attempts) == (Job.Status.FAILED, 1)
    assert [one.exception_class for one in end.attempts] == [
        "stoker.exceptions.TransactionLeftOpen"
    ]
    assert total(account) == 0
    assert value_of(atomic.add.enqueue(account.pk), cluster) == account.pk
    assert total(account) == 1


@pytest.mark.postgres
@pytest.mark.mariadb
def test_on_commit_hooks_may_outlast_the_lease(
    account: Account, cluster: ProcessCluster, tmp_path: Path
) -> None:
    """The lease ends with the commit, so the worker is not killed. (On SQLite the time limit of an
    atomic task is shorter than the lease.)"""
    said_before, hook_is_over = len(cluster.text()), tmp_path / "over"
    stays = atomic.add_and_stay_after_the_commit.enqueue(
        account.pk, 1.5 * LEASE_SECONDS, str(hook_is_over)
    )
    assert end_of(stays, cluster).job.attempts == 1
    wait_for(hook_is_over.exists, cluster.tail)
    assert "lost" not in cluster.text()[said_before:]
    assert "killed" not in cluster.text()[said_before:]
