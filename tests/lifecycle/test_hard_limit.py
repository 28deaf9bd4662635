"""A job's hard time-out applies to its task's function and the serialisation of its return value,
and to nothing before or after them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.conf import settings_for
from stoker.jobs import execute
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Attempted, Succeeded
from stoker.jobs.package import Sealer
from stoker.jobs.running import Running
from stoker.signals import post_execute_in_worker, pre_execute

from tests.app import atomic, chaos, tasks

pytestmark = pytest.mark.django_db(transaction=True)


class Watched:
    """Steps of an attempt, each with whether the hard time-out applied to it."""

    def __init__(self) -> None:
        self.is_limited = False
        self.steps: dict[str, bool] = {}

    def note(self, step: str) -> None:
        self.steps[step] = self.is_limited

    @contextmanager
    def limit(self) -> Iterator[None]:
        self.is_limited = True
        try:
            yield
        finally:
            self.is_limited = False


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Note the steps before and after a function."""
    watched = Watched()

    def before(**_: Any) -> None:
        watched.note("pre_execute")

    def after(**_: Any) -> None:
        watched.note("post_execute_in_worker")

    def seal(sealer: Sealer, value: Any) -> bytes:
        watched.note("seal_value")
        return seal_value(sealer, value)

    seal_value = Sealer.seal_value
    monkeypatch.setattr(Sealer, "seal_value", seal)
    monkeypatch.setattr(execute, "note_begin", lambda *_: watched.note("note_begin"))
    pre_execute.connect(before)
    post_execute_in_worker.connect(after)
    yield watched
    pre_execute.disconnect(before)
    post_execute_in_worker.disconnect(after)


def run(
    task: Any, function: Any, watched: Watched, *args: object, on_loop: bool = False
) -> Attempted:
    """Run a function in place of the task's own, with a time-out."""
    task.using(timeout=600).enqueue(*args)
    (delivery,) = broker_for(settings_for()).claim(ClaimRequest(1, uuid4(), 60))
    executor = Executor(settings_for(), worker_id="me")
    running = executor.open(delivery)
    assert isinstance(running, Running)
    running.function, running.hard_limit = function, watched.limit()
    if on_loop:
        return asyncio.run(executor.run_opened_async(running))
    return executor.run_opened(running)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("on_loop", [False, True])
def test_only_the_function_and_sealing_are_limited(
    is_async: bool, on_loop: bool, watched: Watched
) -> None:
    if on_loop and not is_async:
        pytest.skip("the event loop runs async tasks only")

    async def function() -> None:
        watched.note("function")

    task = chaos.raise_keyboard_interrupt_async if is_async else tasks.nothing
    call = function if is_async else lambda: watched.note("function")
    attempted = run(task, call, watched, on_loop=on_loop)
    assert isinstance(attempted.outcome, Succeeded)
    assert watched.steps == {
        "pre_execute": False,
        "function": True,
        "seal_value": True,
        "post_execute_in_worker": False,
    }


@pytest.mark.parametrize("on_loop", [False, True])
def test_noting_the_start_of_an_at_most_once_job_is_not_limited(
    on_loop: bool, watched: Watched
) -> None:
    async def function(*_: Any) -> None:
        watched.note("function")

    run(chaos.run_once_async, function, watched, "", on_loop=on_loop)
    assert watched.steps["note_begin"] is False
    assert watched.steps["function"] is True


def test_on_commit_hook_of_an_atomic_task_is_not_limited(watched: Watched) -> None:
    def function(*_: Any) -> None:
        watched.note("function")
        transaction.on_commit(lambda: watched.note("on_commit"))

    attempted = run(atomic.add, function, watched, 1)
    assert attempted.is_recorded
    assert watched.steps["function"] is True
    assert watched.steps["on_commit"] is False
