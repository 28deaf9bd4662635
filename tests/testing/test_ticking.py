"""Schedules in a project's own tests: `fire_due` and `declare`."""

from datetime import timedelta

import pytest

from stoker import every, schedules
from stoker.testing import declare, drain, enqueued, fire_due

from tests.app.tasks import add

pytestmark = pytest.mark.django_db


def test_fire_due_enqueues_all_ticks_until_a_moment() -> None:
    schedules.create("adds", add, every(hours=1, args=[1, 2]))
    schedules.create("another", add, every(hours=1, args=[3, 4]))
    assert fire_due() == []
    moments = fire_due(timedelta(hours=3), name="adds")
    assert len(moments) == 3
    assert moments == sorted(moments)
    assert [job.args for job in enqueued()] == [(1, 2)] * 3
    assert [ran.result.return_value for ran in drain().succeeded] == [3, 3, 3]
    assert len(fire_due(timedelta(hours=3))) == 3


def test_fire_due_releases_held_ticks() -> None:
    schedules.create("adds", add, every(hours=1, args=[1, 2], overlap="queue"))
    first, second = schedules.get("adds").due_us, None
    assert len(fire_due(timedelta(hours=2))) == 1
    second = schedules.ticks("adds")[0].moment_us
    assert fire_due() == [], "the job of the first tick has not ended"
    assert len(drain()) == 1
    assert [one.timestamp() * 1e6 for one in fire_due()] == [second]
    assert first is not None
    assert second > first
    assert len(drain()) == 1
    assert fire_due() == []


def test_declare_without_declarations_creates_no_schedule() -> None:
    declare()
    assert list(schedules.find()) == []
