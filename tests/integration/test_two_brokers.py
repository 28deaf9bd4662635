"""Two backends with one database, but different brokers: a cluster of one does not know the jobs at
the broker of the other."""

import socket
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.test import override_settings
from django.utils import timezone

from stoker import chain
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.brokers.dispatch import Dispatch
from stoker.cluster.board import Board
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler.scheduler import Upkeep
from stoker.conf import Retention, settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.inspect.doctor.examination import examine
from stoker.jobs.cancel import sweep_requests
from stoker.models import Cancellation, Cluster, Job, Ready, Step, Workflow
from stoker.store.written import DatabaseNow
from stoker.workflows.sweep import WorkflowSweep

from tests.app import frail
from tests.app.tasks import add
from tests.integration.fronted import BACKEND, empty_and_close, fronted_broker, holder_of, outside
from tests.integration.work import work_off
from tests.workflows.tasks import note

pytestmark = [
    pytest.mark.redis,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nothing_broken"),
]


@pytest.fixture
def redis() -> Iterator[Dispatch]:
    """Add a backend in the database to one at Redis; return the dispatch of the latter."""
    with fronted_broker() as made:
        options = {"BROKER": "orm://default", "CLUSTER": made.settings.cluster}
        other = {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}
        with override_settings(TASKS={**settings.TASKS, "database": other}):
            yield made


@pytest.fixture
def second(redis: Dispatch) -> Iterator[Dispatch]:
    """Add a backend at the same Redis, but with another CLUSTER."""
    options = {"BROKER": redis.settings.broker, "CLUSTER": f"{redis.settings.cluster}-second"}
    other = {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}
    with override_settings(TASKS={"default": settings.TASKS["default"], "second": other}):
        made = broker_for(settings_for("second"))
        yield made
        empty_and_close(made)


def upkeep_of(alias: str) -> Upkeep:
    plan = Plan(alias=alias)
    return Upkeep(plan, plan.settings, broker_for(plan.settings), lambda: None)


def test_jobs_are_rescued_from_a_broker_that_the_holder_of_the_upkeep_lease_does_not_know(
    redis: Dispatch,
) -> None:
    result = add.enqueue(1, 2)
    (lost,) = redis.claim(ClaimRequest(1, holder=uuid.uuid4(), lease_seconds=60))
    redis.expire_holder(holder_of(redis, lost.job_id))
    first, second, third = upkeep_of("database"), upkeep_of("default"), upkeep_of("default")
    first.run()
    assert redis.states([lost.job_id])[lost.job_id] == "running"
    second.run()
    assert redis.states([lost.job_id])[lost.job_id] == "deferred", "it is retried"
    assert not third._take_lease_of_broker(), "one cluster does so"
    second.leave()
    assert third._take_lease_of_broker()
    result.refresh()
    assert result.attempts == 1


def test_jobs_of_another_cluster_name_at_the_same_broker_are_rescued(second: Dispatch) -> None:
    add.using(backend="second").enqueue(1, 2)
    (lost,) = second.claim(ClaimRequest(1, holder=uuid.uuid4(), lease_seconds=60))
    second.expire_holder(holder_of(second, lost.job_id))
    upkeep_of("default").run()
    upkeep_of("second").run()
    assert second.states([lost.job_id])[lost.job_id] == "deferred", "it is retried"


def test_request_to_cancel_a_job_at_the_other_broker_is_kept(redis: Dispatch) -> None:
    job_id = UUID(add.enqueue(1, 2).id)
    redis.claim(ClaimRequest(1, holder=uuid.uuid4(), lease_seconds=60))
    stored = UUID(add.using(backend="database").enqueue(1, 2).id)
    Cancellation.objects.ask_all([job_id, stored, gone := uuid.uuid4()], "no longer needed")
    sweep_requests(settings_for("database"))
    assert set(Cancellation.objects.reasons_of([job_id, stored, gone])) == {job_id}
    assert Job.objects.get(pk=stored).status == Job.Status.CANCELLED


def test_requests_are_finished_while_the_other_broker_is_away(
    redis: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = UUID(add.enqueue(1, 2).id)
    stored = UUID(add.using(backend="database").enqueue(1, 2).id)
    Cancellation.objects.ask_all([job_id, stored], "no longer needed")
    monkeypatch.setattr(redis.broker, "states", _away)
    sweep_requests(settings_for("database"))
    assert set(Cancellation.objects.reasons_of([job_id, stored])) == {job_id}


def test_hook_of_a_cancelled_job_goes_to_the_broker_of_its_own_backend(redis: Dispatch) -> None:
    queues = {"default": ["default"], "database": ["reports"]}
    tasks = {alias: {**settings.TASKS[alias], "QUEUES": own} for alias, own in queues.items()}
    with override_settings(TASKS=tasks):
        reports: Any = {"backend": "database", "queue_name": "reports"}
        hook = note.using(**reports).si("told")
        job_id = UUID(add.using(on_finish=hook, **reports).enqueue(1, 2).id)
        Cancellation.objects.ask(job_id, "no longer needed")
        upkeep_of("default").run()
    assert Job.objects.get(pk=job_id).status == Job.Status.CANCELLED
    assert Ready.objects.get().queue == "reports"
    assert outside(redis) == 0


def _away(_job_ids: object) -> None:
    raise BrokerUnavailable("Redis is away.")


def test_board_of_a_cluster_of_the_other_broker_is_left_to_that_broker(
    redis: Dispatch, tmp_path: Path
) -> None:
    """Only a cluster that knows the broker can release its jobs there uncounted."""
    add.enqueue(1, 2)
    dead = Cluster.objects.create(
        id=uuid.uuid4(),
        name=redis.settings.cluster,
        host=socket.gethostname(),
        pid=1,
        started_at=timezone.now(),
        heartbeat_us=DatabaseNow(),
        info={"alias": "default", "board": str(tmp_path / "board")},
    )
    (lease,) = redis.claim(ClaimRequest(1, holder=dead.pk, lease_seconds=60))
    board = Board.create(tmp_path / "board", workers=1, slots=1)
    board.close()
    assert upkeep_of("database").rescuing.bury_clusters_of_this_host() == 0
    assert upkeep_of("default").rescuing.bury_clusters_of_this_host() == 1
    assert redis.states([lease.job_id])[lease.job_id] == "ready"


def test_result_of_a_job_that_the_other_broker_leases_is_kept(redis: Dispatch) -> None:
    """The row says that the job must not run again after its lease has ended."""
    add.enqueue(1, 2)
    (leased,) = redis.claim(ClaimRequest(1, holder=uuid.uuid4(), lease_seconds=60))
    job_ids = [
        UUID(one.id) for one in add.using(backend="database").enqueue_many([((1, 2), {})] * 3)
    ]
    broker_for(settings_for("database")).withdraw(job_ids)
    Job.objects.filter(pk=job_ids[1]).update(id=leased.job_id)
    ended = {"status": "SUCCESSFUL", "finished_at": timezone.now() - timedelta(days=8)}
    Job.objects.update(**ended)
    assert upkeep_of("database").prune() == 2
    assert set(Job.objects.values_list("pk", flat=True)) == {leased.job_id}


def test_workflow_goes_on_while_its_jobs_wait_at_the_other_broker(redis: Dispatch) -> None:
    workflow = chain(note.si("a"), note.si("b")).enqueue()
    upkeep_of("database").run()
    workflow.refresh()
    assert workflow.status == "RUNNING"
    found = {one.name for one in examine(settings_for("database")).findings}
    assert "steps_left_behind" not in found


def test_doctor_leaves_jobs_at_the_other_broker_alone(redis: Dispatch) -> None:
    """A job that failed has a row, but is at its broker until the next attempt."""
    frail.broken.add("the report")
    job_id = UUID(frail.insist.enqueue("the report").id)
    assert work_off() == 1
    assert Job.objects.unended([job_id])
    report = examine(settings_for("database"), repair=True)
    assert (report.findings, report.not_checked) == ([], ["lost_jobs"])
    assert not Ready.objects.exists()
    assert redis.states([job_id]) == {job_id: "deferred"}


def test_workflow_of_the_other_backend_continues_after_its_job_was_deleted(
    redis: Dispatch,
) -> None:
    first = note.using(backend="database")
    workflow = chain(first.si("a").optional(), first.si("b")).enqueue()
    Ready.objects.all().delete()
    Job.objects.all().delete()
    upkeep_of("default").run()
    workflow.refresh()
    assert (workflow.progress().cancelled, workflow.progress().enqueued) == (1, 1)
    assert Ready.objects.count() == 1, "the next step waits where its backend looks for it"


def test_workflows_are_kept_as_long_as_their_own_backend_says(redis: Dispatch) -> None:
    kept = note.using(backend="database")
    workflows = [chain(one.si("a")).enqueue() for one in (note, kept)]
    ended_at = timezone.now() - timedelta(days=2)
    Workflow.objects.update(state="SUCCESSFUL", finished_at=ended_at)
    Step.objects.update(state="SUCCESSFUL")
    plan = Plan(overrides=(("keep_results", Retention(60.0, None, 60.0, None)),))
    sweep = WorkflowSweep(plan.settings, lambda: None)
    assert sweep.prune() == 1
    assert [str(one) for one in Workflow.objects.values_list("pk", flat=True)] == [workflows[1].id]
