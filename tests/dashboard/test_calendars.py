"""Calendars count the ticks of schedules."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.utils import timezone

from stoker import every, schedules
from stoker.dashboard.calendars import DAYS, Cell, days_of, hours_of
from stoker.models import Tick
from stoker.values.ticks import as_us

from tests.app import tasks
from tests.dashboard.conftest import PREFIX

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


def test_ticks_to_come_are_counted_apart_from_past_ones() -> None:
    now = Cell("Monday 10:00", {"fired": 4, "missed": 1, "to-come": 3})
    assert (now.shown, now.to_come, now.kind) == ("5", "3", "missed")
    later = Cell("Monday 11:00", {"to-come": 1})
    assert (later.shown, later.to_come, later.kind) == ("", "1", "to-come")
    assert (Cell("Monday 12:00").shown, Cell("Monday 12:00").to_come) == ("", "")


@pytest.mark.parametrize("use_tz", [True, False])
def test_page_of_a_schedule_marks_ticks_to_come(
    use_tz: bool, admin_client: Client, settings: Any
) -> None:
    settings.USE_TZ = use_tz
    row = schedules.create("refresh", tasks.add, every(hours=1, args=[1, 2]))
    page = admin_client.get(f"{PREFIX}schedules/{row.pk}/").content.decode()
    assert '<span class="cell to-come"><span class="hidden">to come: </span>+1</span>' in page


@pytest.mark.parametrize(
    ("zone", "today"),
    [
        ("Europe/Berlin", (2027, 3, 30)),
        ("Europe/Berlin", (2026, 10, 27)),
        ("Australia/Lord_Howe", (2026, 10, 6)),  # by half an hour
        ("Asia/Kathmandu", (2026, 10, 6)),  # UTC+05:45
        ("Pacific/Chatham", (2027, 4, 7)),  # at 03:45
    ],
)
def test_ticks_are_counted_in_local_days_and_hours_when_the_clocks_change(
    zone: str, today: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = schedules.create("refresh", tasks.add, every(minutes=15, args=[1, 2]))
    now = datetime(*today, 12, tzinfo=ZoneInfo(zone))
    moments = [now.astimezone(UTC) - number * timedelta(minutes=15) for number in range(96 * 8)]
    Tick.objects.bulk_create(
        Tick(schedule_id=row.pk, moment_us=as_us(at), outcome="fired", fired_us=as_us(at))
        for at in moments
    )
    monkeypatch.setattr(timezone, "now", lambda: now)
    with timezone.override(zone):
        days = days_of("default", [row])
        hours = hours_of("default", row)
    local = [at.astimezone(now.tzinfo) for at in moments]
    by_day = Counter(f"{at:%a} {at.day}" for at in local)
    fired = [cell.counts["fired"] for cell in days.cells(row.pk)]
    assert fired == [by_day[head] for head in days.heads]
    by_hour = Counter((f"{at:%a} {at.day} {at:%b}", at.hour) for at in local)
    for day in hours[:DAYS]:
        fired = [cell.counts.get("fired", 0) for cell in day["cells"]]
        assert fired == [by_hour[day["title"], hour] for hour in range(24)], day["title"]
