"""Run the jobs of a worker: one after another, or many at once in threads and on an event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from asgiref.sync import sync_to_async

from stoker.cluster.channel import Closed, Stream
from stoker.cluster.process import leave
from stoker.jobs.execute import Opened
from stoker.jobs.outcomes import Attempted
from stoker.values.ids import is_marked

from .connections import JOB_THREADS, tidy_broken_connections, tidy_connections
from .workload import FLUSH_SECONDS, BegunJob

if TYPE_CHECKING:
    from .worker import Worker


class SerialRunner:
    """CONCURRENCY = 1."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._workload = worker.workload

    def run(self) -> None:
        while (line := self._workload.wait_for_line()) is not None:
            try:
                self._serve(line)
            except Closed:
                self._workload.lose(line)

    def _serve(self, line: Stream) -> None:
        workload = self._workload
        while not workload.is_leaving:
            tidy_connections()  # some may have grown old while there was nothing to do
            while workload.has_next:
                workload.flush(older_than_seconds=FLUSH_SECONDS)
                self._run_next()
                if self._worker.should_be_replaced():
                    workload.leave()
            workload.flush()
            workload.take_in(line, line.receive(block=True))

    def _run_next(self) -> None:
        worker = self._worker
        begun = worker.begin(0)
        if begun is None:
            return
        opened = worker.executor.open(begun.delivery)
        if isinstance(opened, Opened):
            if worker.leave_if_late(0, begun):
                return
            worker.limit(0, begun, opened)
            attempted = worker.executor.run_opened(opened)
        else:
            attempted = opened
        tidy_connections()
        worker.end(0, begun.number, attempted)


T = TypeVar("T")

CONNECTION_CARE_SECONDS = 1.0


class ConcurrentRunner:
    """CONCURRENCY > 1."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._workload = worker.workload
        self._slots = list(range(worker.settings.concurrency))
        self._threads = ThreadPoolExecutor(worker.settings.concurrency, JOB_THREADS)
        self._running: set[asyncio.Task[None]] = set()
        self._async_running = 0
        self._changed = asyncio.Event()
        self._line: Stream | None = None
        self._flush_is_planned = False
        self._care_is_planned = False
        self._care: asyncio.Task[None] | None = None

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._workload.on_change = lambda: loop.call_soon_threadsafe(self._changed.set)
        self._changed.set()
        while not self._workload.is_leaving:
            await self._changed.wait()
            self._changed.clear()
            self._follow_line()
            self._start_jobs()
        while self._running:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            self._follow_line()
        self._stop_reading()
        self._workload.on_change = lambda: None

    def _follow_line(self) -> None:
        """Read from the line that the companion got from the sentinel."""
        line = self._workload.follow()
        if line is self._line:
            return
        self._stop_reading()
        self._line = line
        if line is not None:
            asyncio.get_running_loop().add_reader(line.fileno(), self._read, line)
            self._plan_flush()

    def _stop_reading(self) -> None:
        line, self._line = self._line, None
        if line is not None and line.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(line.fileno())
            if line is not self._workload.line:
                self._workload.lose(line)

    def _read(self, line: Stream) -> None:
        try:
            self._workload.take_in(line, line.receive(block=False))
        except Closed:
            self._stop_reading()
            self._workload.lose(line)
        self._changed.set()

    def _start_jobs(self) -> None:
        worker = self._worker
        while self._workload.has_next and self._slots and not self._workload.is_leaving:
            slot = self._slots.pop()
            begun = worker.begin(slot)
            if begun is None:
                self._slots.append(slot)
                self._plan_flush()
                continue
            task = asyncio.get_running_loop().create_task(self._attend(slot, begun))
            self._running.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = task.exception()
        if error is not None:  # of ours: the slot still shows the job, so that its attempt counts
            sys.excepthook(type(error), error, error.__traceback__)
            leave(1)

    async def _attend(self, slot: int, begun: BegunJob) -> None:
        worker, delivery = self._worker, begun.delivery
        # Its earlier attempts are read from the database, or what it is given.
        if delivery.attempt > 1 or is_marked(delivery.job_id):
            opened = await self._in_thread(lambda: worker.executor.open(delivery))
        else:
            opened = worker.executor.open(delivery)
        if not isinstance(opened, Opened):
            worker.end(slot, begun.number, opened)
        elif not worker.leave_if_late(slot, begun):
            worker.limit(slot, begun, opened)
            worker.end(slot, begun.number, await self._run_opened(opened))
        self._slots.append(slot)
        self._plan_flush()
        if not self._workload.is_leaving and worker.should_be_replaced():
            self._workload.leave()
        self._changed.set()

    async def _run_opened(self, opened: Opened) -> Attempted:
        if not opened.is_async:
            return await self._in_thread(lambda: self._worker.executor.run_opened(opened))
        self._async_running += 1
        self._plan_care()
        try:
            return await self._worker.executor.run_opened_async(opened)
        finally:
            self._async_running -= 1

    async def _in_thread(self, function: Callable[[], T]) -> T:
        def run() -> T:
            tidy_connections()
            try:
                return function()
            finally:
                tidy_connections()

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def _plan_flush(self) -> None:
        if not self._flush_is_planned:
            self._flush_is_planned = True
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flush_is_planned = False
        self._workload.flush()

    def _plan_care(self) -> None:
        """Look after the connections of asgiref's thread, in which async tasks use the ORM, while
        such tasks run and once more after the last."""
        if not self._care_is_planned:
            self._care_is_planned = True
            self._care = asyncio.get_running_loop().create_task(self._care_for_connections())

    async def _care_for_connections(self) -> None:
        await asyncio.sleep(CONNECTION_CARE_SECONDS)
        self._care_is_planned = False
        if self._async_running:
            self._plan_care()
        await sync_to_async(tidy_broken_connections if self._async_running else tidy_connections)()
