"""What a job costs on its way, counted and not timed: the same on every machine.

Instructions of Python's bytecode, in Stoker and in what it calls; statements that are sent to the
database; bytes that travel. A round of jobs is taken through all that a cluster does with it, in
one process.
"""

import socket
import sys
import uuid
from collections.abc import Callable
from types import FrameType
from typing import Any

from django.db import connections

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.cluster.channel import Stream
from stoker.cluster.pusher.flights import Flights
from stoker.cluster.wire import open_batch, open_job, pack_for_monitor, pack_job, pack_report
from stoker.conf import settings_for
from stoker.jobs.execute import Executor
from stoker.jobs.record import Recorder, finish
from stoker.models import Job

JOBS = 100
ROUNDS = 3
Figures = dict[str, float]


def count(task: Any, arguments: tuple[Any, ...]) -> Figures:
    """Return the cost of one job at each step: the lowest of several rounds, because the first
    rounds load modules and fill caches."""
    rounds = [_Round(task, arguments, is_watched=bool(n % 2)).figures for n in range(2 * ROUNDS)]
    names = [name for both in zip(rounds[0], rounds[1], strict=True) for name in both]
    return {name: min(one[name] for one in rounds[1:] if name in one) for name in names}


class _Round:
    """Takes some jobs from their enqueue to their end, and notes the cost of each step by name.

    Args:
        is_watched: whether to count statements instead of instructions. Stoker does some things
            differently if queries are logged.
    """

    def __init__(self, task: Any, arguments: tuple[Any, ...], *, is_watched: bool) -> None:
        self.figures: Figures = {}
        self._is_watched = is_watched
        settings = settings_for()
        broker = broker_for.__wrapped__(settings)  # a new object has empty caches
        self._connection = connections[settings.database]

        calls = [(arguments, {})] * JOBS
        results = self._step("enqueue_many", lambda: task.enqueue_many(calls))
        singly = self._step("enqueue", lambda: [task.enqueue(*arguments) for _ in range(JOBS)])
        jobs = Job.objects.filter(pk__in=[one.id for one in (*results, *singly)])
        sizes = [len(package) for package in jobs.values_list("package", flat=True)]
        self.figures["package bytes"] = round(max(sizes) / 8) * 8

        holder = uuid.uuid4()
        deliveries = self._step(
            "claim", lambda: broker.claim(ClaimRequest(JOBS, holder=holder, lease_seconds=60))
        )
        assert len(deliveries) == JOBS
        flights, (ours, theirs) = Flights(0), map(Stream, socket.socketpair())
        flights.add(deliveries, 0.0)

        def hand_over() -> Any:
            sent = flights.send(1, JOBS)
            ours.queue(("jobs", [pack_job(one.number, one.delivery) for one in sent]))
            self.figures["hand-over bytes"] = ours.outgoing_bytes / JOBS
            ours.flush()
            ((_, jobs),) = theirs.receive(block=True)
            return [open_job(job) for job in jobs]

        received = self._step("hand over", hand_over)
        executor = Executor(settings, worker_id="host:worker:1")
        reports = self._step(
            "run",
            lambda: [pack_report(n, executor.run(one)) for n, one in enumerate(received, 1)],
        )

        recorder = Recorder(settings, broker)

        def record() -> None:
            reported = [
                (report, pack_for_monitor(report[0], flights.with_worker(1)[report[0]].delivery))
                for report in reports
            ]
            assert recorder.record(open_batch(reported)) == set()

        self._step("record", record)
        ours.close()
        theirs.close()
        while rest := broker.claim(ClaimRequest(JOBS, holder=holder, lease_seconds=60)):
            finish(settings, broker, [executor.run(one) for one in rest])

    def _step(self, name: str, function: Callable[[], Any]) -> Any:
        statements = 0

        def note(execute: Any, sql: Any, *arguments: Any) -> Any:
            nonlocal statements
            statements += not str(sql).startswith(
                "NOTIFY"
            )  # the number of calls depends on the time
            return execute(sql, *arguments)

        if self._is_watched:
            with self._connection.execute_wrapper(note):
                found = function()
            self.figures[f"{name} statements"] = statements / JOBS
        else:
            found, instructions = _instructions(function)
            self.figures[f"{name} instructions"] = round(instructions / JOBS)
        return found


def _instructions(function: Callable[[], Any]) -> tuple[Any, int]:
    """Call it, and count the instructions of bytecode."""
    number = 0

    def each(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal number
        number += event == "opcode"
        return each

    def begin(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return each

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        found = function()
    finally:
        sys.settrace(before)
    return found, number
