"""The form for a schedule in the dashboard."""

import html
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.utils import timezone

from stoker import every, once, schedules
from stoker.exceptions import ScheduleNotFound
from stoker.models import BulkOperation
from stoker.operations.schedule_form import ScheduleForm
from stoker.tasks.schedules import Cron
from stoker.testing import fire_due

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


def edit(client: Client, name: str, **changes: str) -> None:
    """Post the form of a schedule as a browser does, with these changes."""
    address = f"{PREFIX}schedules/{schedules.get(name).pk}/edit/"
    form: Any = client.get(address).context["form"]
    shown = {one.html_name: "" if one.value() is None else str(one.value()) for one in form}
    assert client.post(address, {**shown, **changes}).status_code == 302


def test_edit_does_not_move_moments_with_fractions_of_a_second(anna: Client) -> None:
    """In the repeated hour of Berlin, the form shows both occurrences alike."""
    berlin = ZoneInfo("Europe/Berlin")
    at = datetime(2037, 10, 25, 2, 30, 7, 123_456, tzinfo=berlin, fold=1)
    terms = {"args": [1, 2], "tz": "Europe/Berlin"}
    schedules.create("trial", tasks.add, once(at, **terms))
    row = schedules.create("rule", tasks.add, Cron("* * * * *", start=at, end=at, **terms))
    before = {name: schedules.get(name) for name in ("trial", "rule")}
    for name, row in before.items():
        edit(anna, name, priority="7")
        after = schedules.get(name)
        assert (after.priority, after.timing, after.due_us) == (7, row.timing, row.due_us)
    edit(anna, "trial", at="2037-10-25 02:30:08")
    assert schedules.get("trial").timing != before["trial"].timing


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2030-03-31 02:30", 2),  # the clocks of Berlin leave this hour out
        ("2030-10-27 02:30", 2),  # they repeat this hour
        ("2030-10-27T02:30:00+02:00", 0),
        ("2030-10-27T02:30:00Z", 2),
    ],
)
def test_moment_without_an_offset_is_in_the_time_zone_of_the_schedule(text: str, hour: int) -> None:
    with timezone.override("Europe/Berlin"):
        form = ScheduleForm({**RULE, "kind": "once", "at": text})
        assert form.is_valid(), form.errors
    at = form.when.instant(form.when.at, "Europe/Berlin")  # type: ignore[union-attr]
    assert at == datetime.fromisoformat(text[:10]).replace(hour=hour, minute=30, tzinfo=UTC)


def test_start_and_end_are_compared_in_the_projects_time_zone_if_none_is_named(
    settings: Any,
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    terms = {"tz": "", "start": "2030-01-01 01:00", "end": "2030-01-01T00:30Z"}
    form = ScheduleForm({**RULE, **terms})
    assert form.is_valid(), form.errors


@pytest.mark.parametrize("name", ["at", "start", "end"])
def test_moment_that_the_time_zone_of_the_schedule_cannot_show_is_refused(
    name: str, anna: Client
) -> None:
    late = {"kind": "once", "at": "2030-01-31 06:00", "tz": "Asia/Tokyo"}
    form = {**RULE, **late, name: "9999-12-31T23:30:00Z"}
    page = anna.post(f"{PREFIX}schedules/add/", form).content.decode()
    assert "is outside the range of dates." in page
    assert not schedules.find().exists()


def test_preview_of_a_schedule_from_the_first_moment_on_shows_no_tick(anna: Client) -> None:
    form = {**RULE, "start": "0001-01-01 00:00", "preview": "1"}
    assert anna.post(f"{PREFIX}schedules/add/", form).status_code == 200


def test_schedule_at_a_time_that_does_not_exist_in_the_projects_time_zone_is_edited(
    anna: Client,
) -> None:
    at = datetime(2030, 3, 31, 2, 30, tzinfo=UTC)
    row = schedules.create("trial", tasks.add, once(at, args=[1, 2], tz="UTC"))
    with timezone.override("Europe/Berlin"):
        edit(anna, "trial", priority="7")
    after = schedules.get("trial")
    assert (after.priority, after.timing, after.due_us) == (7, row.timing, row.due_us)


def test_edit_of_a_fired_one_time_schedule_does_not_fire_it_again(anna: Client) -> None:
    at = timezone.now().replace(microsecond=5) + timedelta(days=1)
    row = schedules.create("trial", tasks.add, once(at, args=[1, 2]))
    fire_due(timedelta(days=2))
    assert schedules.get("trial").is_over
    edit(anna, "trial", args="[3, 4]")
    assert list(schedules.scheduled("trial").args) == [3, 4]
    assert schedules.get("trial").is_over
    assert row.timing == schedules.get("trial").timing


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
