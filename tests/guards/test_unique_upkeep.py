"""Upkeep removes unique keys that are no longer taken, and no others."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from stoker import Unique
from stoker.brokers.adapters import broker_for
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler.scheduler import Upkeep
from stoker.conf import settings_for
from stoker.locks import sweep as leftovers_module
from stoker.locks.sweep import Leftovers
from stoker.models import Job, UniqueKey
from stoker.store.written import database_now_us

from tests.app.tasks import echo
from tests.integration.work import claim, work_off

pytestmark = pytest.mark.django_db


def enqueue(value: object, **options: float) -> str:
    return str(echo.using(unique=Unique("{value}", **options)).enqueue(value).id)


def names() -> set[str]:
    return set(UniqueKey.objects.values_list("name", flat=True))


def leftovers() -> Leftovers:
    return Leftovers("default", beat=lambda: None)


def test_only_keys_of_ended_or_deleted_jobs_are_removed() -> None:
    enqueue("gone")
    enqueue("ended")
    enqueue("in its period", within=3600)
    enqueue("past its period", within=3600)
    work_off()
    Job.objects.filter(package__contains=b"gone").delete()
    UniqueKey.objects.filter(name="unique past its period").update(
        until_us=database_now_us("default") - 1
    )
    enqueue("claimed")
    assert len(claim()) == 1
    enqueue("waits")
    assert leftovers().forget_keys() == 3
    assert names() == {"unique in its period", "unique claimed", "unique waits"}


def test_upkeep_checks_all_pages_and_again_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers_module, "AT_ONCE", 4)
    monkeypatch.setattr(leftovers_module, "PAGES", 2)
    for number in range(21):
        enqueue(number)
        if number % 3:
            work_off()
    kept = names()
    work_off()
    for number in range(0, 21, 3):
        enqueue(number)
    upkeep = leftovers()
    removed = [upkeep.forget_keys() for _ in range(3)]
    assert (sum(removed), removed[2] > 0) == (14, True)
    assert len(names()) == 7
    assert names() <= kept
    work_off()
    assert upkeep.forget_keys() == 0, "once an hour is enough"
    assert leftovers().forget_keys() == 7


def test_upkeep_removes_unused_keys() -> None:
    enqueue("ended")
    work_off()
    Job.objects.update(finished_at=timezone.now() - timedelta(days=400))
    settings = settings_for()
    upkeep = Upkeep(Plan(), settings, broker_for(settings), beat=lambda: None)
    upkeep.run()
    assert not UniqueKey.objects.exists()
