"""The jobs of the benchmarks: they do nothing, return the time, wait or compute."""

import asyncio
import time

from stoker import Lock, task

HOT_KEYS, KEYS = 50, 2000


@task
def nothing(number: int) -> int:
    """Do nothing, and return a small result."""
    return number


@task(lock=Lock("key {number}"))
def with_own_key(number: int) -> int:
    """Do nothing, under a lock with a key of its own."""
    return number


@task(lock=Lock(lambda number: f"key {number % KEYS}"))
def with_known_key(number: int) -> int:
    """Do nothing, under one of many locks, which earlier jobs have used."""
    return number


@task(lock=Lock(lambda number: f"hot key {number % HOT_KEYS}"))
def with_hot_key(number: int) -> int:
    """Do nothing, under one of a few locks."""
    return number


@task
def first_line(number: int) -> int:
    """Return the start time on the monotonic clock, which all processes of a machine share."""
    return time.monotonic_ns()


@task
def clock() -> float:
    """Return the start time on the machine's clock."""
    return time.time()


@task
def wait(number: int) -> None:
    """Wait for 5 ms, as for an answer from another server."""
    time.sleep(0.005)


@task
async def wait_async(number: int) -> None:
    """Wait for 5 ms on the event loop."""
    await asyncio.sleep(0.005)


@task
def compute(number: int) -> None:
    """Use 5 ms of processor time."""
    until = time.thread_time() + 0.005
    while time.thread_time() < until:
        pass


@task
def swallow(text: str) -> int:
    """Accept arguments."""
    return len(text)
