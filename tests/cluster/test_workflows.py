"""Workflows on a real cluster: cancelling interrupts running steps, and waiting ones never run."""

from pathlib import Path

import pytest

from stoker import chain, get_workflow, group
from stoker.models import Job

from tests.app.cancelling import wait, wait_async
from tests.app.flows import fail_when_there
from tests.app.tasks import add, nothing
from tests.cluster.clusters import WAIT_SECONDS, running_cluster, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def test_failed_member_cancels_running_and_waiting_members(tmp_path: Path) -> None:
    """One member runs and one waits for a worker when another fails."""
    began = tmp_path / "began"
    members = [wait.si(str(began)), fail_when_there.si(str(began)), nothing.using(priority=-9).si()]
    workflow = chain(group(members, on_failure="stop", at_once=2), add.si(1, 2)).enqueue()
    with running_cluster(tmp_path) as cluster:
        wait_for(lambda: Job.objects.filter(status="CANCELLED").exists(), cluster.tail)
    found = get_workflow(workflow.id)
    states = {step.label.rpartition(".")[2]: step.state for step in found.steps() if step.job_id}
    assert found.status == "FAILED"
    assert states == {
        "wait": "CANCELLED",
        "fail_when_there": "FAILED",
        "nothing": "PENDING",
        "add": "PENDING",
    }


def test_cancelled_workflow_continues_after_a_retry(tmp_path: Path) -> None:
    began = tmp_path / "began"
    workflow = chain(wait_async.si(str(began)).optional(), add.si(1, 2), add.s(4)).enqueue()
    with running_cluster(tmp_path, CONCURRENCY=4) as cluster:
        wait_for(began.exists, cluster.tail)
        assert workflow.cancel("enough")
        wait_for(lambda: Job.objects.filter(status="CANCELLED").exists(), cluster.tail)
        assert workflow.retry() == 1  # the cancelled step is optional, so the next one begins
        assert workflow.wait(WAIT_SECONDS) == 7


def test_concurrent_workers_read_results_of_earlier_steps(tmp_path: Path) -> None:
    workflow = chain(add.s(1, 2), add.s(4), group(add.s(1), add.s(2))).enqueue()
    with running_cluster(tmp_path, CONCURRENCY=4):
        assert workflow.wait(WAIT_SECONDS) == [8, 9]
