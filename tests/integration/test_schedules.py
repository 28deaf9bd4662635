"""Schedules as rows: created, fired, missed, held, paused."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import F
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker import Cron, every, once, schedules
from stoker.conf import settings_for
from stoker.exceptions import (
    InvalidSchedule,
    NotSerializable,
    ScheduleExists,
    ScheduleNotFound,
    UnknownTask,
    UnreadablePackage,
)
from stoker.locks.sweep import Leftovers
from stoker.models import Schedule, Tick
from stoker.schedules import service
from stoker.schedules.fire import Fired, Firing
from stoker.signals import post_tick
from stoker.store.written import database_now_us
from stoker.testing import drain, enqueued

from tests.app.tasks import add, echo, nothing, tell_moment
from tests.integration.fronted import fronted_broker, outside
from tests.integration.work import claim, outside_the_database, work_off

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3_600_000_000
MINUTE = 60_000_000


def fire(name: str, now_us: int | None = None) -> Fired | None:
    return Firing(settings_for("default")).fire(schedules.get(name).pk, now_us)


def due(name: str) -> int:
    found = schedules.get(name).due_us
    assert found is not None
    return found


def ticks(name: str) -> list[tuple[str, int]]:
    """Return outcomes and moments, oldest first."""
    return [(one.outcome, one.moment_us) for one in reversed(schedules.ticks(name, 100))]


def test_due_tick_enqueues_one_job() -> None:
    schedules.create("adds", add, every(hours=1, args=[1], kwargs={"second": 2}, priority=7))
    moment = due("adds")
    assert fire("adds") is None  # not due yet
    fired = fire("adds", moment + 5)
    assert fired is not None
    assert (fired.moment_us, fired.outcome, fired.late_us) == (moment, "fired", 5)
    assert fire("adds", moment + 5) is None
    (job,) = enqueued()
    assert (job.args, job.kwargs, job.priority) == ((1,), {"second": 2}, 7)
    assert due("adds") == moment + HOUR
    (ran,) = drain().succeeded
    assert ran.result.return_value == 3
    row = schedules.get("adds")
    assert (row.fired_count, row.last_job_id, row.last_moment_us) == (1, UUID(ran.id), moment)


def test_tick_already_fired_is_not_fired_again() -> None:
    """The schedule's row was set back, by hand or from a backup."""
    schedules.create("again", nothing, every(hours=1))
    moment = due("again")
    fire("again", moment)
    Schedule.objects.update(moment_us=moment, due_us=moment)
    assert fire("again", moment) is None
    assert due("again") == moment + HOUR
    assert len(enqueued()) == 1


def test_failed_enqueue_leaves_no_tick() -> None:
    schedules.create("fails", add, every(hours=1, args=[1, 2]))
    Schedule.objects.update(priority=1000)
    moment = due("fails")
    with pytest.raises(Exception, match="priority"):
        fire("fails", moment)
    assert not enqueued()
    assert not Tick.objects.exists()
    assert due("fails") == moment


def test_moment_as_passes_the_scheduled_moment_to_the_task() -> None:
    rule = Cron("30 2 * * *", tz="Europe/Berlin", moment_as="when")
    schedules.create("moment", tell_moment, rule)
    moment = due("moment")
    fire("moment", moment + 10 * MINUTE)
    (ran,) = drain().succeeded
    given, asked = ran.result.return_value
    assert given == asked
    assert str(given.tzinfo) == "Europe/Berlin"
    assert (given.hour, given.minute) == (2, 30)
    assert given.timestamp() * 1_000_000 == moment


@pytest.mark.parametrize(
    ("misfire", "wanted"),
    [
        ("once", ["missed", "fired"]),
        ("skip", ["missed"]),
        ("all", ["missed", "fired", "fired", "fired"]),
    ],
)
def test_missed_ticks_are_handled_by_misfire_policy(misfire: str, wanted: list[str]) -> None:
    """No scheduler ran for ten and a half hours."""
    schedules.create("late", nothing, every(hours=1, misfire=misfire, misfire_cap=3))
    first = due("late")
    now = first + 10 * HOUR + 30 * MINUTE
    while fire("late", now) is not None:
        pass
    assert [outcome for outcome, _ in ticks("late")] == wanted
    assert due("late") == first + 11 * HOUR
    fired = [moment for outcome, moment in ticks("late") if outcome == "fired"]
    assert fired == [first + number * HOUR for number in range(11 - len(fired), 11)]
    assert schedules.get("late").missed_count == 11 - len(fired)


@pytest.fixture
def told() -> Iterator[list[Fired]]:
    """What ``post_tick`` tells, in order."""
    told: list[Fired] = []

    def note(fired: Fired, **_: Any) -> None:
        told.append(fired)

    post_tick.connect(note)
    yield told
    post_tick.disconnect(note)


def test_each_late_tick_is_told(told: list[Fired]) -> None:
    schedules.create("late", nothing, every(hours=1, misfire="all"))
    first = due("late")
    fire("late", first + 2 * HOUR + MINUTE)
    assert [(one.outcome, one.moment_us, one.late_us) for one in told] == [
        ("fired", first + number * HOUR, (2 - number) * HOUR + MINUTE) for number in range(3)
    ]
    assert {one.job_id for one in told} == {UUID(job.id) for job in enqueued()}


def test_missed_ticks_are_told_together(
    told: list[Fired], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("alone", "a", "b"):
        schedules.create(name, nothing, every(hours=1, misfire="once"))
    first = {name: due(name) for name in ("alone", "a", "b")}
    now = max(first.values()) + 2 * HOUR + MINUTE
    fire("alone", now)
    Firing(settings_for("default")).fire_together(
        [schedules.get(name).pk for name in ("a", "b")], now
    )
    found = {(one.schedule.name, one.outcome, one.count, one.moment_us) for one in told}
    assert found == {
        (name, *rest)
        for name, moment in first.items()
        for rest in (("missed", 2, moment), ("fired", 1, moment + 2 * HOUR))
    }
    assert sum("missed ticks are skipped" in one.message for one in caplog.records) == 3


def test_replaced_tick_is_told_as_skipped(told: list[Fired]) -> None:
    assert overlapping("queue") == ["fired", "held"]
    first, second, third = (due("overlaps") + number * HOUR for number in (-2, -1, 0))
    fire("overlaps", third)
    assert [(one.outcome, one.moment_us) for one in told] == [
        ("fired", first),
        ("held", second),
        ("skipped", second),
        ("held", third),
    ]


def test_schedule_fired_by_hand_is_told(told: list[Fired]) -> None:
    schedules.create("manual", nothing, every(hours=1))
    with transaction.atomic():
        result = schedules.run_now("manual")
        assert told == []
    ((outcome, job_id),) = [(one.outcome, one.job_id) for one in told]
    assert (outcome, job_id) == ("manual", UUID(result.id))


def test_misfire_skip_fires_within_grace() -> None:
    schedules.create("skips", nothing, every(hours=1, misfire="skip", grace=120))
    first = due("skips")
    fired = fire("skips", first + 2 * HOUR + MINUTE)
    assert fired is not None
    assert (fired.outcome, fired.moment_us) == ("fired", first + 2 * HOUR)


def test_counting_of_missed_ticks_is_bounded() -> None:
    schedules.create("seconds", nothing, every(seconds=1))
    first = due("seconds")
    fired = fire("seconds", first + 365 * 24 * HOUR)
    assert fired is not None
    assert fired.moment_us == first + 365 * 24 * HOUR
    assert schedules.get("seconds").missed_count == 1000


def test_overlap_allow_fires_while_a_job_runs() -> None:
    assert overlapping("allow") == ["fired", "fired"]
    assert len(enqueued()) == 2


def test_overlap_skip_skips_while_a_job_runs() -> None:
    assert overlapping("skip") == ["fired", "skipped"]
    assert len(enqueued()) == 1


@pytest.mark.redis
@pytest.mark.parametrize(("policy", "second"), [("skip", "skipped"), ("queue", "held")])
def test_overlap_is_noticed_with_a_broker_outside_the_database(policy: str, second: str) -> None:
    """Its jobs have no row before their first attempt ends, so these jobs wait in the store."""
    with fronted_broker() as broker:
        assert overlapping(policy) == ["fired", second]
        assert outside(broker) == 0
        assert work_off() == 1
        schedules.delete("overlaps")
        assert overlapping("allow") == ["fired", "fired"]
        assert outside(broker) == 2


def test_overlap_skip_ignores_runs_by_hand() -> None:
    schedules.create("overlaps", nothing, every(hours=1, overlap="skip"))
    fire("overlaps", due("overlaps"))
    schedules.run_now("overlaps").cancel()
    fire("overlaps", due("overlaps"))
    outcomes = [outcome for outcome, _ in ticks("overlaps") if outcome != "manual"]
    assert outcomes == ["fired", "skipped"]


def _released() -> list[UUID]:
    return [found for found, *_ in Schedule.objects.all().releasable(10)]


def test_overlap_queue_holds_the_newest_tick_until_the_job_ends() -> None:
    assert overlapping("queue") == ["fired", "held"]
    third = due("overlaps")
    fire("overlaps", third)
    assert [outcome for outcome, _ in ticks("overlaps")] == ["fired", "skipped", "held"]
    row = schedules.get("overlaps")
    firing = Firing(settings_for("default"))
    assert firing.release(row.pk) is None
    assert _released() == []
    drain()
    assert _released() == [row.pk]
    released = firing.release(row.pk)
    assert released is not None
    assert released.moment_us == third
    assert firing.release(row.pk) is None
    assert [outcome for outcome, _ in ticks("overlaps")] == ["fired", "skipped", "fired"]
    assert len(enqueued()) == 1


@pytest.mark.parametrize("repeats", [-1, 2])
def test_newer_tick_takes_the_place_of_a_held_one_whose_turn_has_come(
    repeats: int, told: list[Fired]
) -> None:
    assert overlapping("queue", repeats) == ["fired", "held"]
    drain()
    third = due("overlaps")
    fire("overlaps", third)
    drain()
    assert Firing(settings_for("default")).release(schedules.get("overlaps").pk) is None
    assert [outcome for outcome, _ in ticks("overlaps")] == ["fired", "skipped", "fired"]
    assert [(one.outcome, one.moment_us) for one in told[2:]] == [
        ("skipped", third - HOUR),
        ("fired", third),
    ]
    row = schedules.get("overlaps")
    assert (row.fired_count, row.held_us, row.is_over) == (2, None, repeats == 2)


def test_held_tick_is_skipped_if_no_repeats_are_left() -> None:
    overlapping("queue")
    drain()
    Schedule.objects.update(repeats_left=0)
    released = Firing(settings_for("default")).release(schedules.get("overlaps").pk)
    assert released is not None
    assert released.outcome == "skipped"
    assert [outcome for outcome, _ in ticks("overlaps")] == ["fired", "skipped"]
    assert enqueued() == []
    assert _released() == []


def overlapping(policy: str, repeats: int = -1) -> list[str]:
    schedules.create("overlaps", nothing, every(hours=1, overlap=policy, repeats=repeats))
    for _ in range(2):
        fire("overlaps", due("overlaps"))
    return [outcome for outcome, _ in ticks("overlaps")]


def test_held_tick_is_released_after_a_pause() -> None:
    overlapping("queue")
    schedules.pause("overlaps")
    drain()
    assert _released() == []
    row = schedules.resume("overlaps")
    assert _released() == [row.pk]


def test_schedule_that_is_resumed_while_it_is_changed_falls_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedules.create("ping", nothing, every(hours=1))
    schedules.pause("ping")
    after_the_first_query(monkeypatch, lambda: schedules.resume("ping"))
    schedules.upsert("ping", nothing, every(minutes=5))
    row = schedules.get("ping")
    assert (row.is_paused, row.moment_us) == (False, row.due_us)
    assert row.due_us is not None


def test_schedule_that_is_changed_while_it_is_resumed_has_moments_of_the_new_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = datetime.now(UTC) + timedelta(days=90)
    schedules.create("ping", nothing, every(hours=1))
    schedules.pause("ping")
    after_the_first_query(
        monkeypatch, lambda: schedules.upsert("ping", nothing, every(hours=1, start=later))
    )
    schedules.resume("ping")
    assert due("ping") >= later.timestamp() * 1_000_000


def after_the_first_query(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let another session act after ``schedules`` has read a row for the first time."""
    real = schedules.get

    def get(name: str, **options: Any) -> Schedule:
        monkeypatch.setattr(service, "get", real)
        found = real(name, **options)
        act()
        return found

    monkeypatch.setattr(service, "get", get)


@pytest.mark.parametrize(
    ("changes", "is_kept"),
    [
        ({"end": datetime.now(UTC) + timedelta(days=900)}, True),
        ({"repeats": 9}, True),
        ({"jitter": 5}, True),
        ({"start": datetime.now(UTC) + timedelta(days=1)}, False),
        ({"anchor": datetime(2026, 1, 1, 0, 0, 7)}, False),  # noqa: DTZ001 - in the zone
    ],
)
def test_due_tick_still_fires_after_a_change_if_the_new_rule_has_it(
    changes: dict[str, Any], is_kept: bool
) -> None:
    schedules.create("ping", nothing, every(minutes=1, jitter=0))
    moment = due("ping") - 2 * MINUTE
    Schedule.objects.update(moment_us=moment, due_us=moment)
    row = schedules.upsert("ping", nothing, every(minutes=1, **changes))
    assert (row.moment_us == moment) is is_kept
    fire("ping", moment + 10_000_000)
    assert len(enqueued()) == is_kept


def test_schedule_fires_with_a_broker_outside_the_database() -> None:
    """The job is sent when the tick's transaction has committed."""
    with override_settings(TASKS=outside_the_database()):
        schedules.create("elsewhere", nothing, every(hours=1))
        moment = due("elsewhere")
        fired = fire("elsewhere", moment)
        assert fired is not None
        assert fire("elsewhere", moment) is None
        assert [delivery.job_id for delivery in claim()] == [fired.job_id]
        with pytest.raises(InvalidSchedule, match="cannot tell whether a job has ended"):
            schedules.create("overlaps", nothing, every(hours=1, overlap="skip"))


def test_schedule_is_over_after_its_repeats() -> None:
    schedules.create("twice", nothing, every(hours=1, repeats=2))
    for _ in range(2):
        fire("twice", due("twice"))
    row = schedules.get("twice")
    assert row.is_over
    assert (row.repeats_left, row.due_us) == (0, None)
    assert schedules.next_ticks("twice") == []
    assert schedules.resume("twice").is_over


def test_change_of_the_rule_does_not_repeat_an_ended_schedule() -> None:
    schedules.create("twice", echo, every(hours=1, repeats=2, args=[1]))
    for _ in range(2):
        fire("twice", due("twice"))
    assert schedules.update("twice", when=every(minutes=5, repeats=2, args=[1])).is_over
    row = schedules.update("twice", repeats=3)
    assert (row.repeats_left, row.is_over) == (3, False)
    # A row that an older version made due again:
    Schedule.objects.update(repeats_left=0)
    assert fire("twice", due("twice")) is None
    assert schedules.get("twice").is_over
    assert len(ticks("twice")) == 2


def test_ticks_are_between_start_and_end() -> None:
    start = datetime.now(UTC).replace(minute=30) + timedelta(days=2)
    bounded = every(hours=1, start=start, end=start + timedelta(hours=2))
    schedules.create("bounded", nothing, bounded)
    moments = schedules.next_ticks("bounded", 9)
    assert len(moments) == 2
    assert moments == schedules.next_ticks(bounded, 9)
    assert all(start <= moment <= start + timedelta(hours=2) for moment in moments)
    fired = fire("bounded", due("bounded") + 9 * HOUR)
    assert fired is not None
    assert fired.moment_us == moments[1].timestamp() * 1_000_000
    assert schedules.get("bounded").is_over


def test_once_in_the_past_fires_once() -> None:
    at = datetime.now(UTC) - timedelta(days=3)
    schedules.create("once", nothing, once(at))
    fired = fire("once")
    assert fired is not None
    assert schedules.get("once").is_over
    assert fire("once") is None


def test_once_still_fires_after_a_run_by_hand_and_a_pause() -> None:
    at = datetime.now(UTC) + timedelta(days=7)
    schedules.create("once", echo, once(at, args=[1]))
    moment = due("once")
    schedules.run_now("once")
    schedules.pause("once")
    assert not schedules.resume("once").is_over
    schedules.update("once", args=[2], repeats=5)
    fired = fire("once", due("once"))
    assert fired is not None
    assert fired.moment_us == moment
    assert [outcome for outcome, _ in ticks("once")] == ["manual", "fired"]


@pytest.mark.parametrize("late_seconds", [-60, 60])
def test_once_whose_moment_came_during_a_pause_does_not_fire(late_seconds: int) -> None:
    """A schedule that was due before the pause still fires."""
    schedules.create("once", nothing, once(datetime.now(UTC) - timedelta(minutes=1)))
    schedules.pause("once")
    Schedule.objects.update(paused_us=F("moment_us") + late_seconds * 1_000_000)
    was_due_before = late_seconds > 0
    assert bool(schedules.next_ticks("once")) is was_due_before
    assert schedules.resume("once").is_over is not was_due_before
    assert (fire("once") is not None) is was_due_before


def test_once_that_has_fired_fires_again_only_at_another_time() -> None:
    at = datetime.now(UTC) + timedelta(days=7)
    schedules.create("once", echo, once(at, args=[1]))
    fire("once", due("once"))
    schedules.pause("once")
    assert schedules.resume("once").is_over
    assert schedules.update("once", args=[2], repeats=5).is_over
    schedules.pause("once")
    row = schedules.update("once", when=once(at + timedelta(days=1), args=[1]))
    assert row.due_us is None
    assert not schedules.resume("once").is_over
    assert fire("once", due("once")) is not None
    assert schedules.get("once").is_over


def test_jitter_is_the_same_on_every_cluster() -> None:
    schedules.create("shaky", nothing, every(hours=1, jitter="10m"))
    row = schedules.get("shaky")
    assert row.moment_us is not None
    lates = []
    for number in range(20):
        moment = row.moment_us + number * HOUR
        assert row.course.due(moment) == schedules.get("shaky").course.due(moment)
        lates.append(row.course.due(moment) - moment)
    assert all(0 <= late <= 10 * MINUTE for late in lates)
    assert len(set(lates)) == 20
    assert fire("shaky", due("shaky") - 1) is None
    assert fire("shaky", due("shaky")) is not None


def test_paused_schedule_does_not_fire_until_resumed() -> None:
    schedules.create("pausing", nothing, every(hours=1))
    first = due("pausing")
    row = schedules.pause("pausing", by="ada", because="the printer is broken")
    assert (row.is_paused, row.paused_by, row.due_us) == (True, "ada", None)
    assert fire("pausing", first) is None
    assert schedules.next_ticks("pausing", 2) != []
    row = schedules.resume("pausing")
    assert (row.is_paused, row.paused_because) == (False, "")
    assert due("pausing") == first


def test_run_now_enqueues_without_moving_the_next_tick() -> None:
    schedules.create("manual", add, every(hours=1, args=[1, 1]))
    first = due("manual")
    result = schedules.run_now("manual", by="ada")
    assert due("manual") == first
    assert [outcome for outcome, _ in ticks("manual")] == ["manual"]
    drain()
    result.refresh()
    assert result.return_value == 2


def test_upsert_keeps_the_next_tick_unless_the_rule_changes() -> None:
    schedules.upsert("kept", nothing, every(hours=1))
    first = due("kept")
    schedules.pause("kept", by="ada")
    row = schedules.upsert("kept", nothing, every(hours=1))
    assert row.is_paused
    schedules.resume("kept")
    fire("kept", first)
    assert due("kept") == first + HOUR
    schedules.upsert("kept", echo, every(hours=1, args=[1]))
    assert due("kept") == first + HOUR  # the same moments, so it goes on
    schedules.upsert("kept", echo, every(minutes=1, args=[1]))
    assert due("kept") <= database_now_us("default") + MINUTE
    assert Schedule.objects.count() == 1


def test_update_changes_the_given_fields() -> None:
    schedules.create("changes", echo, every(hours=1, args=[1]))
    row = schedules.update("changes", args=[2], overlap="skip")
    assert row.overlap == "skip"
    assert list(schedules.scheduled("changes").args) == [2]
    assert schedules.update("changes", when=Cron("0 3 * * *", tz="UTC", args=[3])).words == (
        "at 03:00 every day, UTC"
    )
    with pytest.raises(InvalidSchedule, match="no option 'arguments'"):
        schedules.update("changes", arguments=[1])
    with pytest.raises(ScheduleNotFound):
        schedules.update("other", args=[2])


def test_delete_removes_schedule_and_ticks() -> None:
    schedules.create("goes", nothing, every(hours=1))
    fire("goes", due("goes"))
    assert schedules.delete("goes")
    assert not schedules.delete("goes")
    assert not Tick.objects.exists()
    with pytest.raises(ScheduleNotFound, match="no schedule 'goes'"):
        schedules.get("goes")


def test_forget_keeps_the_newest_ticks() -> None:
    schedules.create("many", nothing, every(hours=1))
    schedules.create("few", nothing, every(hours=1))
    fire("few", due("few"))
    moments = []
    for _ in range(7):
        moments.append(due("many"))
        fire("many", moments[-1])
    key = schedules.get("many").pk
    assert [Tick.objects.all().forget(key, keep=3, limit=3) for _ in range(3)] == [3, 1, 0]
    assert [moment for _, moment in ticks("many")] == moments[-3:]
    assert len(ticks("few")) == 1


def test_upkeep_reads_schedules_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most have no tick to delete, such as ``once(...)`` after its tick."""
    monkeypatch.setattr("stoker.locks.sweep.AT_ONCE", 2)
    monkeypatch.setattr("stoker.locks.sweep.PAGES", 3)
    when = once(timezone.now() + timedelta(days=1))
    keys = [schedules.create(f"once {number}", nothing, when).pk for number in range(9)]
    Tick.objects.bulk_create(
        Tick(schedule_id=key, moment_us=number, outcome="fired", fired_us=number)
        for key in keys
        for number in range(13 if key == keys[-1] else 1)
    )
    beats: list[int] = []
    leftovers = Leftovers("default", lambda: beats.append(1))
    settings = replace(settings_for(), keep_ticks=10)
    with CaptureQueriesContext(connection) as captured:
        assert leftovers.forget_ticks(settings) == 0
    assert (len(captured), len(beats)) == (6, 3), "two queries and one beat per page"
    assert leftovers.forget_ticks(settings) == 3
    assert leftovers.forget_ticks(settings) == 0, "not again so soon"


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", 5])
def test_invalid_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidSchedule, match="is not a name"):
        schedules.create(name, nothing, every(hours=1))


def test_duplicate_name_is_refused() -> None:
    schedules.create("one", nothing, every(hours=1))
    with pytest.raises(ScheduleExists, match="'one'"):
        schedules.create("one", nothing, every(hours=2))


TOO_EARLY = datetime.fromisoformat("0001-01-01T00:00:00+01:00")
"""In UTC, this is in the year 0."""


@pytest.mark.parametrize(
    ("task", "when", "error", "sentence"),
    [
        (add, lambda: every(hours=1, args=[1]), InvalidSchedule, "does not take these arguments"),
        ("shop.nowhere", lambda: every(hours=1), UnknownTask, "shop.nowhere"),
        (nothing, every, InvalidSchedule, "one unit"),
        (nothing, lambda: every(days=1, hours=1), InvalidSchedule, "one unit"),
        (nothing, lambda: every(hours=-1), InvalidSchedule, "hours=-1 must be a whole number"),
        (nothing, lambda: Cron("61 * * * *"), InvalidSchedule, "bad minute"),
        (nothing, lambda: Cron("* * * * *", tz="Mars"), InvalidSchedule, "no time zone 'Mars'"),
        (nothing, lambda: every(hours=1, misfire="never"), InvalidSchedule, "misfire='never'"),
        (nothing, lambda: every(hours=1, overlap="no"), InvalidSchedule, "overlap='no'"),
        (nothing, lambda: every(hours=1, repeats=0), InvalidSchedule, "repeats=0"),
        (nothing, lambda: every(hours=1, jitter="soon"), InvalidSchedule, "jitter='soon'"),
        (nothing, lambda: every(seconds=1, jitter=1001), InvalidSchedule, "at most 1000 seconds"),
        (nothing, lambda: Cron("*/2 * * * * *", jitter="1h"), InvalidSchedule, "most 2000 seconds"),
        (nothing, lambda: every(hours=1, colour="red"), InvalidSchedule, "no option 'colour'"),
        (nothing, lambda: every(hours=1, moment_as="at"), InvalidSchedule, "does not take"),
        (nothing, lambda: every(hours=1, start=TOO_EARLY), InvalidSchedule, "the range of dates"),
        (nothing, lambda: once(TOO_EARLY), InvalidSchedule, r"outside the range of dates\.$"),
        (echo, lambda: every(hours=1, args=[{1}]), NotSerializable, "is a set"),
        (echo, lambda: "0 3 * * *", InvalidSchedule, "is not a schedule"),
        (int, lambda: every(hours=1), InvalidSchedule, "is not a task"),
    ],
)
def test_invalid_schedule_is_refused_on_create(
    task: Any, when: Callable[[], Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        schedules.create("wrong", task, when())
    assert not Schedule.objects.exists()


def test_stored_schedule_with_a_longer_jitter_fires_and_can_be_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An older version accepted it."""
    with monkeypatch.context() as older:
        older.setattr("stoker.values.ticks.LONGEST_JITTER_TICKS", 86_400)
        schedules.create("shaky", echo, every(seconds=1, jitter=86_400, args=[1]))
    schedules.update("shaky", args=[2], when=schedules.scheduled("shaky"))
    schedules.pause("shaky")
    schedules.resume("shaky")
    row = schedules.get("shaky")
    assert Firing(settings_for()).fire(row.pk, row.due_us) is not None
    with pytest.raises(InvalidSchedule, match="jitter=2000: write at most 1000 seconds"):
        schedules.update("shaky", jitter=2000)
    assert schedules.update("shaky", jitter=1000).jitter_us == 1000 * 10**6


def test_full_clean_checks_a_row_edited_by_hand() -> None:
    row = schedules.create("checked", nothing, Cron("0 3 * * *"))
    row.full_clean()
    row.expression = "0 25 * * *"
    with pytest.raises(ValidationError, match="bad hour"):
        row.full_clean()


def test_package_of_another_schedule_is_refused() -> None:
    schedules.create("first", echo, every(hours=1, args=[1]))
    schedules.create("second", nothing, every(hours=1))
    package = schedules.get("second").package
    Schedule.objects.filter(name="first").update(package=package)
    with pytest.raises(UnreadablePackage, match="signed for another schedule"):
        fire("first", due("first"))
    assert not enqueued()


def test_next_ticks_and_describe_work_without_a_row() -> None:
    after = datetime(2026, 3, 28, tzinfo=UTC)
    moments = schedules.next_ticks(Cron("30 2 * * *", tz="Europe/Berlin"), 3, after=after)
    assert [moment.strftime("%d %H:%M") for moment in moments] == [
        "28 02:30",
        "29 03:00",
        "30 02:30",
    ]
    assert schedules.describe(every(months=1, anchor=datetime(2026, 1, 31, 9), tz="UTC")) == (  # noqa: DTZ001 - of the zone
        "every month on day 31 (or the month's last) at 09:00, UTC"
    )
