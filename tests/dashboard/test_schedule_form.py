"""The form for a schedule in the dashboard."""

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from stoker import every, schedules
from stoker.exceptions import ScheduleNotFound
from stoker.models import BulkOperation
from stoker.tasks.schedules import Cron

from tests.app import payments, tasks
from tests.dashboard.conftest import PREFIX

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

RULE = {
    "name": "report", "task": "tests.app.tasks.add", "kind": "cron", "expression": "30 2 * * 1",
    "tz": "UTC", "args": "[1, 2]", "kwargs": "{}", "repeats": "-1", "misfire": "once",
    "overlap": "allow",
}  # fmt: skip
MAY_CHANGE = ("view_schedule", "view_job", "change_schedule")


def fields_of(page: str) -> dict[str, str]:
    """Return the values of the form."""
    areas = re.findall(r'<textarea[^>]*name="(\w+)"[^>]*>\s*(.*?)</textarea>', page, re.DOTALL)
    inputs = re.findall(r'<input[^>]*name="(\w+)" value="([^"]*)"', page)
    return {name: html.unescape(text) for name, text in (*inputs, *areas)}


def test_schedule_is_previewed_and_added(anna: Client) -> None:
    address = f"{PREFIX}schedules/add/"
    assert f'href="{address}"' in anna.get(f"{PREFIX}schedules/").content.decode()
    page = anna.post(address, {**RULE, "preview": "1"}).content.decode()
    assert "Monday" in page
    assert page.count("02:30:00 UTC") >= 5
    with pytest.raises(ScheduleNotFound):
        schedules.get("report")
    response: Any = anna.post(address, {**RULE, "because": "for the board"}, follow=True)
    row = schedules.get("report")
    assert response.redirect_chain == [(f"{PREFIX}schedules/{row.pk}/", 302)]
    assert "The schedule report is added." in response.content.decode()
    entry = BulkOperation.objects.get()
    assert (entry.operation, entry.by, entry.because) == ("add-schedule", "anna", "for the board")
    assert entry.filters == {"target": "report"}


def test_schedule_is_changed_and_keeps_its_secrets(who_may: Callable[..., Client]) -> None:
    call = {"password": payments.PASSWORD, "more": payments.MORE}
    rule = every(hours=1, args=[7, payments.IBAN], kwargs=call)
    row = schedules.create("pay", payments.pay, rule)
    changer, address = who_may(*MAY_CHANGE), f"{PREFIX}schedules/{row.pk}/edit/"
    assert address in changer.get(f"{PREFIX}schedules/{row.pk}/").content.decode()
    page = changer.get(address).content.decode()
    assert not [one for one in payments.SECRETS if one in page]
    fields = {**RULE, **fields_of(page), "kind": "interval", "count": "2", "unit": "hours"}
    assert changer.post(address, fields).status_code == 302
    kept = schedules.scheduled("pay")
    assert (kept.args, kept.kwargs) == ((7, payments.IBAN), call)
    assert kept.count == 2  # type: ignore[union-attr]
    entry = BulkOperation.objects.get()
    assert (entry.operation, entry.filters) == ("change-schedule", {"target": "pay"})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": ""}, "This field is required"),
        ({"expression": "99 * * * *"}, "99"),
        ({"task": "no.such.task"}, "no.such"),
        ({"args": "[1]"}, "cannot be called with these arguments"),
        ({"name": "taken"}, "taken"),
    ],
)
def test_impossible_schedules_are_refused_in_the_form(
    changes: dict[str, str], problem: str, anna: Client
) -> None:
    schedules.create("taken", tasks.nothing, every(hours=1))
    response = anna.post(f"{PREFIX}schedules/add/", {**RULE, **changes})
    assert response.status_code == 200
    alerts = re.findall(r'role="alert">(.*?)</(?:ul|span)>', response.content.decode(), re.DOTALL)
    assert [one for one in alerts if problem in one]
    assert len(schedules.find()) == 1


def test_schedule_that_code_declares_is_not_changed(anna: Client) -> None:
    schedules.create("declared", tasks.nothing, Cron("0 3 * * *"))
    schedules.find().update(source="code")
    row = schedules.get("declared")
    assert "edit/" not in anna.get(f"{PREFIX}schedules/{row.pk}/").content.decode()
    assert anna.get(f"{PREFIX}schedules/{row.pk}/edit/").status_code == 400
