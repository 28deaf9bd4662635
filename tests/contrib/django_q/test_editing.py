"""Editing the arguments of a job does not change which function or hook it calls."""

import pytest

from stoker import dead_letters, every, schedules
from stoker.conf import settings_for
from stoker.contrib.django_q.calls import call_task
from stoker.contrib.django_q.models import Task
from stoker.contrib.django_q.tasks import async_task, result
from stoker.jobs.change import Change, change
from stoker.models import DeadLetter, Job
from stoker.testing import drain

from tests.contrib.django_q import functions

pytestmark = pytest.mark.django_db(databases="__all__")
HERE = "tests.contrib.django_q.functions"
NOTE = {"func": f"{HERE}.note"}


def edit(task_id: str, wanted: Change) -> str:
    """Change a waiting job, and return why that is refused."""
    job = Job.objects.get(pk=task_id)
    (changed,) = change(settings_for(), [job.pk], wanted)
    return changed.refusal


@pytest.mark.parametrize(
    "other", [NOTE, {"func": f"{HERE}.add", "hook": f"{HERE}.note"}], ids=["function", "hook"]
)
def test_editor_cannot_choose_what_a_waiting_job_calls(other: dict[str, str]) -> None:
    task_id = async_task(f"{HERE}.add", 1, 2)
    said = edit(task_id, Change(args=[other, [[1], {}]]))
    assert said == "The first argument says which function the job calls, so it cannot be changed."
    drain()
    assert result(task_id) == 3
    assert functions.done == []


def test_editor_can_choose_the_arguments_of_the_function() -> None:
    task_id = async_task(f"{HERE}.add", 1, 2)
    assert edit(task_id, Change(args=[{"func": f"{HERE}.add"}, [[3, 4], {}]])) == ""
    drain()
    assert result(task_id) == 7


def test_editor_cannot_choose_what_a_requeued_job_calls() -> None:
    async_task(f"{HERE}.fail", ack_failure=True)
    drain()
    letter = DeadLetter.objects.get()
    answer = dead_letters.requeue(letter.pk, args=[NOTE, [[1], {}]])
    assert answer.job_id is None
    assert "so it cannot be changed" in answer.because
    assert dead_letters.requeue(letter.pk).job_id is not None


def test_editor_of_a_schedule_cannot_choose_what_its_jobs_call() -> None:
    spec = {**NOTE, "hook": f"{HERE}.note"}
    schedules.create("anything", call_task, every(minutes=1, args=[spec, [[1], {}]]))
    schedules.run_now("anything")
    drain()
    assert functions.done == []
    failure = Task.objects.get()
    assert not failure.success
    assert f"but its arguments name '{HERE}.note'" in failure.result


def test_editor_of_a_schedule_cannot_choose_a_hook_with_the_path_of_our_task() -> None:
    spec = {"func": call_task.module_path, "hook": f"{HERE}.note"}
    schedules.create("anything", call_task, every(minutes=1, args=[spec, [[], {}]]))
    schedules.run_now("anything")
    drain()
    assert functions.done == []


def test_arguments_of_the_function_are_not_copied() -> None:
    """Some may be hidden, and the other argument is shown as it is."""
    task_id = async_task(f"{HERE}.sign_in", "alice", "the password")
    said = edit(task_id, Change(arguments={"spec": "{arguments}"}))
    assert said == "It calls a function by its path: such a call can only be edited alone."
