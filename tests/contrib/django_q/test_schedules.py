"""``schedule()`` and rows of ``Schedule``."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, connections, transaction
from django.db.models import F
from django.test import override_settings
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.contrib.django_q import conf
from stoker.contrib.django_q.models import Schedule, Task
from stoker.contrib.django_q.tasks import result, schedule
from stoker.exceptions import InvalidSchedule
from stoker.jobs.package import sealer_for
from stoker.models import Job
from stoker.models import Schedule as OwnSchedule
from stoker.schedules.fire import Firing
from stoker.schedules.ticking import Ticks
from stoker.testing import drain
from stoker.values.ticks import as_us

from tests.contrib.django_q import functions

pytestmark = pytest.mark.django_db(databases="__all__")
HERE = "tests.contrib.django_q.functions"
FUTURE = datetime(2040, 1, 31, 12, 30, tzinfo=UTC)


def fire(at: datetime | None = None) -> int:
    """Fire what is due at that moment, or now, as a scheduler does. Return the number of ticks."""
    settings = settings_for(conf.alias())
    # SQLite counts in milliseconds: by its clock, a row just written may be due in the future.
    now_us = as_us(timezone.now() if at is None else at)
    firing, count = Firing(settings), 0
    for row in OwnSchedule.objects.using(settings.database).filter(due_us__lte=now_us):
        count += firing.fire(row.pk, now_us) is not None
    for one in Schedule.objects.all():
        Schedule.refresh(one.pk)
    return count


def test_schedule_runs_once_at_once_by_default() -> None:
    row = schedule("math.copysign", 2, -2)
    assert fire() == 1
    drain()
    assert [one.result for one in Task.objects.all()] == [-2]
    assert not Schedule.objects.filter(pk=row.pk).exists()


def test_once_schedule_with_repeats_is_kept() -> None:
    row = schedule(f"{HERE}.note", repeats=1, name="kept")
    fire()
    row.refresh_from_db()
    assert row.repeats == 0
    assert fire() == 0


@pytest.mark.parametrize(
    ("terms", "following"),
    [
        (
            {"schedule_type": Schedule.MINUTES, "minutes": 5},
            datetime(2040, 1, 31, 12, 35, tzinfo=UTC),
        ),
        ({"schedule_type": Schedule.HOURLY}, datetime(2040, 1, 31, 13, 30, tzinfo=UTC)),
        ({"schedule_type": Schedule.DAILY}, datetime(2040, 2, 1, 12, 30, tzinfo=UTC)),
        ({"schedule_type": Schedule.WEEKLY}, datetime(2040, 2, 7, 12, 30, tzinfo=UTC)),
        ({"schedule_type": Schedule.BIWEEKLY}, datetime(2040, 2, 14, 12, 30, tzinfo=UTC)),
        ({"schedule_type": Schedule.MONTHLY}, datetime(2040, 2, 29, 12, 30, tzinfo=UTC)),
        ({"schedule_type": Schedule.BIMONTHLY}, datetime(2040, 3, 31, 12, 30, tzinfo=UTC)),
        ({"schedule_type": Schedule.QUARTERLY}, datetime(2040, 4, 30, 12, 30, tzinfo=UTC)),
        ({"schedule_type": Schedule.YEARLY}, datetime(2041, 1, 31, 12, 30, tzinfo=UTC)),
    ],
    ids=lambda value: value["schedule_type"] if isinstance(value, dict) else "",
)
def test_each_schedule_type_computes_the_next_run(
    terms: dict[str, Any], following: datetime
) -> None:
    row = schedule(f"{HERE}.note", next_run=FUTURE, **terms)
    assert fire(FUTURE - timedelta(seconds=1)) == 0
    assert fire(FUTURE) == 1
    row = Schedule.objects.get(pk=row.pk)
    assert row.next_run == following


def test_monthly_schedule_on_31st_keeps_the_day() -> None:
    row = schedule(f"{HERE}.note", next_run=FUTURE, schedule_type=Schedule.MONTHLY)
    fire(FUTURE)
    Schedule.objects.get(pk=row.pk).save()
    fire(datetime(2040, 2, 29, 12, 30, tzinfo=UTC))
    assert Schedule.objects.get(pk=row.pk).next_run == datetime(2040, 3, 31, 12, 30, tzinfo=UTC)


def test_cron_schedule_computes_the_next_run() -> None:
    row = schedule(f"{HERE}.note", schedule_type=Schedule.CRON, cron="0 3 * * *", next_run=FUTURE)
    assert Schedule.objects.get(pk=row.pk).next_run == datetime(2040, 2, 1, 3, tzinfo=UTC)
    assert row.calculate_next_run(FUTURE) == datetime(2040, 2, 1, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rule", "following"),
    [
        ("0 3 * * * 0", [(1, 3, 0, 0), (2, 3, 0, 0), (3, 3, 0, 0)]),
        ("*/30 12 31 * * 15", [(31, 12, 0, 15), (31, 12, 30, 15)]),
        ("0 3 */10 * 1", [(1, 3, 0, 0), (2, 3, 0, 0), (9, 3, 0, 0), (11, 3, 0, 0)]),
        ("0 3 10 * */3", [(1, 3, 0, 0), (4, 3, 0, 0), (7, 3, 0, 0), (8, 3, 0, 0), (10, 3, 0, 0)]),
        ("0 3 */10 * *", [(1, 3, 0, 0), (11, 3, 0, 0), (21, 3, 0, 0), (31, 3, 0, 0)]),
        ("0 3 * * */2", [(1, 3, 0, 0), (3, 3, 0, 0), (5, 3, 0, 0), (7, 3, 0, 0), (8, 3, 0, 0)]),
        ("0 3 13 * 5", [(6, 3, 0, 0), (13, 3, 0, 0), (20, 3, 0, 0)]),
        ("@daily", [(1, 0, 0, 0), (2, 0, 0, 0)]),
    ],
)
def test_cron_rule_means_what_it_means_in_django_q(rule: str, following: list[Any]) -> None:
    """The moments of January 2040 are those of croniter 7. Its first day is a Sunday."""
    at = datetime(2039, 12, 31, 23, 59, 59, tzinfo=UTC)
    row = schedule(f"{HERE}.note", schedule_type=Schedule.CRON, cron=rule, next_run=at)
    found = []
    for _ in following:
        at = row.calculate_next_run(at)
        found.append((at.day, at.hour, at.minute, at.second))
    assert found == following


def test_invalid_schedule_is_refused_on_create() -> None:
    with pytest.raises(ValidationError):
        schedule(f"{HERE}.note", schedule_type=Schedule.CRON, cron="every day")
    with pytest.raises(InvalidSchedule, match="needs a cron rule"):
        Schedule.objects.create(func=f"{HERE}.note", schedule_type=Schedule.CRON)
    with pytest.raises(InvalidSchedule, match="cannot be read"):
        Schedule.objects.create(func=f"{HERE}.note", args="1, two")
    assert not Schedule.objects.exists()
    assert not OwnSchedule.objects.using(conf.database()).exists()


def test_duplicate_name_raises_integrity_error() -> None:
    schedule(f"{HERE}.note", name="tidy", next_run=FUTURE)
    with pytest.raises(IntegrityError, match="tidy"):
        schedule(f"{HERE}.note", name="tidy")


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.django_db(databases="__all__", transaction=True)
def test_name_that_another_transaction_takes_meanwhile_raises_integrity_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found_none, save = threading.Event(), Schedule.save

    def note_and_save(row: Schedule) -> None:
        found_none.set()
        save(row)

    def create_another() -> None:
        try:
            if connection.vendor == "mysql":
                with connection.cursor() as cursor:
                    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            schedule(f"{HERE}.note", name="tidy", next_run=FUTURE)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using=conf.database()):
            schedule(f"{HERE}.note", name="tidy", next_run=FUTURE)
            monkeypatch.setattr(Schedule, "save", note_and_save)
            another = pool.submit(create_another)
            assert found_none.wait(60)
        with pytest.raises(IntegrityError, match="tidy"):
            another.result()
    assert [row.name for row in Schedule.objects.all()] == ["tidy"]
    assert [row.name for row in OwnSchedule.objects.using(conf.database())] == ["tidy"]


def test_task_gets_arguments_hook_and_group() -> None:
    schedule(f"{HERE}.note", 1, "two", x=[3], name="letters", hook=functions.hook)
    fire()
    drain()
    assert functions.done[0] == ((1, "two"), {"x": [3]})
    row = Task.objects.get()
    assert row.group == "letters"
    assert functions.done[1][0] == row.id


@pytest.mark.parametrize(
    ("args", "kwargs", "given"),
    [
        ("1, 'two'", "x=3", ((1, "two"), {"x": 3})),
        ("(1, 'two')", "{'x': 3}", ((1, "two"), {"x": 3})),
        ("'one'", None, (("one",), {})),
        ("[1, 2],", "", (([1, 2],), {})),
        (None, "x=1, y=None", ((), {"x": 1, "y": None})),
    ],
)
def test_arguments_given_as_text_are_parsed(
    args: str | None, kwargs: str | None, given: Any
) -> None:
    Schedule.objects.create(func=f"{HERE}.note", args=args, kwargs=kwargs)
    fire()
    drain()
    assert functions.done == [given]


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_schedules_that_are_due_together_keep_their_options_and_show_their_progress() -> None:
    options = {"timeout": 7, "ack_failure": True}
    schedule(f"{HERE}.note", name="once", q_options=options)
    past = timezone.now() - timedelta(hours=1)
    daily = schedule(f"{HERE}.note", schedule_type="D", next_run=past, repeats=2, q_options=options)
    settings = settings_for(conf.alias())
    rows = OwnSchedule.objects.using(settings.database)
    rows.update(due_us=F("moment_us") - 1_000_000)  # SQLite's clock counts in milliseconds
    broker = broker_for(settings)
    Ticks(settings, broker, uuid4(), lambda: None, lambda _: False).run_once()
    jobs = Job.objects.using(settings.database)
    found = [sealer_for(settings).open(bytes(job.package)).options for job in jobs]
    assert [(one.timeout_seconds, one.max_attempts) for one in found] == [(7, 1), (7, 1)]
    (kept,) = Schedule._base_manager.using(settings.database)
    assert (kept.pk, kept.repeats, kept.next_run) == (
        daily.pk, 1, past.replace(microsecond=0) + timedelta(days=1)
    )  # fmt: skip
    assert kept.task in {job.pk.hex for job in jobs}


def test_options_among_the_keyword_arguments_do_not_reach_the_function() -> None:
    schedule(f"{HERE}.note", x=1, timeout=30, task_name="nightly", q_options={"group": "g"})
    fire()
    drain()
    assert functions.done == [((), {"x": 1})]
    (row,) = Task.objects.all()
    assert (row.name, row.group) == ("nightly", "g")


@pytest.mark.parametrize("name", ["cluster", "broker_name"])
def test_cluster_in_q_options_is_the_queue(name: str) -> None:
    Schedule.objects.create(func=f"{HERE}.note", kwargs=f"q_options={{'{name}': 'high'}}")
    fire()
    assert Job.objects.get().queue == "high"


def test_chain_of_a_schedule_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="schedule a function that calls async_chain"):
        schedule(f"{HERE}.note", q_options={"chain": [(f"{HERE}.note", (2,))]})


def test_repeats_count_down_to_zero() -> None:
    row = schedule(
        f"{HERE}.note", schedule_type=Schedule.HOURLY, repeats=2, next_run=FUTURE, name="twice"
    )
    fire(FUTURE)
    assert Schedule.objects.get(pk=row.pk).repeats == 1
    fire(FUTURE + timedelta(hours=1))
    assert Schedule.objects.get(pk=row.pk).repeats == 0
    assert fire(FUTURE + timedelta(hours=2)) == 0


def test_schedule_shows_its_last_task() -> None:
    row = schedule(f"{HERE}.add", 1, 1, schedule_type=Schedule.DAILY)
    fire()
    row = Schedule.objects.get(pk=row.pk)
    assert row.success() is None
    drain()
    assert row.success()
    assert row.task is not None
    assert result(row.task) == 2
    assert row.last_run() == Task.objects.get().name


def test_intended_date_kwarg_gets_the_scheduled_moment() -> None:
    schedule(
        f"{HERE}.note",
        schedule_type=Schedule.DAILY,
        next_run=FUTURE,
        intended_date_kwarg="day",
    )
    fire(FUTURE + timedelta(minutes=1))
    drain()
    assert functions.done == [((), {"day": FUTURE.isoformat()})]


@override_settings(Q_CLUSTER={"time_zone": "Europe/Berlin"})
def test_intended_date_is_in_utc() -> None:
    schedule(
        f"{HERE}.note", schedule_type=Schedule.DAILY, next_run=FUTURE, intended_date_kwarg="day"
    )
    fire(FUTURE)
    drain()
    assert functions.done == [((), {"day": "2040-01-31T12:30:00+00:00"})]


def test_saved_cron_schedule_shows_its_first_run() -> None:
    before = timezone.now()
    row = Schedule(func=f"{HERE}.note", schedule_type=Schedule.CRON, cron="0 3 * * *")
    row.save()
    assert row.next_run > before
    assert (row.next_run.hour, row.next_run.minute) == (3, 0)
    assert Schedule.objects.get(pk=row.pk).next_run == row.next_run
    exact = Schedule(
        func="a.b", schedule_type="C", cron="0 3 * * *", next_run=FUTURE.replace(hour=3, minute=0)
    )
    exact.save()
    assert (
        Schedule.objects.get(pk=exact.pk).next_run
        == exact.next_run
        == FUTURE.replace(hour=3, minute=0)
    )


def test_rows_can_be_updated_and_deleted() -> None:
    row = schedule(f"{HERE}.note", schedule_type=Schedule.DAILY, next_run=FUTURE)
    Schedule.objects.filter(pk=row.pk).update(next_run=timezone.now())
    assert fire() == 1
    row.next_run = FUTURE + timedelta(days=3)
    row.save()
    assert Schedule.objects.get(pk=row.pk).next_run == FUTURE + timedelta(days=3)
    assert fire(FUTURE) == 0
    Schedule.objects.filter(pk=row.pk).delete()
    assert not OwnSchedule.objects.using(conf.database()).exists()


def test_several_missed_runs_cause_one_run() -> None:
    schedule(
        f"{HERE}.note", schedule_type=Schedule.HOURLY, next_run=timezone.now() - timedelta(hours=9)
    )
    fire()
    assert len(drain()) == 1


@override_settings(Q_CLUSTER={"name": "default", "catch_up": True})
def test_catch_up_runs_every_missed_run() -> None:
    schedule(
        f"{HERE}.note", schedule_type=Schedule.HOURLY, next_run=timezone.now() - timedelta(hours=9)
    )
    fire()
    assert len(drain()) == 10


@override_settings(Q_CLUSTER={"time_zone": "Europe/Berlin"})
def test_daily_schedule_keeps_the_local_time() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    first = datetime(2040, 3, 24, 8, 0, tzinfo=berlin)
    row = schedule(f"{HERE}.note", schedule_type=Schedule.DAILY, next_run=first)
    fire(first)
    row = Schedule.objects.get(pk=row.pk)
    assert row.next_run == datetime(2040, 3, 25, 8, 0, tzinfo=berlin)
    assert row.next_run - first == timedelta(hours=23)
