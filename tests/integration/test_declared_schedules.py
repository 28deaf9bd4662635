"""Declared schedules: added, changed and removed with the code, by the newest edition only."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connection
from django.db.models.signals import post_init
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from stoker import Cron, every, once, schedules, task
from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.exceptions import InvalidSchedule, InvalidTaskOption, PackageError, ScheduleExists
from stoker.jobs.envelope import WRONG_KEY
from stoker.models import Edition, Schedule, Tick
from stoker.schedules.declare import Declared, Declaring, find_declared, problems
from stoker.schedules.fire import Firing
from stoker.schedules.ticking import Ticks
from stoker.store.written import DatabaseNow, microseconds
from stoker.tasks.schedules import Scheduled, scheduled_tasks
from stoker.testing import enqueued

from tests.app.tasks import add, echo, nothing

pytestmark = pytest.mark.django_db(transaction=True)

HOURLY = every(hours=1)


def edition(**declared: Scheduled) -> Declaring:
    """Return a process of a cluster whose code declares these schedules."""
    settings = settings_for("default")
    return Declaring(
        settings, [Declared(name, "code", nothing, when) for name, when in declared.items()]
    )


def names() -> set[str]:
    return set(Schedule.objects.values_list("name", flat=True))


def rules() -> dict[str, int]:
    return dict(Schedule.objects.values_list("name", "count"))


def let_die(*editions: Declaring) -> None:
    for one in editions:
        Edition.objects.filter(digest=one._digest).update(seen_us=0)


def test_declared_schedules_are_added_once_and_keep_their_state() -> None:
    one = edition(hourly=HOURLY, daily=every(days=1))
    one.sync()
    assert names() == {"hourly", "daily"}
    schedules.pause("hourly", by="ada")
    before = list(Schedule.objects.order_by("pk").values())
    one.sync()
    edition(hourly=HOURLY, daily=every(days=1)).sync()
    assert list(Schedule.objects.order_by("pk").values()) == before


def test_schedule_dropped_from_code_is_removed_and_created_ones_are_kept() -> None:
    schedules.create("row", nothing, HOURLY)
    old, new = edition(hourly=HOURLY, daily=every(days=1)), edition(hourly=HOURLY)
    old.sync()
    new.sync()
    assert names() == {"hourly", "daily", "row"}, "the old edition is alive"
    let_die(old)
    new.sync()
    assert names() == {"hourly", "row"}


def test_schedule_is_not_removed_if_its_ticks_cannot_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = edition(hourly=HOURLY)
    old.sync()
    let_die(old)

    def fail(rows: Any) -> None:
        raise OperationalError("The connection is lost.")

    monkeypatch.setattr(type(Tick.objects.all()), "delete", fail)
    with pytest.raises(OperationalError):
        edition().sync()
    assert names() == {"hourly"}


def test_created_schedules_are_not_read_to_declare_others() -> None:
    for name in ("created", "same name"):
        schedules.create(name, nothing, HOURLY)
    edition(hourly=HOURLY).sync()
    one, read = edition(hourly=HOURLY, **{"same name": HOURLY}), []

    def note(sender: Any, instance: Schedule, **_: Any) -> None:
        read.append(instance.name)

    post_init.connect(note, sender=Schedule)
    try:
        one.sync()
    finally:
        post_init.disconnect(note, sender=Schedule)
    assert sorted(read) == ["hourly", "same name"]


def test_process_looks_again_for_dropped_schedules_after_another_edition() -> None:
    schedules.create("created", nothing, HOURLY)
    one, other = edition(hourly=HOURLY), edition(hourly=HOURLY, added=HOURLY)
    one.sync()
    with CaptureQueriesContext(connection) as queries:
        one.sync()
    read = f"FROM {connection.ops.quote_name(Schedule._meta.db_table)}"
    assert sum(read in one["sql"] for one in queries) == 1
    other.sync()
    assert names() == {"created", "hourly", "added"}
    one.sync()
    let_die(other)
    one.sync()
    assert names() == {"created", "hourly"}


def test_old_edition_does_not_undo_changes_during_rolling_deploy() -> None:
    """Clusters with the old code go on, and one of them restarts in between."""
    old, new = edition(hourly=HOURLY), edition(hourly=every(hours=2), added=HOURLY)
    old.sync()
    schedules.pause("hourly", by="ada")
    new.sync()
    assert rules() == {"hourly": 2, "added": 1}
    for _ in range(2):
        old.sync()
        edition(hourly=HOURLY).sync()
        assert rules() == {"hourly": 2, "added": 1}
    assert schedules.get("hourly").is_paused
    let_die(old)
    new.sync()
    assert rules() == {"hourly": 2, "added": 1}


def test_rollback_to_old_code_restores_its_schedules() -> None:
    old, new = edition(hourly=HOURLY), edition(hourly=every(hours=2))
    old.sync()
    new.sync()
    let_die(new)
    edition(hourly=HOURLY).sync()
    assert rules() == {"hourly": 1}


def test_changed_declaration_keeps_next_moment_and_counts() -> None:
    edition(hourly=every(hours=1, repeats=5)).sync()
    moment = schedules.get("hourly").moment_us
    Schedule.objects.update(repeats_left=3, fired_count=2)
    new = edition(hourly=every(hours=1, repeats=5, overlap="skip"))
    new.sync()
    row = schedules.get("hourly")
    assert (row.moment_us, row.repeats_left, row.fired_count) == (moment, 3, 2)
    assert row.overlap == "skip"


def fire(name: str) -> bool:
    return Firing(settings_for("default")).fire(schedules.get(name).pk) is not None


@pytest.mark.parametrize("name", ["fee", "moved"])
def test_one_time_schedule_that_has_fired_does_not_fire_from_a_new_row(
    name: str, events: list[tuple[str, dict[str, Any]]]
) -> None:
    """Its declaration was dropped and is restored by a rollback, or its function has moved."""
    at = datetime.now(UTC) - timedelta(seconds=1)
    first, second = edition(fee=once(at, grace=3600)), edition(hourly=HOURLY)
    first.sync()
    assert fire("fee")
    assert "schedule_past" not in dict(events)
    let_die(first)
    second.sync()
    let_die(second)
    assert names() == {"hourly"}
    edition(**{name: once(at, grace=0)}).sync()
    assert schedules.get(name).is_over
    assert not fire(name)
    assert dict(events)["schedule_past"] == {"name": name}
    assert len(enqueued()) == 1


def test_one_time_schedule_that_is_over_does_not_fire_at_another_past_time(
    events: list[tuple[str, dict[str, Any]]],
) -> None:
    at = datetime.now(UTC) - timedelta(days=1)
    for late in (timedelta(), timedelta(hours=1)):
        events.clear()
        edition(fee=once(at + late)).sync()
        assert dict(events)["schedule_past"] == {"name": "fee"}
        assert not fire("fee")
    edition(fee=once(at + timedelta(days=2))).sync()
    assert not schedules.get("fee").is_over


def test_late_one_time_schedule_fires_if_its_declaration_changes_before() -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    edition(fee=once(at)).sync()
    edition(fee=once(at - timedelta(days=1))).sync()
    assert fire("fee")


def test_declaration_with_name_of_created_schedule_is_refused(
    events: list[tuple[str, dict[str, Any]]],
) -> None:
    schedules.create("hourly", nothing, every(hours=3))
    one = edition(hourly=HOURLY)
    one.sync()
    one.sync()
    assert rules() == {"hourly": 3}
    assert [name for name, _ in events].count("schedule_refused") == 1


def test_invalid_declaration_is_refused_and_others_are_added(
    events: list[tuple[str, dict[str, Any]]],
) -> None:
    edition(wrong=every(hours=1, args=[1]), right=HOURLY).sync()
    assert names() == {"right"}
    assert ("schedule_refused", "wrong") in [(name, facts.get("name")) for name, facts in events]


def test_declared_schedules_can_be_paused_but_not_changed() -> None:
    edition(hourly=HOURLY).sync()
    for change in (
        lambda: schedules.delete("hourly"),
        lambda: schedules.update("hourly", overlap="skip"),
        lambda: schedules.upsert("hourly", nothing, every(hours=2)),
    ):
        with pytest.raises(ScheduleExists, match="declared in the code"):
            change()
    assert schedules.pause("hourly").is_paused
    assert not schedules.resume("hourly").is_paused


def test_schedules_are_declared_by_tasks_and_settings() -> None:
    made = task(schedule=[Cron("@daily"), every(hours=1, name="often")])(declared_function)
    try:
        settings = replace(
            settings_for("default"), schedules=(("of settings", nothing.module_path, HOURLY),)
        )
        path = made.module_path
        found = [
            (one.name, one.source)
            for one in find_declared(settings)
            if one.task in {made, nothing.module_path}  # other tests declare some, too
        ]
        assert found == [("of settings", "settings"), (path, "code"), ("often", "code")]
        assert problems(settings, find_declared(settings)) == []
    finally:
        scheduled_tasks.clear()


def declared_function() -> None:
    """Do nothing."""


def test_problems_names_duplicates_unknown_tasks_and_wrong_arguments() -> None:
    settings = settings_for("default")
    found = problems(
        settings,
        [
            Declared("twice", "code", nothing, HOURLY),
            Declared("twice", "code", nothing, HOURLY),
            Declared("absent", "settings", "shop.tasks.nowhere", HOURLY),
            Declared("arguments", "code", add, HOURLY),
        ],
    )
    assert len(found) == 3
    assert "schedules have the name 'twice'" in found[0]
    assert "shop.tasks.nowhere" in found[1]
    assert "does not take these arguments" in found[2]


def test_schedules_setting_is_read_and_checked() -> None:
    wanted = {"night": {"task": "tests.app.tasks.nothing", "schedule": Cron("0 3 * * *")}}
    with override_settings(TASKS=with_schedules(wanted)):
        assert settings_for("default").schedules[0][0] == "night"
    for wrong in ([], {"night": Cron("0 3 * * *")}, {"night": {"task": "a.b"}}):
        with override_settings(TASKS=with_schedules(wrong)), pytest.raises(Exception, match="must"):
            settings_for("default")


def with_schedules(value: Any) -> dict[str, Any]:
    options = {"SCHEDULES": value}
    return {"default": {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": options}}


def test_task_option_schedule_must_be_a_rule() -> None:
    with pytest.raises((InvalidSchedule, InvalidTaskOption), match="schedule='0 3"):
        task(schedule="0 3 * * *")(declared_function)  # type: ignore[call-overload] # on purpose


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_schedules_are_signed_again_after_key_rotation(serializer: str) -> None:
    """A package signed with a fallback key is signed again with the current key."""
    options = {"SERIALIZER": serializer}
    tasks = {"default": {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": options}}
    with override_settings(TASKS=tasks):
        change_keys()


def change_keys() -> None:
    with override_settings(SECRET_KEY="old"):
        schedules.create("kept", echo, every(hours=1, args=["kept"]))
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=["old"]):
        edition().reseal()
    with override_settings(SECRET_KEY="new"):
        assert list(schedules.scheduled("kept").args) == ["kept"]
        before = schedules.get("kept").package
        edition().reseal()
        assert schedules.get("kept").package == before


def old_cluster_tries(name: str, late_seconds: float = 1.0) -> Schedule:
    """Let a cluster with the old settings try to fire a due schedule. Return its row."""
    Schedule.objects.filter(name=name).update(due_us=DatabaseNow() - microseconds(late_seconds))
    settings = settings_for("default")
    with override_settings(SECRET_KEY="old"):
        ticks = Ticks(settings, broker_for(settings), uuid4(), lambda: None, lambda _: False)
        key = schedules.get(name).pk
        ticks._within_bounds(key, partial(Firing(settings).fire, key))
    return schedules.get(name)


@pytest.mark.parametrize("cause", ["key", "serializer"])
def test_declared_schedule_that_cannot_be_opened_is_written_again(cause: str) -> None:
    """This process has neither the key nor the serializer of the row."""
    when = every(hours=1, args=["hourly"])
    settings = settings_for("default")
    with signed_anew(cause):
        Declaring(settings_for("default"), [Declared("hourly", "code", echo, when)]).sync()
        schedules.create("by hand", echo, when)
    before = schedules.get("hourly")
    declaring = Declaring(settings, [Declared("hourly", "code", echo, when)])
    with override_settings(SECRET_KEY="old"):
        declaring.sync()
        after = schedules.get("hourly")
        assert list(schedules.scheduled("hourly").args) == ["hourly"]
        assert (after.pk, after.due_us) == (before.pk, before.due_us)
        declaring.sync()
        assert schedules.get("hourly").package == after.package, "it is written once"
        with pytest.raises(PackageError):
            schedules.scheduled("by hand")
        schedules.upsert("by hand", echo, every(hours=2, args=["again"]))
        assert list(schedules.scheduled("by hand").args) == ["again"]


@pytest.mark.parametrize("cause", ["key", "serializer"])
def test_old_cluster_does_not_pause_schedules_that_a_new_one_has_signed(cause: str) -> None:
    """This happens in a rolling deploy that changes SECRET_KEY or SERIALIZER."""
    with signed_anew(cause):
        schedules.create("shared", echo, every(hours=1, args=["shared"]))
    row = old_cluster_tries("shared")
    assert row.problem
    assert not row.is_paused
    with signed_anew(cause):
        Firing(settings_for("default")).fire(row.pk)
    assert (schedules.get("shared").fired_count, schedules.get("shared").problem) == (1, "")


@pytest.mark.parametrize("cause", ["key", "serializer"])
def test_schedule_paused_by_a_cluster_that_cannot_open_it_is_resumed(
    cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause by a person, or for another reason, stays."""
    monkeypatch.setattr(Ticks, "_is_given_up", lambda *_: True)  # the grace period is over
    with signed_anew(cause):
        for name in ("unread", "by ada", "gone"):
            schedules.create(name, echo, every(hours=1, args=[name]))
    schedules.pause("by ada", by="ada", because=WRONG_KEY.format(name="package"))
    schedules.pause("gone", by="stoker", because="There is no task 'shop.gone'.")
    paused = old_cluster_tries("unread", late_seconds=3600)
    assert (paused.is_paused, paused.paused_by) == (True, "stoker")
    with signed_anew(cause):
        edition().reseal()
    assert [one.name for one in Schedule.objects.filter(is_paused=False)] == ["unread"]
    assert schedules.get("unread").due_us is not None
    assert not schedules.get("unread").problem


def signed_anew(cause: str) -> Any:
    """Return the settings of the new release."""
    if cause == "key":
        return override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=["old"])
    options = {"SERIALIZER": "pickle"}
    tasks = {"default": {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": options}}
    return override_settings(SECRET_KEY="old", TASKS=tasks)


@pytest.mark.mariadb
def test_name_that_the_database_takes_for_another_is_told_once(
    events: list[tuple[str, dict[str, Any]]],
) -> None:
    one = edition(hourly=HOURLY, Hourly=HOURLY)
    for _ in range(2):
        one.sync()
    (added,) = names()
    told = [facts for name, facts in events if name == "schedule_refused"]
    assert [facts["because"] for facts in told] == [
        f"the database takes its name for {added!r}: rename one of them"
    ]
    assert {added, told[0]["name"]} == {"hourly", "Hourly"}
