"""Schedules over HTTP."""

from typing import Any

import pytest

from stoker import every, schedules
from stoker.models import Schedule

from tests.api.conftest import Caller
from tests.app.tasks import add

pytestmark = pytest.mark.django_db(transaction=True)


def test_schedule_is_run_paused_and_resumed(anna: Caller) -> None:
    schedules.upsert("sums/nightly", add, every(minutes=5, args=[1, 2]))
    seen = anna.get("schedules/sums/nightly")
    assert (seen["task"], seen["kind"], seen["is_paused"]) == (add.module_path, "interval", False)
    assert seen["rule"]
    made = anna.post("schedules/sums/nightly/run", status=201)
    assert anna.get(f"jobs/{made['job_id']}")["args"] == [1, 2]
    paused = anna.post("schedules/sums/nightly/pause", {"because": "no paper"})
    assert (paused["is_paused"], paused["paused_by"]) == (True, "anna")
    assert (paused["paused_because"], paused["next_moment"]) == ("no paper", None)
    resumed = anna.post("schedules/sums/nightly/resume")
    assert (resumed["is_paused"], resumed["paused_at"]) == (False, None)
    assert resumed["next_moment"]


def test_pages_cover_all_schedules_in_order(anna: Caller) -> None:
    names = [f"schedule {number}" for number in range(5)]
    for name in names:
        schedules.upsert(name, add, every(minutes=5, args=[1, 2]))
    first = anna.get("schedules", limit=3)
    rest = anna.get("schedules", limit=3, after=first["next"])
    assert [one["name"] for page in (first, rest) for one in page["schedules"]] == names
    assert rest["next"] is None
    assert anna.call("GET", "schedules?after=schedule").status_code == 422


def test_unreadable_schedule_is_shown_and_paused_but_not_run(anna: Caller) -> None:
    schedules.upsert("broken", add, every(minutes=5, args=[1, 2]))
    Schedule.objects.update(zone="Nowhere/Land", kind="cron", expression="x", package=b"x")
    assert anna.get("schedules")["schedules"][0]["rule"] == ""
    anna.post("schedules/broken/pause")
    anna.post("schedules/broken/resume", status=409)
    anna.post("schedules/broken/run", status=422)


def test_call_that_the_task_does_not_accept_any_more_is_refused(
    anna: Caller, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    with monkeypatch.context() as unchecked:
        unchecked.setattr("stoker.schedules.rows._check_call", lambda *_: None)
        schedules.create("sums", add, every(minutes=5, args=[1]))
    assert "second" in anna.post("schedules/sums/run", status=409)["detail"]
    schedules.update("sums", args=[1, 2])
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["elsewhere"]}}
    assert "queue" in anna.post("schedules/sums/run", status=422)["detail"].lower()


def test_unknown_schedule_gives_404(anna: Caller) -> None:
    assert anna.call("GET", "schedules/nowhere").status_code == 404
    for word in ("run", "pause", "resume"):
        anna.post(f"schedules/nowhere/{word}", status=404)
