"""``manage.py stoker bulk``, and clusters that continue bulk operations."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from stoker import group
from stoker.conf import settings_for
from stoker.models import BulkItem, BulkOperation, DeadLetter, Job, Ready, Requeue, Step
from stoker.operations import bulk, steps, waiting_jobs
from stoker.operations.dead_letters import REQUEUE
from stoker.operations.operation import Operator
from stoker.testing import drain

from tests.app import frail, payments
from tests.cluster.clusters import running_cluster, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def plain(*arguments: str) -> Any:
    output = StringIO()
    call_command("stoker", "bulk", *arguments, "--json", stdout=output, no_color=True)
    return json.loads(output.getvalue())


def test_command_starts_waits_lists_and_undoes() -> None:
    for number in range(3):
        payments.plain.enqueue(number, note="alice")
    move = ("start", "move-job", "--search", "note=alice", "--to", "slow")
    assert plain(*move, "--dry-run")["matched"] == 3
    assert not BulkOperation.objects.exists()
    row = plain(*move, "--wait", "--by", "alice")
    assert (row["state"], row["done"], row["by"]) == ("done", 3, "alice")
    assert plain("list")["operations"][0]["id"] == row["id"]
    assert plain("undo", row["id"])["is_done"]
    assert Job.objects.filter(queue="slow").count() == 3, "a cluster goes on with the undo"
    output = StringIO()
    call_command("stoker", "bulk", "show", row["id"], stdout=output, no_color=True)
    assert "3 of 3 jobs moved." in output.getvalue()
    with pytest.raises(CommandError, match="Give at least one filter, or --all"):
        plain("start", "hold-job")
    with pytest.raises(CommandError, match="Give at least one filter, or --all"):
        plain("start", "cancel-job", "--search", " ")
    with pytest.raises(CommandError, match="cancel-job does not support the filter 'reason'"):
        plain("start", "cancel-job", "--reason", "ordered twice")
    with pytest.raises(CommandError, match="a priority"):
        plain("start", "prioritise-job", "--all")
    with pytest.raises(CommandError, match="Write the new start time") as refused:
        plain("start", "reschedule-job", "--all")
    assert refused.value.returncode == 2


def test_command_that_waits_exits_with_1_unless_all_targets_are_changed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, mended = frail.charge.enqueue("broken"), frail.charge.enqueue("mended")
    frail.broken.update(["broken", "mended"])
    drain()
    frail.broken.clear()
    assert {broken.status, mended.status} != {"SUCCESSFUL"}
    start = ("stoker", "bulk", "start", "requeue-letter", "--all", "--wait")
    with pytest.raises(SystemExit) as refused:
        call_command(*start, "--arguments", '{"colour": "red"}')
    assert refused.value.code == 1
    assert "0 of 2 dead letters requeued. 2 not; the first: " in capsys.readouterr().out
    call_command(*start)
    assert "2 of 2 dead letters requeued." in capsys.readouterr().out
    call_command(*start)
    assert "0 of 0 dead letters requeued." in capsys.readouterr().out
    payments.plain.enqueue(1)

    def stopped(operator: Operator, row: BulkOperation) -> BulkOperation:
        assert bulk.STOP.attempt(operator, str(row.pk)).is_good
        return bulk.get(operator.settings, row.pk)

    monkeypatch.setattr(bulk, "finish", stopped)
    with pytest.raises(SystemExit) as stop:
        call_command("stoker", "bulk", "start", "hold-job", "--all", "--wait")
    assert stop.value.code == 1


def test_cluster_continues_an_unfinished_operation(tmp_path: Path) -> None:
    for number in range(250):
        payments.plain.using(queue_name="elsewhere").enqueue(number)
    row = bulk.start(Operator(settings_for()), waiting_jobs.MOVE, {}, {"queue": "slow"})
    with running_cluster(tmp_path, "--queues", "mail"):
        wait_for(lambda: bulk.get(settings_for(), row.pk).state == "done")
    assert Ready.objects.filter(queue="slow").count() == 250


def test_killed_scheduler_leaves_each_dead_letter_requeued_once(tmp_path: Path) -> None:
    """Four batches of 100 letters. Their jobs wait in a queue that no cluster serves."""
    frail.broken.add("order")
    frail.charge.enqueue_many([(("order",), {})] * 400)
    drain()
    frail.broken.clear()
    assert DeadLetter.objects.count() == 400
    DeadLetter.objects.update(queue="elsewhere")
    row = bulk.start(Operator(settings_for()), REQUEUE, {"task": frail.charge.module_path})

    def done() -> int:
        return bulk.get(settings_for(), row.pk).done

    with running_cluster(tmp_path, "--queues", "mail") as cluster:
        for kills in range(3):
            before = done()
            wait_for(lambda before=before: done() > before or done() == 400)
            cluster.kill("scheduler", kills)
        wait_for(lambda: bulk.get(settings_for(), row.pk).state == "done")
    assert Requeue.objects.count() == BulkItem.objects.count() == done() == 400
    assert Ready.objects.filter(queue="elsewhere").count() == 400


@pytest.mark.slow
def test_killed_scheduler_leaves_each_step_of_a_workflow_retried_once(tmp_path: Path) -> None:
    """Ten batches of 100 steps. No cluster serves the queue of their jobs."""
    task = payments.plain.using(queue_name="elsewhere")
    workflow = group(task.si(number) for number in range(1000)).enqueue()
    workflow.cancel()
    assert Job.objects.filter(status="CANCELLED").count() == 1000
    row = bulk.start(Operator(settings_for()), steps.RETRY, {"workflow": workflow.id})

    def done() -> int:
        return bulk.get(settings_for(), row.pk).done

    with running_cluster(tmp_path, "--queues", "mail") as cluster:
        for kills in range(3):
            before = done()
            wait_for(lambda before=before: done() > before or done() == 1000)
            cluster.kill("scheduler", kills)
        wait_for(lambda: bulk.get(settings_for(), row.pk).state == "done")
    assert BulkItem.objects.count() == done() == 1000
    waiting = set(Ready.objects.filter(queue="elsewhere").values_list("pk", flat=True))
    again = Step.objects.filter(workflow_id=workflow.id, kind="task", state="ENQUEUED")
    assert set(again.values_list("job_id", flat=True)) == waiting
    assert len(waiting) == 1000
    assert Job.objects.count() == 2000
