"""The script of the guide for Celery projects that converts the rows of `django_celery_beat`."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stoker import schedules

from tests.docs.pages import DOCS, steps_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]


def row(name: str, **values: Any) -> SimpleNamespace:
    """Return a PeriodicTask with these values."""
    empty = dict.fromkeys(
        ("crontab", "interval", "queue", "one_off", "start_time", "expires", "expire_seconds")
    )
    known = {"name": name, "task": "tests.app.tasks.nothing", "args": "[]", "kwargs": "{}"}
    return SimpleNamespace(**{**empty, **known, **values})


def crontab(**values: str) -> SimpleNamespace:
    """Return a CrontabSchedule that restricts these fields."""
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    return SimpleNamespace(**{**dict.fromkeys(names, "*"), "timezone": "UTC", **values})


def test_rows_are_converted_unless_their_meaning_would_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Celery needs both days, and cron one of them."""
    rows = [
        row("nightly", crontab=crontab(minute="30", hour="2")),
        row("weekdays", crontab=crontab(day_of_week="1-5")),
        row("first monday", crontab=crontab(day_of_month="1-7", day_of_week="1")),
        row("often", interval=SimpleNamespace(period="minutes", every=5)),
        row("once", crontab=crontab(), one_off=True),
    ]
    models = ModuleType("django_celery_beat.models")
    manager = SimpleNamespace(filter=lambda enabled: rows)
    vars(models)["PeriodicTask"] = SimpleNamespace(objects=manager)
    monkeypatch.setitem(sys.modules, "django_celery_beat", ModuleType("django_celery_beat"))
    monkeypatch.setitem(sys.modules, "django_celery_beat.models", models)
    page = DOCS / "upgrading/from-celery.md"
    (script,) = [
        step.text
        for step in steps_of(page)
        if step.kind == "python" and "django_celery_beat" in step.text
    ]
    exec(compile(script, str(page), "exec"), {})  # noqa: S102 - our own page
    assert {one.name for one in schedules.find()} == {"nightly", "weekdays", "often"}
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" (")[0] for line in said] == [
        "not converted: first monday",
        "not converted: once",
    ]
    assert "Celery needs both" in said[0]
