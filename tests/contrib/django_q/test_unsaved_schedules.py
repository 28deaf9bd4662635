"""Rows of ``Schedule`` that were written without ``save()``."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from stoker.brokers.adapters import broker_for
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler.scheduler import Upkeep
from stoker.contrib.django_q import conf
from stoker.contrib.django_q.models import Schedule
from stoker.contrib.django_q.models.schedule import reflect_unsaved
from stoker.testing import drain

from tests.contrib.django_q import functions
from tests.contrib.django_q.test_names import names
from tests.contrib.django_q.test_schedules import fire

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
HERE = "tests.contrib.django_q.functions"


def do_upkeep() -> None:
    settings = conf.settings()
    Upkeep(Plan(), settings, broker_for(settings), lambda: None).run()


def insert(**values: Any) -> None:
    """Write a row with a plain model, as a data migration does."""
    state = MigrationExecutor(connections[conf.database()]).loader.project_state()
    plain = state.apps.get_model("stoker_django_q", "Schedule")
    plain.objects.using(conf.database()).create(**values)


def test_row_of_a_fixture_runs(tmp_path: Path) -> None:
    fields = {"func": f"{HERE}.note", "args": "1", "next_run": "2020-01-01T00:00:00Z"}
    row = {"model": "stoker_django_q.schedule", "pk": 900, "fields": fields}
    path = tmp_path / "schedules.json"
    path.write_text(json.dumps([row]))
    call_command("loaddata", path, database=conf.database(), verbosity=0)
    do_upkeep()
    assert fire() == 1
    drain()
    assert functions.done == [((1,), {})]


def test_row_of_a_data_migration_runs() -> None:
    insert(func=f"{HERE}.note", name="nightly", schedule_type=Schedule.DAILY)
    call_command("migrate", "stoker_django_q", database=conf.database(), verbosity=0)
    assert names() == ["nightly"]
    assert fire() == 1


def test_flush_empties_the_tables() -> None:
    """``flush`` sends ``post_migrate``, and Django runs it after each TransactionTestCase."""
    insert(func=f"{HERE}.note", schedule_type=Schedule.DAILY)
    call_command("flush", database=conf.database(), interactive=False, verbosity=0)
    assert not Schedule.objects.exists()


def test_row_without_a_key_after_bulk_create_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Schedule.objects.create(func=f"{HERE}.note", schedule_type=Schedule.DAILY)
    kind = type(connections[conf.database()].features)
    monkeypatch.setattr(kind, "can_return_rows_from_bulk_insert", False)
    Schedule.objects.bulk_create([Schedule(func=f"{HERE}.add", schedule_type=Schedule.DAILY)])
    assert names() == [f"{HERE}.add", f"{HERE}.note"]
    assert Schedule.objects.get(pk=before.pk).own_id == before.own_id


def test_row_with_a_wrong_value_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    insert(func=f"{HERE}.note", args="1, two")
    insert(func="f" * 256)
    insert(func=f"{HERE}.note", name="good", schedule_type=Schedule.DAILY)
    insert(func=f"{HERE}.note", name="over", repeats=0)
    insert(func=f"{HERE}.note", name="stopped", next_run=None)
    assert reflect_unsaved(conf.settings()) == 1
    assert names() == ["good"]
    assert "cannot run: args='1, two' cannot be read" in caplog.text
    assert reflect_unsaved(conf.settings()) == 0


def test_row_that_was_saved_meanwhile_is_left_alone() -> None:
    insert(func=f"{HERE}.note", name="nightly", schedule_type=Schedule.DAILY)
    row = Schedule.objects.get()
    assert reflect_unsaved(conf.settings(), row.save) == 0
    assert names() == ["nightly"]
