"""Threads that start together, each with its own broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from stoker.brokers.contract import Broker
from stoker.exceptions import BrokerUnavailable

from tests.conformance.stands import Stand

T = TypeVar("T")

PATIENCE_SECONDS = 120.0


def together(stand: Stand, *jobs: Callable[[Broker], T]) -> list[T]:
    """Run these concurrently and return their results; raise the first error."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(jobs))

    def run(number: int, job: Callable[[Broker], T]) -> None:
        try:
            broker = stand.another()
            broker.ping()
            barrier.wait(PATIENCE_SECONDS)
            results[number] = job(broker)
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            errors.append(error)
        finally:
            stand.hang_up()

    threads = [threading.Thread(target=run, args=one) for one in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(jobs))]


def patiently(call: Callable[[], T]) -> T:
    """Retry while the broker is unavailable; the contract leaves this to the caller."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return call()
        except BrokerUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
