"""Names of jobs and schedules: those of the project's functions, not of internal tasks."""

import logging
import pickle
from datetime import timedelta
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.utils import timezone

from stoker import dead_letters, every, schedules
from stoker.contrib.django_q import conf
from stoker.contrib.django_q.calls import call_task
from stoker.contrib.django_q.models import Schedule, Task
from stoker.contrib.django_q.tasks import (
    async_chain,
    async_iter,
    async_task,
    fetch,
    result,
    schedule,
)
from stoker.models import DeadLetter, Job, Step
from stoker.models import Schedule as OwnSchedule
from stoker.schedules import service
from stoker.schedules.fire import Firing
from stoker.testing import drain
from stoker.why import why

from tests.contrib.django_q import functions
from tests.contrib.django_q.test_schedules import fire

pytestmark = pytest.mark.django_db(databases="__all__")
HERE = "tests.contrib.django_q.functions"
CALLS = "stoker.contrib.django_q.calls"


def test_jobs_are_named_after_their_function(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async_task(f"{HERE}.add", 1, hook=f"{HERE}.hook")
        async_task(functions.Till.count, 1)
        async_task(f"{HERE}.fail", ack_failure=True)
        async_task("nowhere.at.all", ack_failure=True)
        async_chain([(f"{HERE}.note", (1,)), (f"{HERE}.note", (2,))])
        iterated = async_iter("math.floor", [1.5, 2.5])
        drain()
    assert result(iterated) == [1, 2]
    wanted = {f"{HERE}.add", f"{HERE}.hook", f"{HERE}.Till.count", f"{HERE}.fail"}
    wanted |= {"nowhere.at.all", f"{HERE}.note", "math.floor"}
    assert {job.task for job in Job.objects.all()} == wanted
    assert {step.label for step in Step.objects.filter(kind="task")} == {
        f"{HERE}.note",
        "math.floor",
    }
    assert {row.task for row in DeadLetter.objects.all()} == {f"{HERE}.fail", "nowhere.at.all"}
    told = StringIO()
    call_command("stoker", "dead", "list", stdout=told)
    call_command("stoker", "dead", "stats", stdout=told)
    assert f"{HERE}.fail" in told.getvalue()
    assert CALLS not in told.getvalue()
    logged = [record.getMessage() for record in caplog.records]
    assert any(f"path={HERE}.fail" in line for line in logged)
    assert any(f"of {HERE}.fail is a dead letter" in line for line in logged)
    assert not any(f"{CALLS}." in line for line in logged)


def test_dead_letter_is_requeued_and_runs() -> None:
    task_id = async_task(f"{HERE}.fail_on", 1, 1, ack_failure=True)
    drain()
    letter = DeadLetter.objects.get()
    assert dead_letters.requeue(letter.pk)
    drain()
    assert fetch(task_id) is not None
    assert Task.objects.filter(func=f"{HERE}.fail_on").count() == 2
    assert {row.exception_class for row in DeadLetter.objects.all()} == {"builtins.ValueError"}


def test_why_explains_a_waiting_function_call() -> None:
    task_id = async_task(f"{HERE}.add", 1)
    answer = why(conf.settings(), UUID(task_id))
    assert answer.task == f"{HERE}.add"
    assert "no task" not in answer.sentence


def test_task_of_a_function_can_be_pickled() -> None:
    task = call_task.under(f"{HERE}.add")
    again = pickle.loads(pickle.dumps(task))
    assert (again.module_path, again.via, again.func) == (task.module_path, task.via, task.func)


def test_stoker_task_at_the_same_path_gets_its_own_arguments() -> None:
    """A function becomes a Stoker task while calls of it are waiting."""
    from tests.app import tasks

    path = tasks.add.module_path
    task_id = async_task(path, 2, 3)
    assert Job.objects.get().task == path
    drain()
    assert result(task_id) == 5
    direct = tasks.add.enqueue(3, 4)
    drain()
    assert tasks.add.get_result(direct.id).return_value == 7


def names() -> list[str]:
    rows = OwnSchedule.objects.using(conf.database()).order_by("name")
    return [row.name for row in rows]


def test_schedules_have_unique_readable_names() -> None:
    row = schedule(f"{HERE}.add", 1, name="nightly", schedule_type=Schedule.DAILY)
    assert names() == ["nightly"]
    assert schedules.get("nightly", backend=conf.alias()).task == f"{HERE}.add"
    row.name = "hourly"
    row.save()
    assert names() == ["hourly"]
    Schedule.objects.filter(pk=row.pk).update(name="daily")
    assert names() == ["daily"]
    again = Schedule.objects.create(func=f"{HERE}.add", name="daily", schedule_type="D")
    unnamed = Schedule.objects.create(func=f"{HERE}.add", schedule_type="D")
    assert sorted(names()) == sorted(["daily", f"daily #{again.pk}", f"{HERE}.add"])
    Schedule.objects.all().delete()
    assert names() == []
    assert unnamed.pk


def test_renamed_schedule_keeps_its_next_moment() -> None:
    row = schedule(f"{HERE}.add", 1, 1, name="nightly", schedule_type=Schedule.DAILY)
    before = schedules.get("nightly", backend=conf.alias())
    Schedule.objects.filter(pk=row.pk).update(name="daily")
    after = schedules.get("daily", backend=conf.alias())
    assert (after.pk, after.moment_us) == (before.pk, before.moment_us)
    firing = Firing(conf.settings())
    firing.fire(after.pk, int((timezone.now() + timedelta(seconds=1)).timestamp() * 1_000_000))
    Schedule.refresh(row.pk)
    drain()
    assert Task.objects.get().result == 2
    assert Schedule.objects.get(pk=row.pk).success()


def test_schedules_created_at_the_same_time_with_one_name_stay_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second one is stored after the first one has looked for schedules of that name."""
    insert, others = service.insert, []

    def inserted(*given: Any) -> Any:
        if not others:
            others.append(None)
            others.append(schedule(f"{HERE}.note", 2, schedule_type=Schedule.DAILY))
        return insert(*given)

    monkeypatch.setattr(service, "insert", inserted)
    first = schedule(f"{HERE}.note", 1, schedule_type=Schedule.DAILY)
    _, second = others
    assert first.own_id != second.own_id
    assert sorted(names()) == [f"{HERE}.note", f"{HERE}.note #{first.pk}"]
    assert fire() == 2
    drain()
    assert sorted(functions.done) == [((1,), {}), ((2,), {})]
    second.delete()
    assert names() == [f"{HERE}.note #{first.pk}"]
    first.save()
    assert names() == [f"{HERE}.note"]


def test_schedule_keeps_its_name_if_both_names_of_its_row_are_taken() -> None:
    row = schedule(f"{HERE}.add", 1, name="nightly", schedule_type=Schedule.DAILY)
    for name in ("daily", f"daily #{row.pk}"):
        schedules.create(name, call_task, every(days=1, args=[{}, []]), backend=conf.alias())
    Schedule.objects.filter(pk=row.pk).update(name="daily", args="2")
    assert sorted(names()) == sorted(["daily", f"daily #{row.pk}", "nightly"])
    own = schedules.scheduled("nightly", backend=conf.alias())
    assert own.args[-1] == [[2], {}]
