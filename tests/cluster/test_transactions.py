"""Tasks that end inside a transaction, on connections that are kept between jobs."""

from collections.abc import Callable
from typing import Any

import pytest

from stoker.exceptions import TransactionLeftOpen
from stoker.models import Job

from tests.app import chaos
from tests.app.models import Account
from tests.cluster.clusters import ProcessCluster
from tests.cluster.ends import end_of, value_of

pytestmark = pytest.mark.usefixtures("db")

LEFT_OPEN = f"{TransactionLeftOpen.__module__}.{TransactionLeftOpen.__qualname__}"


@pytest.fixture(scope="module", params=[1, 4])
def cluster(
    request: pytest.FixtureRequest, share_cluster: Callable[..., ProcessCluster]
) -> ProcessCluster:
    """A cluster with one worker, so that the next job uses the same connections."""
    return share_cluster(
        WORKERS=1,
        CONCURRENCY=request.param,
        environment={"STOKER_TEST_CONN_MAX_AGE": "600"},
    )


LEAVES_ONE_OPEN = [
    chaos.begin_and_return,
    chaos.begin_and_return_async,
    chaos.turn_autocommit_off,
    chaos.leave_atomic_open,
    chaos.only_turn_autocommit_off,
    chaos.only_turn_autocommit_off_async,
]


@pytest.mark.parametrize("task", LEAVES_ONE_OPEN, ids=lambda task: task.name)
def test_task_ending_inside_transaction_fails_and_next_job_is_committed(
    task: Any, cluster: ProcessCluster
) -> None:
    keep = chaos.keep_account_async if task.name.endswith("async") else chaos.keep_account
    for _ in range(2):
        end = end_of(task.enqueue(-1), cluster)
        kept = [value_of(keep.enqueue(number), cluster) for number in range(4)]
        assert Account.objects.filter(pk__in=kept).count() == 4
        assert end.job.status == Job.Status.FAILED
        assert [one.exception_class for one in end.attempts] == [LEFT_OPEN]
        assert "'default'" in end.attempts[0].message or task.name.endswith("async")
    assert not Account.objects.filter(total=-1).exists()


def test_task_raising_inside_transaction_fails_with_its_own_error(
    cluster: ProcessCluster,
) -> None:
    end = end_of(chaos.begin_and_raise.enqueue(-1), cluster)
    kept = value_of(chaos.keep_account.enqueue(1), cluster)
    assert [one.exception_class for one in end.attempts] == ["builtins.ValueError"]
    assert Account.objects.filter(pk=kept).exists()
    assert not Account.objects.filter(total=-1).exists()


def test_task_committing_its_own_transaction_succeeds(cluster: ProcessCluster) -> None:
    assert value_of(chaos.begin_and_commit.enqueue(77), cluster) == 77
    assert Account.objects.filter(total=77).exists()


def test_task_closing_connections_succeeds(cluster: ProcessCluster) -> None:
    end = end_of(chaos.close_connections.enqueue(), cluster)
    kept = value_of(chaos.keep_account.enqueue(1), cluster)
    assert end.job.status == Job.Status.SUCCESSFUL
    assert Account.objects.filter(pk=kept).exists()


@pytest.mark.postgres
@pytest.mark.mariadb
def test_time_out_during_a_query_does_not_harm_the_next_job(cluster: ProcessCluster) -> None:
    """Its connection may still expect the result of the query."""
    account = Account.objects.create(total=1)
    for number in range(2):
        end = end_of(chaos.query_too_long.enqueue(account.pk), cluster)
        assert [one.kind for one in end.attempts] == ["timed_out"], end.attempts[0].traceback
        kept = end_of(chaos.keep_account.enqueue(number), cluster)
        assert (kept.job.status, kept.attempts) == (Job.Status.SUCCESSFUL, [])
