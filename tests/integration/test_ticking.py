"""Which schedules a cluster's scheduler finds, and in which order."""

import re
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker import Cron, every, schedules
from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.models import Cluster, Schedule, Tick
from stoker.schedules import ticking
from stoker.schedules.fire import Firing
from stoker.schedules.ticking import Ticks, Trouble
from stoker.store.written import DatabaseNow, database_now_us, microseconds
from stoker.tasks.schedules import Scheduled
from stoker.testing import enqueued

from tests.app.tasks import nothing

pytestmark = pytest.mark.django_db

HOUR_SECONDS = 3600.0
HOUR_US, MINUTE_US = 3_600_000_000, 60_000_000


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    """Ticks of one of two clusters. The spans are long, because a test may take longer than the
    usual ones."""
    monkeypatch.setattr(ticking, "OVERDUE_US", microseconds(HOUR_SECONDS))
    monkeypatch.setattr(ticking, "IDLE_LOOK_SECONDS", HOUR_SECONDS)
    settings = settings_for()
    Cluster.objects.create(
        id=uuid4(), name=settings.cluster, host="elsewhere", pid=7, started_at=timezone.now(),
        heartbeat_us=DatabaseNow() + microseconds(HOUR_SECONDS), info={"alias": settings.alias},
    )  # fmt: skip
    found = Ticks(settings, broker_for(settings), uuid4(), lambda: None, lambda _: False)
    found._shares.divide()
    return found


def put(ticks: Ticks, due_in_seconds: float, *, is_ours: bool) -> UUID:
    """Create a schedule of this cluster's share, or of the other's."""
    while True:
        row = schedules.create(str(uuid4()), nothing, every(hours=1))
        if ticks._shares.has(row.pk) is is_ours:
            due_us = DatabaseNow() + microseconds(due_in_seconds)
            Schedule.objects.filter(pk=row.pk).update(due_us=due_us)
            return row.pk
        Schedule.objects.filter(pk=row.pk).delete()


def found(ticks: Ticks) -> list[UUID]:
    return [schedule_id for _, schedule_id, _ in ticks._look()[0]]


def test_schedules_of_the_other_cluster_are_left_to_it_until_they_are_overdue(
    ticks: Ticks,
) -> None:
    ours = put(ticks, -HOUR_SECONDS / 2, is_ours=True)
    put(ticks, -HOUR_SECONDS / 2, is_ours=False)
    put(ticks, HOUR_SECONDS / 2, is_ours=False)
    overdue = put(ticks, -HOUR_SECONDS * 2, is_ours=False)
    assert found(ticks) == [ours, overdue], "ours first, although it has waited less"


def test_schedules_due_soon_are_found_earliest_first(ticks: Ticks) -> None:
    later = put(ticks, HOUR_SECONDS / 2, is_ours=True)
    sooner = put(ticks, HOUR_SECONDS / 4, is_ours=True)
    now = put(ticks, -1, is_ours=True)
    put(ticks, HOUR_SECONDS * 2, is_ours=True)
    assert found(ticks) == [now, sooner, later]
    moments = [(due_us - now_us) / 1e6 for due_us, _, now_us in ticks._look()[0]]
    assert moments[0] < 0 < moments[1] < moments[2] < HOUR_SECONDS


def next_moment(name: str) -> int:
    row = schedules.get(name)
    assert row.moment_us is not None
    assert row.due_us == row.course.due(row.moment_us)
    return row.moment_us


def test_next_moment_follows_a_change_of_the_time_zone(ticks: Ticks) -> None:
    """Karachi stands for a zone that has moved from UTC+6 to UTC+5, Dhaka for its former offset."""
    for name, tz in (("moved", "Asia/Dhaka"), ("same", "Asia/Karachi")):
        schedules.create(name, nothing, Cron("0 9 * * *", tz=tz, jitter=60))
    former, same = next_moment("moved"), next_moment("same")
    Schedule.objects.filter(name="moved").update(zone="Asia/Karachi")
    ticks._declare_if_due()
    assert next_moment("moved") == former + HOUR_US
    assert next_moment("same") == same
    Schedule.objects.filter(name="moved").update(zone="Asia/Dhaka")
    ticks._moments.follow_zones()
    assert next_moment("moved") == former


@pytest.mark.parametrize("damage", [{"expression": "broken"}, {"moment_us": 2**62}], ids=str)
def test_unreadable_schedule_stops_no_correction(damage: dict[str, object], ticks: Ticks) -> None:
    broken = schedules.create("broken", nothing, Cron("0 9 * * *"))
    Firing(settings_for()).fire(broken.pk, next_moment("broken") + HOUR_US)
    Schedule.objects.filter(pk=broken.pk).update(**damage)
    schedules.create("moved", nothing, Cron("0 9 * * *", tz="Asia/Dhaka"))
    former = next_moment("moved")
    Schedule.objects.filter(name="moved").update(zone="Asia/Karachi")
    ticks._declare_if_due()
    assert next_moment("moved") == former + HOUR_US


def test_tick_that_has_fired_in_the_former_zone_does_not_fire_again(ticks: Ticks) -> None:
    row = schedules.create("moved", nothing, Cron("0 9 * * *", tz="Asia/Dhaka"))
    former = next_moment("moved")
    Firing(settings_for()).fire(row.pk, former)
    Schedule.objects.update(zone="Asia/Karachi")
    ticks._moments.follow_zones()
    assert next_moment("moved") == former + 25 * HOUR_US


@pytest.mark.parametrize("misfire", ["once", "skip"])
@pytest.mark.parametrize("when", [every(minutes=5), Cron("30 4 * * *")], ids=["interval", "cron"])
def test_schedule_goes_on_after_the_clock_was_ahead_for_a_while(
    when: Scheduled, misfire: str, ticks: Ticks
) -> None:
    row = schedules.create("five", nothing, replace(when, misfire=misfire))
    first, firing = next_moment("five"), Firing(settings_for())
    assert firing.fire(row.pk, first + 365 * 24 * HOUR_US) is not None
    ticks._declare_if_due()
    following = row.course.first(database_now_us("default"))
    assert following is not None
    assert first <= next_moment("five") <= following
    fired = firing.fire(row.pk, next_moment("five"))
    assert fired is not None
    assert fired.outcome == "fired"


def test_no_tick_fires_again_after_the_clock_was_set_back(ticks: Ticks) -> None:
    """The schedule fired while the clock was an hour ahead; its oldest ticks are forgotten."""
    row = schedules.create("five", nothing, every(minutes=5))
    first, firing = next_moment("five"), Firing(settings_for())
    fired = [firing.fire(row.pk, first + number * 5 * MINUTE_US) for number in range(12)]
    Tick.objects.forget(row.pk, keep=6, limit=100)
    ticks._moments.follow_clock()
    assert next_moment("five") == first + 6 * 5 * MINUTE_US
    assert None not in fired
    while next_moment("five") < first + 12 * 5 * MINUTE_US:
        assert firing.fire(row.pk, next_moment("five")) is None
    assert len(enqueued()) == 12


def test_tick_of_this_second_is_no_sign_of_a_clock_set_back(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cluster may fire it after this one has read the time."""
    row = schedules.create("five", nothing, every(minutes=5))
    first = next_moment("five")
    assert Firing(settings_for()).fire(row.pk, first) is not None
    before = str(first - microseconds(0.5))
    monkeypatch.setattr(DatabaseNow, f"as_{connection.vendor}", lambda *_, **__: (before, ()))
    ticks._moments.follow_clock()
    assert next_moment("five") == first + 5 * MINUTE_US


def test_ticks_in_the_future_are_searched_for_when_the_clock_was_set_back(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search looks at every schedule."""

    def searches() -> int:
        with CaptureQueriesContext(connection) as captured:
            ticks._moments.follow_clock()
        return sum("stoker_tick" in query["sql"] for query in captured.captured_queries)

    put(ticks, -1, is_ours=True)
    assert [searches(), searches()] == [1, 0], "at the start"
    found(ticks)  # it reads the time, too
    earlier = str(database_now_us("default") - microseconds(HOUR_SECONDS))
    with monkeypatch.context() as patch:
        patch.setattr(DatabaseNow, f"as_{connection.vendor}", lambda *_, **__: (earlier, ()))
        assert [searches(), searches()] == [1, 0]
    later = database_now_us("default") + microseconds(HOUR_SECONDS)
    ticks._moments.note_time(later)
    assert [searches(), searches()] == [1, 0], "it was ahead between two searches"


WHOLE_TABLE = {
    "postgresql": "Seq Scan on stoker_tick",
    "mysql": r"U0 (ALL|index) ",
    "sqlite": "SCAN U0",
}


@pytest.mark.django_db(transaction=True)
def test_search_for_ticks_in_the_future_does_not_read_all_ticks(ticks: Ticks) -> None:
    """The loop that fires ticks waits for this search, and a schedule keeps many ticks."""
    row = schedules.create("first", nothing, every(hours=1))
    first = next_moment("first") - 1000 * HOUR_US
    rows = [row, *(copy_of(row) for _ in range(100))]
    Tick.objects.bulk_create(
        Tick(schedule_id=row.pk, moment_us=first + number, outcome="fired", fired_us=first)
        for row in rows
        for number in range(50)
    )
    with connection.cursor() as cursor:
        for table in ("stoker_tick", "stoker_schedule"):
            cursor.execute(f"ANALYZE {'TABLE ' * (connection.vendor == 'mysql')}{table}")
    with CaptureQueriesContext(connection) as captured:
        ticks._moments.follow_clock()
    (search,) = [one["sql"] for one in captured.captured_queries if "stoker_tick" in one["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"{connection.ops.explain_query_prefix()} {search}")
        plan = "\n".join(" ".join(map(str, line)) for line in cursor.fetchall())
    assert not re.search(WHOLE_TABLE[connection.vendor], plan), plan


def copy_of(row: Schedule) -> Schedule:
    copy = Schedule.objects.get(pk=row.pk)
    copy.pk = uuid4()
    copy.name = str(copy.pk)
    copy.save(force_insert=True)
    return copy


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (ValueError("half \ud83d"), r"ValueError: half \ud83d"),
        (ValueError("a \0"), r"ValueError: a \x00"),
        (UnreadableError(), "UnreadableError: <the error's text could not be read: RuntimeError>"),
    ],
)
def test_error_whose_text_no_database_accepts_is_shown(
    ticks: Ticks, error: Exception, problem: str
) -> None:
    schedule_id = put(ticks, -1, is_ours=True)

    def fail() -> None:
        raise error

    ticks._within_bounds(schedule_id, fail)
    assert schedule_id in ticks._troubles
    assert Schedule.objects.get(pk=schedule_id).problem == problem


def test_pause_and_run_by_hand_accept_any_text() -> None:
    schedules.create("any", nothing, every(hours=1))
    schedules.run_now("any", by="half \ud83d")
    assert schedules.pause("any", by="a \0", because="half \ud83d").paused_by == r"a \x00"
    assert Schedule.objects.get().paused_because == r"half \ud83d"


def test_failed_schedule_is_not_retried_before_its_pause_ends(ticks: Ticks) -> None:
    resting, ready = (put(ticks, -1, is_ours=True) for _ in range(2))
    never = ticking.time.monotonic() + HOUR_SECONDS
    ticks._troubles[resting] = Trouble(since=0.0, try_at=never, rest_seconds=1.0)
    ticks._troubles[ready] = Trouble(since=0.0, try_at=0.0, rest_seconds=1.0)
    assert found(ticks) == [ready]
