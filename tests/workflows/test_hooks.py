"""Hooks are separate jobs, enqueued in the transaction that records their job's outcome."""

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from stoker import InSequence, Unique, task
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.conf import settings_for
from stoker.exceptions import InvalidTaskOption, NotSerializable
from stoker.jobs.execute import Executor
from stoker.jobs.package import sealer_for
from stoker.jobs.record import finish
from stoker.models import Job
from stoker.signals import post_execute
from stoker.testing import drain

from tests.workflows.tasks import DONE, FAILING, double, give_up, note, tell, tell_result

pytestmark = pytest.mark.django_db


@task(max_attempts=2, backoff=0, on_success=tell_result.s("good"), on_failure=tell_result.s("bad"))
def shaky(name: str) -> str:
    return note.func(name)


def test_on_success_receives_the_result() -> None:
    shaky.enqueue("a")
    drain()
    assert DONE == ["a", ("good", "SUCCESSFUL", "a")]


def test_on_failure_runs_once_after_the_last_attempt() -> None:
    FAILING.add("a")
    shaky.enqueue("a")
    drain()
    assert DONE == ["a", "a", ("bad", "FAILED", None)]


def test_hooks_in_using_apply_to_that_call_only() -> None:
    over = tell_result.s("over")
    note.using(on_finish=over).enqueue("a")
    note.enqueue("b")
    give_up.using(on_finish=over, on_success=tell.si("never")).enqueue("c")
    drain()
    assert [one for one in DONE if isinstance(one, str)] == ["a", "b"]
    # A hook has its job's place in the queue; the order within a millisecond is not defined.
    told = {one for one in DONE if not isinstance(one, str)}
    assert told == {("over", "SUCCESSFUL", "a"), ("over", "CANCELLED", None)}
    assert len(DONE) == 4


def test_job_cancelled_while_it_waits_calls_on_failure() -> None:
    result = shaky.enqueue("a")
    assert result.cancel("no")
    drain()
    assert DONE == [("bad", "CANCELLED", None)]


def test_failing_hook_does_not_change_its_job() -> None:
    FAILING.add("hook")
    result = note.using(on_success=note.si("hook")).enqueue("a")
    drain()
    result.refresh()
    assert (result.status, DONE) == ("SUCCESSFUL", ["a", "hook"])


def test_hook_receives_the_value_though_results_are_not_kept(settings: Any) -> None:
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"KEEP_RESULTS": False}}}
    shaky.enqueue("a")
    drain()
    assert DONE == ["a", ("good", "SUCCESSFUL", "a")]
    assert not Job.objects.exists()


def test_id_of_a_job_without_hooks_has_no_mark_bits(django_assert_num_queries: Any) -> None:
    """Bits of the id say that there are no hooks, so no query is needed."""
    result = double.enqueue(1)
    assert not int(result.id.replace("-", ""), 16) & (3 << 60)
    assert settings_for().alias == "default"


@pytest.mark.parametrize("is_delay", [True, False])
def test_hook_waits_for_its_run_after(is_delay: bool) -> None:
    later = timedelta(hours=1) if is_delay else timezone.now() + timedelta(hours=1)
    double.using(on_success=tell.using(run_after=later).si("late")).enqueue(1)
    drain()
    assert DONE == []
    run_after = Job.objects.get(status=None).run_after
    assert run_after is not None
    assert timedelta(minutes=59) < run_after - timezone.now() <= timedelta(hours=1)
    drain(include_deferred=True)
    assert DONE == ["late"]


@pytest.mark.parametrize(
    ("hook", "version"),
    [
        (tell.s("a"), 2),
        (tell.using(run_after=60).s("a"), 3),
        (replace(tell, expires=60).s("a"), 3),
        (note.using(on_failure=tell.si("b")).si("a"), 3),
        (note.using(on_failure=tell.using(run_after=60).si("b")).si("a"), 3),
    ],
)
def test_earlier_clusters_run_only_jobs_whose_hooks_they_know(hook: Any, version: int) -> None:
    """In a rolling deploy they release a job of version 3 to a newer cluster."""
    caller = double.using(on_success=hook)
    caller.enqueue(1)
    caller.enqueue_many([((2,), {}), ((3,), {})])
    packages = Job.objects.values_list("package", flat=True)
    assert [bytes(package)[2] for package in packages] == [version] * 3


@pytest.mark.parametrize("is_moment", [True, False])
def test_hook_expires(is_moment: bool) -> None:
    soon = timezone.now() + timedelta(hours=1) if is_moment else 3600
    double.using(on_success=replace(tell, expires=soon).si("late")).enqueue(1)
    settings = settings_for()
    broker, executor = broker_for(settings), Executor(settings, worker_id="test")
    request = ClaimRequest(1, holder=uuid4(), lease_seconds=60)
    (first,) = broker.claim(request)
    finish(settings, broker, [executor.run(first)])
    (hook,) = broker.claim(request)
    expires_at = sealer_for(settings).open(hook.package).options.expires_at
    assert expires_at == pytest.approx(time.time() + 3600, abs=600)


def test_hook_has_the_hooks_of_its_task() -> None:
    FAILING.add("hook")
    alerted = note.using(on_failure=tell_result.using(run_after=3600).s("alert"))
    double.using(on_success=alerted.si("hook")).enqueue(1)
    drain()
    assert DONE == ["hook"]
    drain(include_deferred=True)
    assert DONE == ["hook", ("alert", "FAILED", None)]


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"on_success": 1}, InvalidTaskOption, "write a task, or a call of one"),
        ({"on_success": tell.s({1})}, NotSerializable, "is set, which cannot be stored"),
        ({"on_finish": double.si()}, TypeError, "does not take these arguments"),
        (
            {"on_finish": note.using(on_failure=double.si()).si("b")},
            TypeError,
            "does not take these arguments",
        ),
    ],
)
def test_invalid_hook_is_refused(
    changes: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        note.using(**changes).enqueue("a")
    assert not Job.objects.exists()


def test_hooks_work_with_guards() -> None:
    guarded = note.using(sequence=InSequence("notes"), on_success=tell_result.s("good"))
    guarded.enqueue("a")
    guarded.enqueue("b")
    drain()
    assert [one for one in DONE if isinstance(one, str)] == ["a", "b"]
    assert len(DONE) == 4


def test_replaced_job_has_the_hooks_of_the_new_call() -> None:
    only = note.using(unique=Unique("note", on_conflict="replace"))
    first = only.enqueue("a")
    second = only.using(on_success=tell_result.s("good")).enqueue("b")
    drain()
    assert first.id == second.id
    assert DONE == ["b", ("good", "SUCCESSFUL", "b")]


def test_post_execute_receives_the_finished_result() -> None:
    heard = []

    def hear(task_result: Any, outcome: Any, **_: Any) -> None:
        heard.append((task_result.status, task_result.is_finished, outcome.kind))

    post_execute.connect(hear)
    try:
        double.enqueue(2)
        drain()
    finally:
        post_execute.disconnect(hear)
    assert heard == [("SUCCESSFUL", True, "succeeded")]


def test_hook_is_enqueued_though_it_is_larger_than_packages_may_be(settings: Any) -> None:
    """Otherwise its job could not be recorded. The limit may have been lowered meanwhile."""
    FAILING.add("a")
    note.using(on_finish=tell.si("x" * 5000)).enqueue("a")
    options = {"MAX_PACKAGE_BYTES": 4096}
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": options}}
    drain()
    assert DONE == ["a", "x" * 5000]
