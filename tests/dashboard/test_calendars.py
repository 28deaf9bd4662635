"""Calendars count the ticks of schedules."""

import pytest
from django.test import Client

from stoker import every, schedules
from stoker.dashboard.calendars import Cell

from tests.app import tasks
from tests.dashboard.conftest import PREFIX

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


def test_ticks_to_come_are_counted_apart_from_past_ones() -> None:
    now = Cell("Monday 10:00", {"fired": 4, "missed": 1, "to-come": 3})
    assert (now.shown, now.to_come, now.kind) == ("5", "3", "missed")
    later = Cell("Monday 11:00", {"to-come": 1})
    assert (later.shown, later.to_come, later.kind) == ("", "1", "to-come")
    assert (Cell("Monday 12:00").shown, Cell("Monday 12:00").to_come) == ("", "")


def test_page_of_a_schedule_marks_ticks_to_come(admin_client: Client) -> None:
    row = schedules.create("refresh", tasks.add, every(hours=1, args=[1, 2]))
    page = admin_client.get(f"{PREFIX}schedules/{row.pk}/").content.decode()
    assert '<span class="cell to-come"><span class="hidden">to come: </span>+1</span>' in page
