"""Cancelling an attempt in each kind of thread: before, while and after it runs."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from stoker.exceptions import TaskCancelled
from stoker.jobs import running as machinery
from stoker.jobs.running import Interruption, time_limit

LONG_SECONDS = 60.0

Run = Callable[[Callable[[], object]], object]


@pytest.fixture(autouse=True)
def _listening() -> None:
    machinery.listen()


@pytest.fixture(params=["main thread", "another thread"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Yield a function that runs another one in this kind of thread."""
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


def test_time_limit_leaves_the_timer_of_its_caller_running() -> None:
    """A test may have a time-out of its own, by the same signal."""
    rang = threading.Event()
    before = signal.signal(signal.SIGALRM, lambda *_: rang.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 2 * LONG_SECONDS, LONG_SECONDS)
        with time_limit(LONG_SECONDS):
            pass
        rest, interval = signal.getitimer(signal.ITIMER_REAL)
        assert LONG_SECONDS < rest <= 2 * LONG_SECONDS
        assert interval == LONG_SECONDS
        signal.setitimer(signal.ITIMER_REAL, 0.001)  # it rings meanwhile
        with time_limit(LONG_SECONDS):
            time.sleep(0.002)
        assert rang.wait(LONG_SECONDS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_cancellation_is_raised_in_the_task_with_its_reason(run: Run) -> None:
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
    run(lambda: None)  # the next call is not interrupted


def test_long_call_in_the_main_thread_is_interrupted() -> None:
    interruption, began = Interruption(), threading.Event()

    def attempt() -> None:
        with interruption:
            began.set()
            time.sleep(LONG_SECONDS)

    thread = cancel_when(began, interruption)
    with pytest.raises(TaskCancelled):
        attempt()
    thread.join()


def test_cancellation_before_the_start_is_raised_at_the_start(run: Run) -> None:
    interruption = Interruption()
    interruption.cancel("enough")

    def attempt() -> None:
        with interruption:
            interruption.check()

    with pytest.raises(TaskCancelled, match="enough"):
        run(attempt)


def test_cancellation_after_the_end_interrupts_nothing(run: Run) -> None:
    interruption = Interruption()

    def attempt() -> int:
        with interruption:
            pass
        interruption.cancel("enough")
        return sum(range(10_000))

    assert run(attempt) == sum(range(10_000))


@pytest.mark.skipif("COVERAGE_PROCESS_START" in os.environ, reason="a tracer moves the last moment")
def test_late_cancellation_is_raised_inside_the_block_or_not_at_all(run: Run) -> None:
    """The moment of the cancellation is varied around the end of the block."""
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
    """Run some steps; return whether they were cancelled."""
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


def test_coroutine_gets_cancelled_error() -> None:
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


def test_other_cancelled_errors_are_not_attributed_to_the_interruption() -> None:
    assert not Interruption().is_behind(asyncio.CancelledError())
