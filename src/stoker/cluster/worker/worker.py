"""The worker: a process that runs jobs.

In a cluster, tasks run only in workers. The main thread runs the jobs. A second thread, the
companion, listens to the sentinel, connects to a new pusher after the old one has died, and sends
the reports of finished jobs while a long job runs. If the lease of a running job is about to end
because it could not be extended, the companion kills this process (the fence).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import SyncToAsync, sync_to_async

from stoker.cluster import board as place
from stoker.cluster.board import is_fenced, lease_mark
from stoker.cluster.channel import Closed, Stream, is_readable, take_stream
from stoker.cluster.loops import LOOPS, loops_of, recovery_seconds
from stoker.cluster.process import ORPHANED, Child, leave, resident_bytes
from stoker.cluster.wire import Job, attempt_of, is_over, lease_id_of, open_job, pack_report
from stoker.cluster.worker.clean_up import (
    WorkerAftercare,
    create_caches,
    tidy_broken_connections,
    tidy_connections,
)
from stoker.cluster.worker.workload import FLUSH_SECONDS, Workload
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Attempted
from stoker.jobs.running import Running, listen
from stoker.logs.capture import Capture
from stoker.signals import tell
from stoker.values.ids import is_marked

COMPANION_SECONDS = 0.05
IDLE_SECONDS = 1.0
LEAVE_SECONDS = 5.0
JOB_THREADS = "stoker-job"
"""Prefix of the names of the threads in which a worker with CONCURRENCY above 1 runs sync tasks."""


def main(child: Child) -> None:
    worker = Worker(child)
    listen()
    worker.look_at_fence_when_continued()
    child.control.send("ready")
    threading.Thread(target=worker.accompany, name="stoker-companion", daemon=True).start()
    try:
        is_serial = worker.settings.concurrency == 1
        (SerialRunner(worker) if is_serial else ConcurrentRunner(worker)).run()
        worker.workload.leave()
        worker.workload.wait_until_recorded(LEAVE_SECONDS)
    except BaseException:  # noqa: BLE001 - a mistake of ours: end with its traceback and a code
        sys.excepthook(*sys.exc_info())
        leave(1)
    leave(0)


class Worker:
    """One worker process."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.settings = child.plan.settings
        self.board = child.board
        self.workload = Workload(recovery_seconds(self.settings))
        # If one of the loops of the core hangs, the pusher is killed with it.
        beats = [LOOPS[loop] for loop in loops_of("core" if child.plan.single else "pusher")]
        self.workload.oldest_beat_ns = lambda: min(child.board[beat] for beat in beats)
        self._own = child.board.of_worker(child.number)
        self._slots = [
            child.board.slot(child.number, slot) for slot in range(child.board[place.SLOTS])
        ]
        self._finished = child.board.finished_of(child.number, self.workload.is_unrecorded)
        worker_id = child.plan.worker_id(child.number, child.incarnation)
        self.aftercare = WorkerAftercare()
        self.executor = Executor(self.settings, worker_id=worker_id, aftercare=self.aftercare)
        if self.settings.logs is not None:
            self.workload.logs = Capture(self.settings, self.settings.logs)
            self.workload.logs.install()
        self._jobs_done = 0
        self._running: dict[int, Running] = {}
        """Number -> job, while it runs."""
        self._to_cancel: dict[int, str] = {}
        self._wake_reader, self._wake_writer = os.pipe()
        self._companion_dozes = False
        os.register_at_fork(after_in_child=self._be_no_worker)

    # -- the main thread --------------------------------------------------------------------------

    def begin(self, slot: int) -> Job | None:
        """Start the next job in a slot. Return None if it must not start. To make a recall safe,
        write the job to the board first, and then read the recalled numbers."""
        job = self.workload.next()
        if job is None:
            return None
        number, permit_ns, job_id = job[:3]
        if permit_ns and is_over(permit_ns):
            self.workload.skip(number)
            return None
        mark = lease_mark(lease_id_of(job))
        self._own[place.LAST_STARTED] = number
        self._slots[slot].occupy(
            number, job_id, attempt_of(job), time.monotonic_ns(), place.OPENING, mark
        )
        is_recalled = self._own[place.RECALLED_THROUGH] >= number
        if is_recalled or is_fenced(self.board, self.settings):
            self._slots[slot].vacate()
            self.workload.skip(number)
            return None
        if self._companion_dozes:
            self._companion_dozes = False
            os.write(self._wake_writer, b".")
        return job

    def leave_if_late(self, slot: int, job: Job) -> bool:
        """Skip a job whose permit expired while its package was opened. Its attempt does not count.
        Return whether the job was skipped."""
        number, permit_ns = job[:2]
        if not (permit_ns and is_over(permit_ns)):
            return False
        if self._own[place.LAST_STARTED] == number:
            self._own[place.LAST_STARTED] = number - 1
        self._slots[slot].vacate()
        self.workload.skip(number)
        return True

    def limit(self, slot: int, number: int, running: Running) -> None:
        """Write to the board that the job in the slot begins. From here on it can be cancelled.
        While its task's function runs, the board will show when the sentinel must kill this worker
        because of the time-out. An atomic task also marks its slot before it records itself, so
        that the worker is not killed then for a lease that is about to end."""
        self._running[number] = running
        if number in self._to_cancel:
            running.interruption.reason = self._to_cancel[number]
        self._slots[slot].begin()
        if running.timeout_seconds is not None:
            seconds = running.timeout_seconds + self.settings.timeout_grace_seconds
            running.hard_limit = self._slots[slot].deadline(seconds)
        if running.found.is_atomic:
            running.on_completing = self._slots[slot].complete
        if self.workload.logs is not None:
            self.workload.logs.begin(running)

    def end(self, slot: int, number: int, attempted: Attempted) -> None:
        """Finish a job: keep its report and send it soon. The board lists the job before its slot
        is freed, so that the attempt counts even if a process dies before it is recorded. Both come
        first, because the companion may hold up the report while the pusher does not read."""
        if self.workload.logs is not None:
            self.workload.logs.end(attempted.delivery.job_id)
        self._finished.add(self._slots[slot].listing())
        self._slots[slot].vacate()
        self.workload.finish(number, pack_report(number, attempted))
        self._running.pop(number, None)
        self._to_cancel.pop(number, None)
        self._jobs_done += 1
        self._own[place.JOBS_DONE] = self._jobs_done

    def should_be_replaced(self) -> bool:
        """Return whether this process has run its maximum number of jobs, or uses too much
        memory."""
        reason = self._reason_to_recycle()
        if not reason:
            return False
        self.child.control.send("recycle", reason)
        return True

    def _reason_to_recycle(self) -> str:
        jobs, memory_mb = self.settings.recycle_jobs, self.settings.recycle_memory_mb
        if jobs is not None and self._jobs_done >= jobs:
            return f"it has run {self._jobs_done} jobs"
        if memory_mb is not None:
            resident_mb = resident_bytes() / (1 << 20)
            if resident_mb > memory_mb:
                return f"its memory has grown to {resident_mb:.0f} MiB"
        return ""

    def look_at_fence_when_continued(self) -> None:
        """Check the fence as soon as this process continues after a SIGSTOP. The main thread
        runs the handler before anything else, so a task that was stopped for longer than its
        lease does nothing more."""
        signal.signal(signal.SIGCONT, lambda _signal, _frame: self._stop_at_fence())
        signal.siginterrupt(signal.SIGCONT, False)

    # -- the companion thread ---------------------------------------------------------------------

    def accompany(self) -> None:
        """Handle the sentinel's messages until the sentinel is gone."""
        try:
            while True:
                for message, descriptor in self.child.control.receive(block=False):
                    self._obey(message, descriptor)
                self._wait()
                self._stop_at_fence()
                self._remind()
                self.workload.flush(older_than_seconds=COMPANION_SECONDS)
        except Closed:
            leave(ORPHANED)
        except Exception:  # noqa: BLE001 - without its companion a worker is deaf: start over
            sys.excepthook(*sys.exc_info())
            leave(1)

    def _wait(self) -> None:
        """Sleep briefly while there may be reports to send, otherwise until woken."""
        self._companion_dozes = True
        seconds = COMPANION_SECONDS
        if self.workload.is_idle:
            seconds = IDLE_SECONDS
        else:
            self._companion_dozes = False
        is_readable(seconds, self.child.control, self._wake_reader)
        if is_readable(0, self._wake_reader):
            os.read(self._wake_reader, 1)

    def _stop_at_fence(self) -> None:
        """Kill this process if it runs a job whose lease is about to end. The sentinel does so too,
        unless it is suspended."""
        number = self.child.number
        if is_fenced(self.board, self.settings) and any(self.board.occupied(number)):
            self.board.note_fenced(number, self.child.incarnation)
            os.kill(os.getpid(), signal.SIGKILL)

    def _obey(self, message: tuple[Any, ...], descriptor: int | None) -> None:
        match message:
            case ("pusher",):
                self.workload.meet(take_stream(descriptor))
            case ("cancel", number, reason):
                self._cancel(number, reason)
            case ("leave",):
                self.workload.leave()
                if self.workload.is_idle:  # otherwise the record of the last job wakes the reader
                    self.workload.stop_reading()
            case ("exit",):
                self.workload.expects_pusher = False
                self.workload.leave()
                self.workload.stop_reading()

    def _cancel(self, number: int, reason: str) -> None:
        """End a running job. Store the request before searching the job, so that a job that
        begins meanwhile finds it."""
        self._to_cancel[number] = reason
        running = self._running.get(number)
        if running is not None:
            running.interruption.cancel(reason)

    def _remind(self) -> None:
        """Repeat the requests to end running jobs, and forget those for jobs that have ended. A job
        with a higher number than the last started one may still arrive."""
        for number in list(self._to_cancel):
            running = self._running.get(number)
            if running is not None:
                running.interruption.remind()
            elif number <= self._own[place.LAST_STARTED] and not self.workload.has(number):
                self._to_cancel.pop(number, None)

    def _be_no_worker(self) -> None:
        """Close the worker's sockets and board in a child forked by a task. The child must not
        report, nor be taken for a part of the cluster."""
        signal.signal(signal.SIGCONT, signal.SIG_DFL)  # the handler reads the board
        self.workload.forget()
        self.child.control.close()
        self.board.close()


class SerialRunner:
    """Run one job after another: CONCURRENCY = 1."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._workload = worker.workload

    def run(self) -> None:
        create_caches()
        while (line := self._workload.wait_for_line()) is not None:
            try:
                self._serve(line)
            except Closed:
                self._workload.lose(line)

    def _serve(self, line: Stream) -> None:
        workload = self._workload
        while not workload.is_leaving:
            tidy_connections()  # connections may have become too old while the worker was idle
            while workload.has_next:
                workload.flush(older_than_seconds=FLUSH_SECONDS)
                self._run_next()
                if self._worker.should_be_replaced():
                    workload.leave()
            workload.flush()
            if workload.is_over:
                return  # the last job was skipped, so no record would wake this thread
            workload.take_in(line, line.receive(block=True))

    def _run_next(self) -> None:
        worker = self._worker
        job = worker.begin(0)
        if job is None:
            return
        number, running = job[0], worker.executor.open(open_job(job))
        if isinstance(running, Running):
            if worker.leave_if_late(0, job):
                return
            worker.limit(0, number, running)
            attempted = worker.executor.run_opened(running)
        else:
            attempted = running
        tidy_connections()
        worker.end(0, number, attempted)


T = TypeVar("T")

CONNECTION_CARE_SECONDS = 1.0


class ConcurrentRunner:
    """Run many jobs at once, in threads and on an event loop: CONCURRENCY > 1."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._workload = worker.workload
        self._slots = list(range(worker.settings.concurrency))
        self._threads = ThreadPoolExecutor(
            worker.settings.concurrency, JOB_THREADS, initializer=create_caches
        )
        self._running: set[asyncio.Task[None]] = set()
        self._async_running = 0
        self._changed = asyncio.Event()
        self._line: Stream | None = None
        self._flush_is_planned = False
        self._care_is_planned = False
        self._care: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Run jobs until the worker leaves. The event loop is not closed, because closing it waits
        for the background tasks and threads that jobs have left behind. They end with the
        process."""
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        main = loop.create_task(self._run())
        while not main.done():
            try:
                loop.run_until_complete(main)
            except (SystemExit, KeyboardInterrupt) as error:
                # asyncio raises these here if they end an asyncio task that a job has created
                tell("callback_failed", what="asyncio task of a job", error=error)
        main.result()

    async def _run(self) -> None:
        SyncToAsync.single_thread_executor = self._worker.aftercare.shared_thread
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
        """Read from the connection that the companion thread received from the sentinel."""
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
            job = worker.begin(slot)
            if job is None:
                self._slots.append(slot)
                self._plan_flush()
                continue
            task = asyncio.get_running_loop().create_task(self._attend(slot, job))
            self._running.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        # After an error of Stoker, the board still shows the job, so that its attempt counts.
        if error is not None:
            sys.excepthook(type(error), error, error.__traceback__)
            leave(1)

    async def _attend(self, slot: int, job: Job) -> None:
        worker, number, delivery = self._worker, job[0], open_job(job)
        running: Running | Attempted | None = None
        # Its earlier attempts are read from the database, or passed in.
        if delivery.attempt == 1 and not is_marked(delivery.job_id):
            running = worker.executor.open_without_blocking(delivery)
        if running is None:
            running = await self._in_thread(lambda: worker.executor.open(delivery))
        if not isinstance(running, Running):
            worker.end(slot, number, running)
        elif not worker.leave_if_late(slot, job):
            worker.limit(slot, number, running)
            worker.end(slot, number, await self._run_opened(running))
        self._slots.append(slot)
        self._plan_flush()
        if not self._workload.is_leaving and worker.should_be_replaced():
            self._workload.leave()
        self._changed.set()

    async def _run_opened(self, running: Running) -> Attempted:
        if not running.found.is_async:
            return await self._in_thread(lambda: self._worker.executor.run_opened(running))
        self._async_running += 1
        self._plan_care()
        try:
            return await self._worker.executor.run_opened_async(running, self._in_context)
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

    async def _in_context(self, function: Callable[[], T]) -> T:
        return await self._in_thread(partial(copy_context().run, function))

    def _plan_flush(self) -> None:
        if not self._flush_is_planned:
            self._flush_is_planned = True
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flush_is_planned = False
        self._workload.flush()

    def _plan_care(self) -> None:
        """Schedule a check of the database connections in asgiref's thread, where async tasks use
        the ORM. It closes unusable ones. Repeat it while async tasks run, and once after the last.
        """
        if not self._care_is_planned:
            self._care_is_planned = True
            self._care = asyncio.get_running_loop().create_task(self._care_for_connections())

    async def _care_for_connections(self) -> None:
        await asyncio.sleep(CONNECTION_CARE_SECONDS)
        self._care_is_planned = False
        if self._async_running:
            self._plan_care()
        await sync_to_async(tidy_broken_connections if self._async_running else tidy_connections)()
