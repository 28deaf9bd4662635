"""Schedules in a project's own tests."""

from datetime import timedelta

import pytest

from stoker import every, schedules
from stoker.testing import declare, drain, enqueued, fire_due

from tests.app.tasks import add

pytestmark = pytest.mark.django_db


def test_what_is_due_until_a_moment_is_enqueued() -> None:
    schedules.create("adds", add, every(hours=1, args=[1, 2]))
    schedules.create("another", add, every(hours=1, args=[3, 4]))
    assert fire_due() == []
    moments = fire_due(timedelta(hours=3), name="adds")
    assert len(moments) == 3
    assert moments == sorted(moments)
    assert [job.args for job in enqueued()] == [(1, 2)] * 3
    assert [ran.result.return_value for ran in drain().succeeded] == [3, 3, 3]
    assert len(fire_due(timedelta(hours=3))) == 3


def test_declared_ones_are_there_when_they_are_asked_for() -> None:
    declare()
    assert list(schedules.find()) == []
