"""An attempt that is told to end, in each kind of thread, before, while and after it runs."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from stoker.exceptions import TaskCancelled
from stoker.jobs import interruption as machinery
from stoker.jobs.interruption import Interruption, time_limit

LONG_SECONDS = 60.0

Run = Callable[[Callable[[], object]], object]


@pytest.fixture(autouse=True)
def _listening() -> None:
    machinery.listen()


@pytest.fixture(params=["main thread", "another thread"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a function in that thread, and gives what comes of it."""
    if request.param == "main thread":
        yield lambda function: function()
        return
    with ThreadPoolExecutor(1) as pool:
        yield lambda function: pool.submit(function).result()


def cancel_when(began: threading.Event, interruption: Interruption) -> threading.Thread:
    def wait_and_cancel() -> None:
        assert began.wait(LONG_SECONDS)
        interruption.cancel("enough")
        while interruption.remind():
            time.sleep(0.01)

    thread = threading.Thread(target=wait_and_cancel)
    thread.start()
    return thread


def work_on(began: threading.Event) -> None:
    until = time.monotonic() + LONG_SECONDS
    began.set()
    while time.monotonic() < until:
        time.sleep(0.001)


def test_it_is_raised_with_its_reason_where_the_task_is(run: Run) -> None:
    interruption, began = Interruption(), threading.Event()

    def attempt() -> None:
        with interruption, time_limit(LONG_SECONDS):
            interruption.check()
            work_on(began)

    thread = cancel_when(began, interruption)
    with pytest.raises(TaskCancelled, match="enough") as raised:
        run(attempt)
    thread.join()
    assert interruption.is_behind(raised.value)
    run(lambda: None)  # what comes next is left alone


def test_a_long_call_is_interrupted_in_the_main_thread() -> None:
    interruption, began = Interruption(), threading.Event()

    def attempt() -> None:
        with interruption:
            began.set()
            time.sleep(LONG_SECONDS)

    thread = cancel_when(began, interruption)
    with pytest.raises(TaskCancelled):
        attempt()
    thread.join()


def test_who_comes_too_early_finds_it_out(run: Run) -> None:
    interruption = Interruption()
    interruption.cancel("enough")

    def attempt() -> None:
        with interruption:
            interruption.check()

    with pytest.raises(TaskCancelled, match="enough"):
        run(attempt)


def test_who_comes_too_late_interrupts_nothing(run: Run) -> None:
    interruption = Interruption()

    def attempt() -> int:
        with interruption:
            pass
        interruption.cancel("enough")
        return sum(range(10_000))

    assert run(attempt) == sum(range(10_000))


@pytest.mark.skipif("COVERAGE_PROCESS_START" in os.environ, reason="a tracer moves the last moment")
def test_many_that_come_at_the_last_moment(run: Run) -> None:
    """Either it is raised inside the block, or not at all."""
    told, steps = 0, 1000.0
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(200):
            was_told = bool(run(partial(_end_soon, round(steps))))
            told += was_told
            steps *= 0.7 if was_told else 1.4
    finally:
        sys.setswitchinterval(usual)
    assert 0 < told < 200


def _end_soon(steps: int) -> bool:
    """Whether it was told to end while it ran."""
    interruption, began = Interruption(), threading.Event()
    thread = cancel_when(began, interruption)
    was_told = False
    try:
        with interruption:
            began.set()
            for _ in range(steps):
                pass
    except TaskCancelled:
        was_told = True
    thread.join()
    for _ in range(1000):
        pass
    return was_told


def test_a_coroutine_gets_cancelled_error() -> None:
    interruption, began = Interruption(), threading.Event()

    async def attempt() -> None:
        with interruption.of_coroutine():
            began.set()
            await asyncio.sleep(LONG_SECONDS)

    thread = cancel_when(began, interruption)
    with pytest.raises(asyncio.CancelledError) as raised:
        asyncio.run(attempt())
    thread.join()
    assert interruption.is_behind(raised.value)


def test_another_cancelled_error_is_none_of_its_business() -> None:
    assert not Interruption().is_behind(asyncio.CancelledError())
