"""Schedules that a real cluster fires."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread

import pytest
from django.db import connection, transaction
from django.db.models import F

from stoker import every, schedules
from stoker.conf import settings_for
from stoker.jobs.package import Package, sealer_for
from stoker.models import Schedule, Tick
from stoker.store.written import database_now_us

from tests.app.guarded import count_the_till, pay_with_lost_database
from tests.app.models import Ledger
from tests.app.tasks import nothing, write_ledger
from tests.cluster.clusters import WAIT_SECONDS, running_cluster, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

EVERY_SECOND = every(seconds=1)


def test_unreadable_schedules_are_paused_and_the_others_fire(tmp_path: Path) -> None:
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
        assert "not a package" in row.paused_because
        row = schedules.get("of no rule")
        assert "'eons' is not a unit" in row.paused_because
        assert not cluster.complaints()


def test_cluster_without_scheduler_fires_no_ticks(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_cluster_stops_though_many_ticks_are_late(tmp_path: Path) -> None:
    """Ticks for a year of seconds are due, of more schedules than one batch fires."""
    rule = every(seconds=1, misfire="all", misfire_cap=1000)
    for number in range(60):
        schedules.create(f"schedule {number}", nothing, rule)
    late_us = F("due_us") - 365 * 86_400_000_000
    Schedule.objects.update(due_us=late_us, moment_us=late_us)
    with running_cluster(tmp_path) as cluster:
        wait_for(lambda: Tick.objects.filter(outcome="fired").count() > 100, cluster.tail)
        assert cluster.stop() == 0
        # On a busy machine SQLite's only writer may keep others waiting for too long.
        assert not [one for one in cluster.complaints() if "is locked" not in one]
    assert Tick.objects.count() < 60 * 1000 / 2, "it went on catching up"


def test_schedule_of_an_unknown_task_is_paused_after_its_grace_period(tmp_path: Path) -> None:
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


def test_changed_schedules_are_noticed_and_queued_ticks_do_not_overlap(tmp_path: Path) -> None:
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
        assert set(ticks) <= {"fired", "skipped", "held", "missed"}  # if the machine was busy
    lines = list(Ledger.objects.order_by("started_ns"))
    for before, after in pairwise(lines):
        assert before.finished_ns is not None
        assert before.finished_ns <= after.started_ns, "two at once"


def create_healthy_schedules(count: int = 8) -> None:
    for number in range(count):
        schedules.create(f"healthy {number}", nothing, EVERY_SECOND)


def healthy_schedules_fired(times: int) -> bool:
    counts = Schedule.objects.filter(name__startswith="healthy").values_list("fired_count")
    return all(count >= times for (count,) in counts)


def test_database_error_in_key_function_delays_no_other_schedule(tmp_path: Path) -> None:
    create_healthy_schedules()
    schedules.create("bad", pay_with_lost_database, EVERY_SECOND)
    with running_cluster(tmp_path, UNKNOWN_TASK_GRACE_SECONDS=1) as cluster:
        wait_for(lambda: schedules.get("bad").problem, cluster.tail)
        wait_for(lambda: healthy_schedules_fired(8), cluster.tail)
        bad = schedules.get("bad")
        assert "the project's own database went away" in bad.problem
        assert not bad.is_paused, "the database may come back"
        assert "Cannot reach the broker" not in cluster.text()


@contextmanager
def open_transaction(act: Callable[[], object]) -> Iterator[None]:
    """Act in a transaction of another connection, which stays open during the block."""
    has_acted, may_end = Event(), Event()

    def run() -> None:
        try:
            with transaction.atomic():
                act()
                has_acted.set()
                may_end.wait(WAIT_SECONDS)
        finally:
            connection.close()

    thread = Thread(target=run)
    thread.start()
    try:
        assert has_acted.wait(WAIT_SECONDS)
        yield
    finally:
        may_end.set()
        thread.join()


@pytest.mark.postgres
@pytest.mark.mariadb
def test_unique_key_held_by_open_transaction_delays_no_other_schedule(tmp_path: Path) -> None:
    create_healthy_schedules()
    schedules.create("bad", count_the_till, EVERY_SECOND)
    with running_cluster(tmp_path) as cluster:
        with open_transaction(count_the_till.enqueue):
            wait_for(lambda: schedules.get("bad").problem, cluster.tail)
            wait_for(lambda: healthy_schedules_fired(8), cluster.tail)
        wait_for(lambda: schedules.get("bad").fired_count, cluster.tail)
