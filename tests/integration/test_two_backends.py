"""Two backends with one database, but different queues and options: upkeep of a cluster of one
treats the rows of the other as its own backend says."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings as project
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker import DeadLetters, dead_letters, every, schedules
from stoker.brokers.adapters import ADAPTERS, broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.cluster.board import Board
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler.scheduler import History, Upkeep
from stoker.conf import settings_for
from stoker.dead_letters.sweep import DeadLetterSweep
from stoker.inspect.doctor.examination import examine
from stoker.jobs.backends import backends_with
from stoker.jobs.cancel import sweep_requests
from stoker.jobs.pruning import Pruning
from stoker.locks.sweep import Leftovers
from stoker.models import (
    Cancellation,
    Claimed,
    Cluster,
    DeadLetter,
    Deploy,
    Job,
    Ready,
    Sample,
    Tick,
)
from stoker.operations import bulk
from stoker.operations.dead_letters import REQUEUE
from stoker.operations.operation import Operator
from stoker.setting_values import LetterRetention, Retention

from tests.app import frail
from tests.app.tasks import add, nothing
from tests.integration.fronted import BACKEND
from tests.integration.work import work_off

AT_REPORTS: Any = {"backend": "reports", "queue_name": "reports"}
"""Options of tasks."""
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nothing_broken", "backends")]


@contextmanager
def two_backends(**own: Any) -> Iterator[None]:
    """Let the backend "default" have the queue "default", and "reports" the queue "reports".

    Args:
        own: further options of "reports".
    """
    options = project.TASKS["default"]["OPTIONS"]
    reports = {**options, "CLUSTER": "reports", "DEAD_LETTERS": DeadLetters("1h"), **own}
    tasks = {
        "default": {"BACKEND": BACKEND, "QUEUES": ["default"], "OPTIONS": options},
        "reports": {"BACKEND": BACKEND, "QUEUES": ["reports"], "OPTIONS": reports},
    }
    with override_settings(TASKS=tasks):
        yield


@pytest.fixture
def backends() -> Iterator[None]:
    with two_backends():
        yield


@contextmanager
def missing_driver() -> Iterator[None]:
    """Give "reports" a broker whose driver is not installed here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ADAPTERS, "mongodb", "stoker.brokers.not_installed.MongodbBroker")
        with two_backends(BROKER="mongodb://127.0.0.1/stoker"):
            yield


def dead_report() -> DeadLetter:
    frail.broken.add("the report")
    report = frail.charge.using(**AT_REPORTS).enqueue("the report")
    work_off(settings_for("reports"))
    return DeadLetter.objects.get(job_id=report.id)


def test_dead_letter_of_the_other_backend_is_requeued_there() -> None:
    letter = dead_report()
    assert letter.requeue_due_us is not None
    DeadLetter.objects.update(requeue_due_us=1)
    assert DeadLetterSweep(settings_for(), lambda: None).sweep() == 1
    assert Ready.objects.get().queue == "reports"
    frail.broken.clear()
    assert work_off(settings_for("reports")) == 1
    letter.refresh_from_db()
    assert letter.state == "resolved"


def test_dead_letter_that_no_backend_can_open_is_not_requeued() -> None:
    letter = dead_report()
    DeadLetter.objects.update(requeue_due_us=1, package=b"junk")
    assert DeadLetterSweep(settings_for(), lambda: None).sweep() == 0
    letter.refresh_from_db()
    assert (letter.state, letter.requeue_due_us) == ("open", None)


def test_due_dead_letter_stays_due_if_the_driver_of_its_broker_is_missing() -> None:
    """A cluster that has the driver requeues it."""
    letter = dead_report()
    DeadLetter.objects.update(requeue_due_us=1)
    with missing_driver():
        assert DeadLetterSweep(settings_for(), lambda: None).sweep() == 0
    letter.refresh_from_db()
    assert letter.requeue_due_us is not None
    DeadLetter.objects.update(requeue_due_us=1)
    assert DeadLetterSweep(settings_for("reports"), lambda: None).sweep() == 1


def test_dead_letters_without_driver_do_not_hold_up_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stoker.dead_letters.sweep.AT_ONCE", 1)
    dead_report()
    frail.broken.add("order 1")
    frail.charge.enqueue("order 1")
    work_off()
    DeadLetter.objects.filter(queue="reports").update(requeue_due_us=1)
    DeadLetter.objects.filter(queue="default").update(requeue_due_us=2)
    with missing_driver():
        settings = replace(settings_for(), dead_letters=settings_for("reports").dead_letters)
        assert DeadLetterSweep(settings, lambda: None).sweep() == 1
    assert Ready.objects.get().queue == "default"


def lose(backend: str) -> None:
    """Let a cluster of this backend claim its jobs, and die after it has handed them out."""
    broker, holder = broker_for(settings_for(backend)), uuid.uuid4()
    queues = settings_for(backend).queues
    claimed = broker.claim(ClaimRequest(10, holder, lease_seconds=60, queues=queues))
    broker.note_handed_out([one.lease for one in claimed])
    broker.lessors[0].expire_holder(holder)


def rescue() -> int:
    """Rescue jobs as a cluster of the backend "default" does."""
    upkeep = Upkeep(Plan(), settings_for(), broker_for(settings_for()), lambda: None)
    return upkeep.rescuing.rescue()


def test_lost_job_of_the_other_backend_ends_as_its_options_say() -> None:
    """The task has one attempt, and only its own backend can read that in the package."""
    report = frail.charge.using(**AT_REPORTS).enqueue("the report")
    lose("reports")
    assert rescue() == 1
    letter = DeadLetter.objects.get(job_id=report.id)
    assert letter.reason == "crash"
    assert letter.requeue_due_us is not None


def test_lost_job_whose_hooks_need_a_missing_driver_does_not_hold_up_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is recorded by a cluster that has the driver."""
    reports = frail.charge.using(**AT_REPORTS)
    hooked = reports.using(on_failure=nothing.using(**AT_REPORTS).si()).enqueue("report 1")
    plain, own = reports.enqueue("report 2"), frail.charge.enqueue("order 1")
    lose("reports")
    lose("default")
    with missing_driver():
        rescue()
    assert "rescue failed and will be retried: mongodb:// needs the package" in caplog.text
    recorded = DeadLetter.objects.values_list("job_id", flat=True)
    assert {*recorded} == {UUID(plain.id), UUID(own.id)}
    Claimed.objects.update(leased_until_us=0)
    assert rescue() == 1
    assert DeadLetter.objects.filter(job_id=hooked.id).exists()


@pytest.fixture
def hooked() -> UUID:
    """Enqueue a job of "reports" that has a hook."""
    hook = nothing.using(**AT_REPORTS).si()
    return UUID(add.using(on_finish=hook, **AT_REPORTS).enqueue(1, 2).id)


def hooks_called() -> int:
    return Ready.objects.filter(queue="reports").count()


def test_hook_of_a_waiting_job_that_upkeep_cancels_is_called(hooked: UUID) -> None:
    Cancellation.objects.ask(hooked, "no longer needed")
    assert sweep_requests(settings_for()) == 1
    assert Job.objects.get(pk=hooked).status == "CANCELLED"
    assert hooks_called() == 1


def test_hook_of_an_unstarted_job_of_a_dead_cluster_that_is_cancelled_is_called(
    hooked: UUID, tmp_path: Path
) -> None:
    plan = Plan()
    board = Board.create(tmp_path / "cluster.board", workers=1, slots=1)
    dead = Cluster.objects.create(
        id=uuid.uuid4(), name="dead", host=plan.host, pid=7, heartbeat_us=0,
        started_at=timezone.now(), info={"alias": "reports", "board": str(board.path)},
    )  # fmt: skip
    broker_for(settings_for("reports")).claim(ClaimRequest(1, dead.pk, lease_seconds=600))
    board.close()
    Cancellation.objects.ask(hooked, "no longer needed")
    upkeep = Upkeep(plan, plan.settings, broker_for(plan.settings), lambda: None)
    upkeep.rescuing.bury_clusters_of_this_host()
    assert Job.objects.get(pk=hooked).status == "CANCELLED"
    assert hooks_called() == 1


def test_request_that_needs_a_missing_driver_does_not_hold_up_others(hooked: UUID) -> None:
    own = UUID(add.enqueue(1, 2).id)
    Cancellation.objects.ask_all([hooked, own], "no longer needed")
    with missing_driver():
        assert sweep_requests(settings_for()) == 1
    assert Job.objects.get(pk=own).status == "CANCELLED"
    assert sweep_requests(settings_for()) == 1
    assert hooks_called() == 1


def test_dead_letters_are_kept_as_long_as_their_own_backend_says() -> None:
    report = dead_report()
    frail.broken.add("order 1")
    order = frail.charge.enqueue("order 1")
    work_off()
    for one in DeadLetter.objects.all():
        dead_letters.discard(one.pk)
    DeadLetter.objects.update(closed_at=timezone.now() - timedelta(days=2))
    plan = Plan(overrides=(("keep_dead_letters", LetterRetention(closed_seconds=60.0)),))
    assert str(order.id) != str(report.job_id)
    assert DeadLetterSweep(plan.settings, lambda: None).purge() == 1
    assert DeadLetter.objects.get() == report


@pytest.mark.parametrize(
    "keep", [Retention(60.0, None, 60.0), Retention(None, 0, None)], ids=["time", "number"]
)
def test_results_are_kept_as_long_as_their_own_backend_says(keep: Retention) -> None:
    kept = add.using(**AT_REPORTS).enqueue(1, 2)
    add.enqueue(1, 2)
    Ready.objects.all().delete()
    ended_at = timezone.now() - timedelta(days=2)
    Job.objects.update(status="SUCCESSFUL", finished_at=ended_at)
    plan = Plan(overrides=(("keep_results", keep),))
    assert Pruning(plan.settings, lambda: None).prune() == 1
    assert Job.objects.get().pk == UUID(kept.id)


def test_pruning_does_not_read_the_kept_rows_of_the_other_backend_for_each_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The index does not contain the queue, so each batch begins after the one before it."""
    monkeypatch.setattr("stoker.jobs.pruning.BATCH", 1)
    add.using(**AT_REPORTS).enqueue(1, 2)
    add.enqueue_many([((1, 2), {})] * 3)
    Ready.objects.all().delete()
    Job.objects.update(status="SUCCESSFUL", finished_at=timezone.now() - timedelta(days=2))
    plan = Plan(overrides=(("keep_results", Retention(60.0, None, 60.0)),))
    with CaptureQueriesContext(connection) as captured:
        assert Pruning(plan.settings, lambda: None).prune() == 3
    sent = [one["sql"] for one in captured if "'SUCCESSFUL'" in one["sql"]]
    first, *later = [sql for sql in sent if "IN ('default')" in sql]
    assert ">=" not in first
    assert len(later) == 3
    assert all(">=" in sql for sql in later)


def test_result_in_a_queue_of_no_backend_is_kept_as_long_as_any_backend_says() -> None:
    add.enqueue(1, 2)
    Ready.objects.all().delete()
    ended_at = timezone.now() - timedelta(days=2)
    Job.objects.update(status="SUCCESSFUL", finished_at=ended_at, queue="gone")
    plan = Plan(overrides=(("keep_results", Retention(60.0, None, 60.0)),))
    assert Pruning(plan.settings, lambda: None).prune() == 0
    Job.objects.update(finished_at=timezone.now() - timedelta(days=8))
    assert Pruning(plan.settings, lambda: None).prune() == 1


def test_bulk_operation_of_the_other_backend_goes_on() -> None:
    dead_report()
    settings = settings_for()
    upkeep = Upkeep(Plan(), settings, broker_for(settings), lambda: None)
    upkeep.run()
    row = bulk.start(Operator(settings_for("reports"), "alice"), REQUEUE, {})
    assert upkeep.go_on_in_bulk()
    row.refresh_from_db()
    assert (row.state, row.done) == ("done", 1)
    assert Ready.objects.get().queue == "reports"


def test_metrics_are_kept_as_long_as_one_backend_says() -> None:
    for days in (40, 20, 10):
        at = timezone.now() - timedelta(days=days)
        Sample.objects.create(start=int(at.timestamp()) // 3600 * 3600, seconds=3600)
        Deploy.objects.create(cluster="reports", at=at)
    plan = Plan(overrides=(("keep_metrics_seconds", 86400.0),))
    History(plan.settings, lambda: None).tidy()
    assert (Sample.objects.count(), Deploy.objects.count()) == (2, 2)


def test_ticks_are_kept_as_their_own_backend_says() -> None:
    when = every(hours=1, args=[1, 2], queue_name="reports")
    schedule = schedules.create("report", add, when, backend="reports")
    Tick.objects.bulk_create(
        Tick(schedule_id=schedule.pk, moment_us=number, outcome="fired", fired_us=number)
        for number in range(30)
    )
    plan = Plan(overrides=(("keep_ticks", 10),))
    assert Leftovers("default", lambda: None).forget_ticks(plan.settings) == 0
    (report,) = [one for one in backends_with(plan.settings) if one.alias == "reports"]
    assert Leftovers("default", lambda: None).forget_ticks(replace(report, keep_ticks=10)) == 20


def test_doctor_leaves_jobs_alone_that_a_broker_without_its_driver_may_have() -> None:
    add.using(**AT_REPORTS).enqueue(1, 2)
    Ready.objects.all().delete()
    with missing_driver():
        seen = examine(settings_for(), repair=True)
    assert (seen.findings, seen.not_checked) == ([], ["lost_jobs"])
    assert [one.name for one in examine(settings_for()).findings] == ["lost_jobs"]


def test_doctor_opens_packages_of_the_other_backend() -> None:
    add.enqueue(1, 2)
    report = add.using(**AT_REPORTS).enqueue(1, 2)
    assert [examine(settings_for(alias)).findings for alias in ("default", "reports")] == [[], []]
    Job.objects.filter(pk=report.id).update(package=b"junk")
    (found,) = examine(settings_for()).findings
    assert (found.name, found.ids) == ("unreadable_packages", [report.id])
