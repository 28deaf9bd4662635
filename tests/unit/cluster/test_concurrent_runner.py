"""The event loop of a worker with CONCURRENCY above 1."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from stoker.cluster.worker.worker import ConcurrentRunner

pytestmark = pytest.mark.unit


def test_worker_does_not_wait_for_what_jobs_have_left_behind() -> None:
    may_end = threading.Event()

    async def linger() -> None:
        while not may_end.is_set():
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    class Runner(ConcurrentRunner):
        async def _run(self) -> None:
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, may_end.wait)
            self.left_behind = loop.create_task(linger())
            await asyncio.sleep(0)

    worker = SimpleNamespace(workload=None, settings=SimpleNamespace(concurrency=2))
    runner = Runner(worker)  # type: ignore[arg-type] # only what it needs here
    runner.run()

    assert not runner.left_behind.done()
    may_end.set()
    loop = runner.left_behind.get_loop()
    runner.left_behind.cancel()
    loop.run_until_complete(runner.left_behind)
    loop.close()
