"""Due ticks of many schedules fire in one transaction."""

import uuid
from collections.abc import Callable, Collection
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from stoker import every, schedules
from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.exceptions import StokerError
from stoker.models import Job, Schedule, Tick
from stoker.schedules.fire import Firing, Overtaken
from stoker.schedules.ticking import Ticks
from stoker.testing import drain, enqueued

from tests.app.tasks import add
from tests.integration.test_schedules import HOUR, due, ticks

pytestmark = pytest.mark.django_db(transaction=True)

MOST_STATEMENTS = {"postgresql": 7, "sqlite": 9, "mysql": 9}
"""Maximum per batch. Savepoints and BEGIN are not counted."""


def put(count: int, **options: Any) -> list[UUID]:
    made = [
        schedules.create(f"s{number}", add, every(hours=1, args=[number, 1], **options))
        for number in range(count)
    ]
    return [row.pk for row in made]


def fire_together(ids: Collection[UUID], now_us: int) -> set[UUID]:
    return Firing(settings_for("default")).fire_together(ids, now_us)


def test_due_ticks_enqueue_one_job_each() -> None:
    ids = put(3, priority=7)
    moments = [due(f"s{number}") for number in range(3)]
    later = max(moments) + 5
    assert fire_together(ids, min(moments) - 1) == set()
    assert fire_together(ids, later) == set(ids)
    assert fire_together(ids, later) == set()
    assert [due(f"s{number}") for number in range(3)] == [moment + HOUR for moment in moments]
    assert sorted((job.args, job.priority) for job in enqueued()) == [((n, 1), 7) for n in range(3)]
    assert sorted(one.result.return_value for one in drain().succeeded) == [1, 2, 3]
    for number, moment in enumerate(moments):
        row = schedules.get(f"s{number}")
        assert ticks(row.name) == [("fired", moment)]
        assert (row.fired_count, row.last_moment_us) == (1, moment)
        job = Job.objects.get(pk=row.last_job_id)
        assert job.pk == Tick.objects.get(schedule_id=row.pk).job_id


def test_missed_ticks_are_noted() -> None:
    ids = put(2)
    moment = due("s0")
    assert fire_together(ids, moment + 3 * HOUR) == set(ids)
    assert ticks("s0") == [("missed", moment), ("fired", moment + 3 * HOUR)]
    row = schedules.get("s0")
    assert (row.missed_count, row.due_us) == (3, moment + 4 * HOUR)
    assert len(enqueued()) == 2


def test_last_repeat_ends_the_schedule() -> None:
    ids = put(1, repeats=1)
    fire_together(ids, due("s0"))
    row = schedules.get("s0")
    assert (row.repeats_left, row.due_us, row.is_over) == (0, None, True)


def test_schedules_that_need_single_firing_are_left_out_of_a_batch() -> None:
    paused, alive, several, plain = put(4, overlap="skip", misfire="all")
    later = max(due(f"s{number}") for number in range(4))
    assert fire_together([alive], later) == {alive}  # its job has not ended
    schedules.pause("s0", by="alice")
    later += HOUR
    Schedule.objects.filter(pk=plain).update(moment_us=later, due_us=later)
    assert fire_together([paused, alive, several, plain], later) == {plain}
    assert len(enqueued()) == 2


def test_failing_schedule_rolls_back_jobs_of_the_same_transaction() -> None:
    ids = put(3)
    later = max(due(f"s{number}") for number in range(3))
    Schedule.objects.filter(pk=ids[1]).update(priority=1000)
    with pytest.raises((StokerError, ValueError, Exception)):
        fire_together(ids, later)
    assert enqueued() == []
    assert Tick.objects.count() == 0


def test_scheduler_fires_other_schedules_if_one_fails() -> None:
    ids = put(3)
    Schedule.objects.filter(pk=ids[1]).update(priority=1000)
    Schedule.objects.update(due_us=1, moment_us=1)
    settings = settings_for()
    loop = Ticks(settings, broker_for(settings), uuid.uuid4(), lambda: None, lambda _: False)
    loop._fire_all(ids)
    assert sorted(job.args[0] for job in enqueued()) == [0, 2]
    assert loop._troubles.keys() == {ids[1]}
    assert Schedule.objects.get(pk=ids[1]).problem


def test_row_changed_meanwhile_rolls_the_batch_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = put(2)
    later = max(due("s0"), due("s1"))
    call_of = Firing._call_of

    def changed(firing: Firing, row: Schedule, moment_us: int) -> object:
        Schedule.objects.filter(pk=row.pk).update(due_us=moment_us + 1)
        return call_of(firing, row, moment_us)

    monkeypatch.setattr(Firing, "_call_of", changed)
    with pytest.raises(Overtaken):
        fire_together(ids, later)
    assert enqueued() == []


def test_batch_takes_the_same_statements_however_many_schedules() -> None:
    counts = []
    for count in (2, 20):
        Schedule.objects.all().delete()
        ids = put(count)
        later = max(due(f"s{number}") for number in range(count))
        counts.append(_statements(lambda: fire_together(ids, later)))  # noqa: B023 - called at once
    assert counts[0] == counts[1]
    assert len(counts[1]) <= MOST_STATEMENTS[connection.vendor], counts[1]


def _statements(call: Callable[[], object]) -> list[str]:
    found: list[str] = []

    def note(execute: Callable[..., object], sql: object, *arguments: object) -> object:
        text = str(sql).strip()
        if not text.startswith(("NOTIFY", "SAVEPOINT", "RELEASE")):
            found.append(text.split("(")[0][:40])
        return execute(sql, *arguments)

    with connection.execute_wrapper(note):
        call()
    return found
