"""``manage.py stoker schedules``."""

import json
import re
from datetime import datetime
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from stoker import Cron, every, schedules
from stoker.models import Schedule
from stoker.testing import enqueued

from tests.app.tasks import add, nothing

pytestmark = pytest.mark.django_db(transaction=True)


def told(*arguments: str) -> str:
    output = StringIO()
    call_command("stoker", "schedules", *arguments, stdout=output, no_color=True)
    return output.getvalue()


def plain(*arguments: str) -> Any:
    return json.loads(told(*arguments, "--json"))


def test_list_shows_rules_states_and_next_ticks() -> None:
    assert told("list") == "No schedules.\n"
    schedules.create("nightly", add, Cron("30 4 * * *", tz="Europe/Berlin", args=[1, 2]))
    schedules.create("often", nothing, every(minutes=5))
    schedules.pause("often", by="ada", because="the printer is broken")
    text = told("list")
    assert "at 04:30 every day, Europe/Berlin; tests.app.tasks.add" in text
    assert "often  paused by ada: the printer is broken" in text
    nightly, often = plain("list")["schedules"]
    assert [datetime.fromisoformat(moment).hour for moment in nightly["next_ticks"]] == [
        4
    ] * 5  # no change of the clocks is near
    assert (nightly["state"], often["state"]) == ("ticking", "paused")


def test_list_without_rows_counts_declared_schedules(settings: Any) -> None:
    declared = {"hourly": {"task": nothing.module_path, "schedule": every(hours=1)}}
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"SCHEDULES": declared}}}
    assert told("list") == (
        "No schedules in the database yet. 1 is declared in code or settings: clusters add it when "
        "they start (manage.py stoker run).\n"
    )
    assert plain("list") == {"schedules": []}


def test_show_prints_policies_as_they_are_written_in_code() -> None:
    schedules.create("adds", add, every(hours=1, args=[1, 2]))
    text = told("show", "adds")
    for line in (
        "queue             that of the task",
        "if missed         once",
        "Last ticks\n  None.",
    ):
        assert f"\n{line}\n" in text
    assert "if still running  allow\n" in text


def test_list_shows_unreadable_schedules() -> None:
    schedules.create("broken", nothing, every(minutes=5))
    Schedule.objects.update(unit="eons", package=b"rubbish", problem="it is broken")
    assert "it is broken" in told("list")
    assert "'eons' is not a unit" in told("show", "broken")
    assert plain("show", "broken")["schedule"]["args"] is None


def test_schedule_that_cannot_be_run_or_resumed_is_refused_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    with monkeypatch.context() as unchecked:
        unchecked.setattr("stoker.schedules.rows._check_call", lambda *_: None)
        schedules.create("adds", add, every(hours=1, args=[1]))
    with pytest.raises(CommandError, match="second"):
        told("run", "adds")
    told("pause", "adds")
    Schedule.objects.update(zone="Mars/Olympus")
    with pytest.raises(CommandError, match=r"The rule of 'adds' cannot be read: .*Mars/Olympus"):
        told("resume", "adds")
    schedules.create("other", add, every(hours=1, args=[1, 2]))
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["elsewhere"]}}
    with pytest.raises(CommandError, match=r"[Qq]ueue"):
        told("run", "other")


def test_show_run_pause_and_resume_a_schedule() -> None:
    schedules.create("adds", add, every(hours=1, args=[1], kwargs={"second": 2}))
    job_id = plain("run", "adds", "--by", "ada")["id"]
    assert [job.id for job in enqueued()] == [job_id]
    text = told("show", "adds")
    assert "arguments         first=1, second=2" in text
    assert f"manual by ada, job {job_id}" in text
    shown = plain("show", "adds")
    assert len(shown["schedule"]["next_ticks"]) == 5
    assert shown["ticks"][0]["job_id"] == job_id
    assert plain("pause", "adds", "--because", "so")["schedules"][0]["state"] == "paused"
    text = told("show", "adds")
    assert re.search(r"paused +by \w+, \d{4}-\d\d-\d\d .*: so", text)
    assert "Next ticks\n  None is fired until the schedule is resumed.\n" in text
    paused = plain("show", "adds")["schedule"]
    assert (paused["next_ticks"], paused["paused_because"]) == ([], "so")
    assert paused["paused_at"]
    assert told("list").endswith("\n1 schedule\n")
    assert "UTC" in told("resume", "adds")
    with pytest.raises(CommandError, match="no schedule 'other'"):
        told("show", "other")
    with pytest.raises(CommandError, match="no schedule 'other'"):
        told("pause", "adds", "other")
    assert not schedules.get("adds").is_paused
