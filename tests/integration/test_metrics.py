"""The history of metrics on the real database: counted, folded, read, deleted."""

import time
import uuid
from collections import Counter
from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery
from stoker.cluster.scheduler.scheduler import History
from stoker.conf import Settings, settings_for
from stoker.jobs.faults import Fault
from stoker.jobs.outcomes import (
    Attempted,
    Batch,
    Cancelled,
    Crashed,
    Failed,
    Outcome,
    Retried,
    Snoozed,
    Succeeded,
    Tallies,
)
from stoker.jobs.package import sealer_for
from stoker.jobs.record import finish
from stoker.metrics import Figures, by_queue, by_task, finest_step, history, totals
from stoker.models import Deploy, Job, Sample, Tally
from stoker.models.metrics import FINEST_SECONDS, FOLDS, Sums, TaskInQueue, fold_oldest
from stoker.reporters import prometheus

from tests.app import tasks

pytestmark = pytest.mark.django_db

FAULT = Fault("builtins.ValueError", "no", "Traceback ...", "shop.tasks:send")
DAY = 86400


@pytest.fixture
def settings() -> Settings:
    return settings_for()


@pytest.fixture
def now() -> float:
    return time.time()


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def claim(count: int) -> list[Delivery]:
    broker = broker_for(settings_for())
    return broker.claim(ClaimRequest(count, holder=uuid.uuid4(), lease_seconds=60))


def done() -> Outcome:
    return Succeeded(sealer_for(settings_for()).seal_value(None))


def attempted(one: Delivery, outcome: Outcome, *, waited: float, ran: float) -> Attempted:
    """Return the outcome of one attempt of ``nothing``, as its worker reports it."""
    enqueued_at = time.time() - waited - ran
    started_at = enqueued_at + waited
    task = tasks.nothing.module_path
    times = {"task": task, "enqueued_at": enqueued_at}
    return Attempted(one, outcome, "me", started_at, started_at + ran, **times)


def counts(figures: Figures) -> tuple[int, int, int, int]:
    return figures.successful, figures.failed, figures.cancelled, figures.retried


def written(start: float, seconds: int = FINEST_SECONDS, **numbers: Any) -> None:
    """Write one row of the queue `mail`."""
    sums = Sums(**numbers, run_classes=Counter({40: numbers.get("successful", 0)}))
    place = TaskInQueue("mail", "shop.tasks.send")
    Tally.objects.bulk_create(Tally.objects.rows_of(int(start), seconds, {place: sums}))


# -- counted --------------------------------------------------------------------------------------


def test_recorded_outcomes_are_counted_once(settings: Settings, now: float) -> None:
    outcomes = [done(), done(), Failed(FAULT), Cancelled("no"), Retried(FAULT, 5), Snoozed(5)]
    tasks.nothing.enqueue_many([((), {})] * len(outcomes))
    tallies = Tallies(settings)
    ends = [
        attempted(one, outcome, waited=2.0, ran=0.5)
        for one, outcome in zip(claim(10), outcomes, strict=True)
    ]
    assert not finish(settings, broker_for(settings), ends, tallies=tallies)
    tallies.write()
    tallies.write()  # once
    (task,) = by_task(settings, moment(now - 60), moment(now + 60))
    assert task.task == tasks.nothing.module_path
    assert counts(task.figures) == (2, 1, 1, 1)
    assert (task.figures.finished, task.figures.failure_rate) == (4, pytest.approx(1 / 3))
    assert task.figures.run.count == task.figures.wait.count == 5, "without the snoozed one"
    assert task.figures.run.mean == pytest.approx(0.5)
    assert task.figures.run.p95 == pytest.approx(0.5, rel=0.2)
    assert task.figures.wait.p50 == pytest.approx(2.0, rel=0.2)


def test_outcome_with_lost_lease_is_not_counted(settings: Settings, now: float) -> None:
    tasks.nothing.enqueue()
    (delivery,) = claim(1)
    tallies = Tallies(settings)
    stranger = delivery._replace(lease_id=1)
    end = attempted(stranger, done(), waited=0, ran=0)
    assert finish(settings, broker_for(settings), [end], tallies=tallies)
    tallies.write()
    assert by_task(settings, moment(now - 60), moment(now + 60)) == ()


def test_wait_of_deferred_job_counts_from_run_after(settings: Settings, now: float) -> None:
    """The time before run_after is not waiting time."""
    tasks.nothing.using(run_after=moment(now - 100)).enqueue()
    (delivery,) = claim(1)
    assert delivery.run_after == pytest.approx(now - 100, abs=0.001)
    tallies = Tallies(settings)
    end = Attempted(delivery, done(), "me", now, now, task="a.b", enqueued_at=now - 5000)
    finish(settings, broker_for(settings), [end], tallies=tallies)
    tallies.write()
    (task,) = by_task(settings, moment(now - 60), moment(now + 60))
    assert task.figures.wait.mean == pytest.approx(100, abs=0.1)


def test_crash_is_counted_for_its_task(settings: Settings, now: float) -> None:
    tasks.nothing.enqueue()
    tallies = Tallies(settings)
    end = Attempted(claim(1)[0], Crashed("killed", None, 9), "", now - 3, now)
    finish(settings, broker_for(settings), [end], tallies=tallies)
    tallies.write()
    (task,) = by_task(settings, moment(now - 60), moment(now + 60))
    assert (task.task, counts(task.figures)) == (tasks.nothing.module_path, (0, 0, 0, 1))
    assert task.figures.run.mean == pytest.approx(3)


def test_metrics_can_be_switched_off(now: float) -> None:
    settings = Settings(keep_metrics_seconds=0)
    tallies = Tallies(settings)
    tallies.add(Batch.of([]))
    tasks.nothing.enqueue()
    tallies.add(Batch.of([attempted(claim(1)[0], done(), waited=0, ran=0)]))
    assert not tallies.are_due
    tallies.write()
    upkeep = History(settings, lambda: None)
    upkeep.note_backlogs()
    upkeep.tidy()
    assert not Tally.objects.exists()
    assert not Sample.objects.exists()


# -- read -----------------------------------------------------------------------------------------


def test_history_has_a_point_for_each_step(settings: Settings, now: float) -> None:
    start = int(now) // 60 * 60 - 240
    written(start, successful=3)
    written(start + 10, successful=2, failed=1)
    written(start + 130, successful=4)
    points = history(settings, moment(start), moment(start + 239), 60)
    assert [point.start for point in points] == [moment(start + 60 * n) for n in range(4)]
    assert [counts(point.figures)[:2] for point in points] == [(5, 1), (0, 0), (4, 0), (0, 0)]
    assert points[0].per_second == pytest.approx(0.1)
    whole = history(settings, moment(start), moment(start + 239), 240, queue="mail")
    assert sum(point.figures.successful for point in whole) == 9
    other = history(settings, moment(start), moment(start + 239), 60, task="shop.tasks.other")
    assert sum(point.figures.finished for point in other) == 0


def test_older_periods_have_longer_steps(settings: Settings, now: float) -> None:
    ages = (60, 3600, DAY, 7 * DAY)
    assert [finest_step(moment(now - age)) for age in ages] == [10, 60, 600, 3600]
    points = history(settings, moment(now - 7 * DAY), moment(now), 5000)
    assert {point.seconds for point in points} == {3600}


def test_backlogs_are_sampled_once_a_minute_by_queue(
    settings: Settings, now: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "stoker.cluster.scheduler.scheduler.time", SimpleNamespace(time=lambda: now)
    )
    tasks.nothing.enqueue_many([((), {})] * 3)
    tasks.nothing.using(queue_name="mail", run_after=60).enqueue()
    upkeep = History(settings, lambda: None)
    upkeep.note_backlogs()
    upkeep.note_backlogs()
    assert Sample.objects.count() == 2, "one look a minute"
    queues = {one.queue: one.backlog for one in by_queue(settings, moment(now), moment(now + 60))}
    assert queues["default"] is not None
    assert (queues["default"].ready, queues["default"].deferred) == (3, 0)
    assert queues["default"].oldest_ready_seconds is not None
    assert queues["mail"] is not None
    assert (queues["mail"].ready, queues["mail"].deferred) == (0, 1)
    *_, point = history(settings, moment(now - 60), moment(now), 60)
    assert point.backlog is not None
    assert (point.backlog.ready, point.backlog.deferred) == (3, 1), "those of all queues"


def test_backlog_of_a_step_is_its_highest_sample(settings: Settings, now: float) -> None:
    start = int(now) // 600 * 600
    for number, (ready, age) in enumerate([(5, 1.0), (90, 2.0), (7, None)]):
        at = start + 60 * number
        Sample.objects.create(
            start=at, seconds=60, queue="mail", ready=ready, oldest_ready_seconds=age
        )
    (one,) = by_queue(settings, moment(start), moment(start + 600))
    assert one.backlog is not None
    assert (one.backlog.ready, one.backlog.oldest_ready_seconds) == (90, 2.0)


# -- folded and deleted ---------------------------------------------------------------------------


def test_old_rows_are_folded_without_changing_the_figures(settings: Settings, now: float) -> None:
    begin = int(now) // 3600 * 3600 - 3 * DAY
    for number in range(360):
        written(begin + 10 * number, successful=2, run_seconds=0.2)
    for number in range(60):
        Sample.objects.create(start=begin + 60 * number, seconds=60, queue="mail", ready=number)
    before = by_task(settings, moment(begin), moment(begin + 3600))
    beats: list[None] = []
    History(settings, lambda: beats.append(None)).tidy()
    assert [row.seconds for row in Tally.objects.all()] == [3600]
    assert Sample.objects.exclude(seconds=60).get().ready == 59
    after = by_task(settings, moment(begin), moment(begin + 3600))
    assert [one.figures.run.mean for one in after] == [pytest.approx(0.1)]
    assert after[0].figures.run.p95 == before[0].figures.run.p95
    assert counts(after[0].figures) == counts(before[0].figures) == (720, 0, 0, 0)
    assert len(beats) > 60, "a heartbeat with each step"


def test_late_rows_are_added_to_the_folded_row(settings: Settings, now: float) -> None:
    begin = int(now) // 60 * 60 - 3600
    for number in (1, 2):
        written(begin, successful=number)
        assert fold_oldest(Tally.objects.all(), FOLDS[0], now)
        assert not fold_oldest(Tally.objects.all(), FOLDS[0], now)
    (one,) = by_task(settings, moment(begin), moment(begin + 60))
    assert one.figures.successful == 3


def test_rows_past_retention_are_deleted(now: float) -> None:
    written(now - 31 * DAY, 3600, successful=1)
    written(now - 29 * DAY, 3600, successful=1)
    Sample.objects.create(start=int(now) - 31 * DAY, seconds=3600, queue="mail")
    History(settings_for(), lambda: None).tidy()
    assert Tally.objects.filter(seconds=3600).count() == 1
    assert not Sample.objects.exclude(seconds=60).exists()


def test_totals_never_decrease(settings: Settings, now: float) -> None:
    """Rows are folded, deleted and added in between."""
    for age in range(29, 34):
        written(now - age * DAY, 3600, successful=1, run_seconds=0.5)
    for _ in range(3):
        written(now - 5000, successful=2, failed=1)
        before = totals(settings)
        History(settings, lambda: None).tidy()
        assert totals(settings) == before
        written(now - 40 * DAY, 3600, successful=1)
    History(settings, lambda: None).tidy()
    (total,) = totals(settings)
    assert (total.queue, total.task) == ("mail", "shop.tasks.send")
    assert (total.successful, total.failed, total.run_seconds) == (14, 3, pytest.approx(2.5))
    assert Tally.objects.filter(seconds=0).count() == 1
    days = by_task(settings, moment(now - 60 * DAY), moment(now))
    assert days[0].figures.successful == 7, "the history leaves out rows past retention"


def test_exported_seconds_never_decrease(settings: Settings, now: float, seed: int) -> None:
    """A sum of floats depends on their order, and a fold changes the order."""
    random = Random(seed)
    exported = 0.0, 0.0
    for age in range(29, 49):
        for second in range(5):
            run, wait = (random.random() * 10 ** random.randint(-7, 3) for _ in range(2))
            start = now - age * DAY + second
            written(start, 3600, successful=1, run_seconds=run, wait_seconds=wait)
            written(now - 5000 - second, successful=1, run_seconds=run / 3, wait_seconds=wait / 7)
        samples = {name: value for name, _, value in prometheus._counted(settings)}
        before, exported = exported, (samples["stoker_run_seconds"], samples["stoker_wait_seconds"])
        assert all(new >= old for new, old in zip(exported, before, strict=True))
        History(settings, lambda: None).tidy()
        samples = {name: value for name, _, value in prometheus._counted(settings)}
        assert (samples["stoker_run_seconds"], samples["stoker_wait_seconds"]) == exported


def test_outcome_without_job_row_is_counted(settings: Settings, now: float) -> None:
    """The row is deleted, as if results were not kept."""
    tasks.nothing.enqueue()
    tallies = Tallies(settings)
    end = Attempted(claim(1)[0], done(), "me", now, now)
    Job.objects.all().delete()
    finish(settings, broker_for(settings), [end], tallies=tallies)
    tallies.write()
    (one,) = by_task(settings, moment(now - 60), moment(now + 60))
    assert (one.task, one.figures.successful) == ("", 1)


# -- deploys --------------------------------------------------------------------------------------


def test_start_with_other_code_is_a_deploy(settings: Settings) -> None:
    deploys = Deploy.objects.all()
    for host, digest in (("a", "old"), ("b", "old"), ("a", "new"), ("b", "old"), ("b", "new")):
        deploys.note(settings.cluster, host, digest)
    deploys.note("another", "c", "new")
    hosts = [one.host for one in deploys.of(settings.cluster, moment(0))]
    assert hosts == ["a", "a", "b", "b"]


def test_old_deploys_are_deleted_but_for_the_newest(settings: Settings) -> None:
    deploys = Deploy.objects.all()
    for digest in ("one", "two"):
        deploys.note(settings.cluster, "a", digest)
    deploys.update(at=moment(0))
    History(settings, lambda: None).tidy()
    assert [one.digest for one in deploys] == ["two"]
    deploys.note(settings.cluster, "a", "two")
    assert deploys.count() == 1, "the code is the same"


def test_deploys_are_not_noted_without_metrics() -> None:
    History(Settings(keep_metrics_seconds=0), lambda: None).note_deploy("a")
    assert not Deploy.objects.exists()
    History(Settings(), lambda: None).note_deploy("a")
    assert Deploy.objects.get().host == "a"
