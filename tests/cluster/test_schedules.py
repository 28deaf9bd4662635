"""Schedules that a real cluster fires."""

from itertools import pairwise
from pathlib import Path

import pytest
from django.db.models import F

from stoker import every, schedules
from stoker.conf import settings_for
from stoker.models import Schedule, Tick
from stoker.models.clock import database_now_us
from stoker.package import Package, sealer_for

from tests.app.models import Ledger
from tests.app.tasks import nothing, write_ledger
from tests.cluster.clusters import running_cluster, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

EVERY_SECOND = every(seconds=1)


def test_one_unreadable_schedule_among_100(tmp_path: Path) -> None:
    for number in range(99):
        schedules.create(f"schedule {number}", nothing, EVERY_SECOND)
    schedules.create("unreadable", nothing, EVERY_SECOND)
    unreadable = Schedule.objects.filter(name="unreadable")
    unreadable.update(package=b"rubbish")
    schedules.create("of no rule", nothing, EVERY_SECOND)
    Schedule.objects.filter(name="of no rule").update(unit="eons")
    with running_cluster(tmp_path) as cluster:
        wait_for(lambda: Schedule.objects.filter(fired_count__gte=2).count() == 99, cluster.tail)
        wait_for(lambda: Schedule.objects.filter(is_paused=True).count() == 2, cluster.tail)
        row = unreadable.get()
        assert row.paused_by == "stoker"
        assert (
            "There is no package here" in row.paused_because
            or "not a package" in row.paused_because
        )
        row = schedules.get("of no rule")
        assert "'eons' is no unit" in row.paused_because
        assert not cluster.complaints()


def test_a_cluster_that_fires_none(tmp_path: Path) -> None:
    schedules.create("seconds", nothing, EVERY_SECOND)
    with running_cluster(tmp_path, SCHEDULER=False) as idle:
        idle.wait_for_crew()
        with running_cluster(tmp_path, WORKERS=1) as cluster:
            wait_for(lambda: Tick.objects.count() >= 1, cluster.tail)
        schedules.pause("seconds")
        count = Tick.objects.count()
        schedules.resume("seconds")
        result = nothing.enqueue()
        wait_for(lambda: schedules.get("seconds").due_us < database_now_us("default"))
        wait_for(lambda: nothing.get_result(result.id).is_finished, idle.tail)
        assert Tick.objects.count() == count


def test_a_cluster_stops_though_ticks_are_late(tmp_path: Path) -> None:
    """A year of seconds is to be caught up with, of more schedules than are fired at a look."""
    rule = every(seconds=1, misfire="all", misfire_cap=1000)
    for number in range(60):
        schedules.create(f"schedule {number}", nothing, rule)
    late_us = F("due_us") - 365 * 86_400_000_000
    Schedule.objects.update(due_us=late_us, moment_us=late_us)
    with running_cluster(tmp_path) as cluster:
        wait_for(lambda: Tick.objects.filter(outcome="fired").count() > 100, cluster.tail)
        assert cluster.stop() == 0
        assert not cluster.complaints()
    assert Tick.objects.count() < 60 * 1000 / 2, "it went on to catch up"


def test_an_unknown_task_has_its_grace(tmp_path: Path) -> None:
    """Another cluster may know it, as in a rolling deploy."""
    schedules.create("unknown", nothing, EVERY_SECOND)
    row = schedules.get("unknown")
    package = Package(row.pk, "shop.tasks.nowhere", (), {}, "", 0, 0.0)
    sealed = sealer_for(settings_for("default")).seal(package)
    Schedule.objects.update(package=sealed)
    with running_cluster(tmp_path, UNKNOWN_TASK_GRACE_SECONDS=3600) as cluster:
        wait_for(lambda: schedules.get("unknown").problem, cluster.tail)
        assert not schedules.get("unknown").is_paused
    with running_cluster(tmp_path, UNKNOWN_TASK_GRACE_SECONDS=1) as cluster:
        wait_for(lambda: schedules.get("unknown").is_paused, cluster.tail)
    assert "shop.tasks.nowhere" in schedules.get("unknown").paused_because
    assert not Tick.objects.exists()


def test_what_changes_is_seen_and_ticks_wait_for_the_job_before(tmp_path: Path) -> None:
    with running_cluster(tmp_path, WORKERS=3) as cluster:
        cluster.wait_for_crew(3)
        late = every(seconds=1, overlap="queue", kwargs={"seconds": 1.3}, repeats=3)
        schedules.create("queued", write_ledger, late)
        wait_for(lambda: Schedule.objects.get().fired_count == 3, cluster.tail)
        schedules.create("new", nothing, EVERY_SECOND)
        wait_for(lambda: schedules.get("new").fired_count >= 1, cluster.tail)
        schedules.pause("new")
        ticks = [tick.outcome for tick in schedules.ticks("queued")]
        assert ticks.count("fired") == 3
        assert set(ticks) <= {"fired", "skipped", "held", "missed"}  # where nobody had time to look
    lines = list(Ledger.objects.order_by("started_ns"))
    for before, after in pairwise(lines):
        assert before.finished_ns is not None
        assert before.finished_ns <= after.started_ns, "two at once"
