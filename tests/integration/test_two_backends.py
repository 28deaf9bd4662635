"""Two backends with one database, but different queues and options: upkeep of a cluster of one
treats the rows of the other as its own backend says."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from django.conf import settings as project
from django.test import override_settings
from django.utils import timezone

from stoker import DeadLetters, dead_letters, every, schedules
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler.upkeep import History, Upkeep
from stoker.conf import settings_for
from stoker.dead_letters.sweep import DeadLetterSweep
from stoker.jobs.backends import backends_with
from stoker.jobs.pruning import Pruning
from stoker.locks.sweep import Leftovers
from stoker.models import DeadLetter, Deploy, Job, Ready, Sample, Tick
from stoker.operations import bulk
from stoker.operations.dead_letters import REQUEUE
from stoker.operations.operation import Operator
from stoker.setting_values import LetterRetention, Retention

from tests.app import frail
from tests.app.tasks import add
from tests.integration.fronted import BACKEND
from tests.integration.work import work_off

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nothing_broken", "backends")]


@pytest.fixture
def backends() -> Iterator[None]:
    """Let the backend "default" have the queue "default", and "reports" the queue "reports"."""
    options = project.TASKS["default"]["OPTIONS"]
    own = {"CLUSTER": "reports", "DEAD_LETTERS": DeadLetters("1h")}
    tasks = {
        "default": {"BACKEND": BACKEND, "QUEUES": ["default"], "OPTIONS": options},
        "reports": {"BACKEND": BACKEND, "QUEUES": ["reports"], "OPTIONS": {**options, **own}},
    }
    with override_settings(TASKS=tasks):
        yield


def dead_report() -> DeadLetter:
    frail.broken.add("the report")
    report = frail.charge.using(backend="reports", queue_name="reports").enqueue("the report")
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


def test_lost_job_of_the_other_backend_ends_as_its_options_say() -> None:
    """The task has one attempt, and only its own backend can read that in the package."""
    broker, holder = broker_for(settings_for("reports")), uuid.uuid4()
    report = frail.charge.using(backend="reports", queue_name="reports").enqueue("the report")
    (delivery,) = broker.claim(ClaimRequest(1, holder=holder, lease_seconds=60))
    broker.note_handed_out([delivery.lease])
    broker.lessors[0].expire_holder(holder)
    upkeep = Upkeep(Plan(), settings_for(), broker_for(settings_for()), lambda: None)
    assert upkeep.rescuing.rescue() == 1
    letter = DeadLetter.objects.get(job_id=report.id)
    assert letter.reason == "crash"
    assert letter.requeue_due_us is not None


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
    kept = add.using(backend="reports", queue_name="reports").enqueue(1, 2)
    add.enqueue(1, 2)
    Ready.objects.all().delete()
    ended_at = timezone.now() - timedelta(days=2)
    Job.objects.update(status="SUCCESSFUL", finished_at=ended_at)
    plan = Plan(overrides=(("keep_results", keep),))
    assert Pruning(plan.settings, lambda: None).prune() == 1
    assert Job.objects.get().pk == UUID(kept.id)


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
