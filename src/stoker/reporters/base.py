"""The base class of reporters: see docs/howto/write-a-reporter.md."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from stoker.jobs.failures import Failure
from stoker.jobs.outcomes import Outcome
from stoker.jobs.results import Result
from stoker.jobs.running import Running
from stoker.schedules.fire import Fired


class Reporter:
    """Passes events about jobs on to another system.

    It is created once in each process that reads the settings, with its options as keyword
    arguments. Hooks that a subclass does not override cost nothing.

    Errors of a hook are logged once and do not affect jobs. ``on_enqueue``, ``on_start`` and
    ``on_end`` delay each job, so they must not block. ``on_failure``, ``on_cancel`` and ``on_tick``
    may block: they are called one after another in the reporter's own thread. If a hundred calls
    are waiting, further ones are dropped and the log says so.
    """

    never_waits: ClassVar[bool] = False
    """Whether ``on_failure``, ``on_cancel`` and ``on_tick`` never block. If so, they are called at
    once, in the context of the job."""

    label: str = ""
    """Distinguishes several reporters of the same name. Two with the same label are refused; empty
    labels are not compared."""

    def begin(self, role: str) -> None:
        """Called when a process of a cluster starts: ``pusher``, ``monitor``, ``scheduler`` or
        ``worker``, or ``core`` for the first three with ``--single``."""

    def on_enqueue(self, task: Any, job_id: UUID, metadata: dict[str, str]) -> None:
        """Called before a job is created. Entries added to ``metadata`` are stored in the job's
        package."""

    def on_start(self, running: Running, result: Result[Any]) -> None:
        """Called in the worker before each attempt, in the thread or event loop of the task.

        Args:
            running: the attempt, with the job's metadata.
            result: its TaskResult, with arguments and times.
        """

    def on_end(self, running: Running, result: Result[Any], outcome: Outcome) -> None:
        """Called in the worker after each attempt, even if ``on_start`` failed.

        It is not called if the worker crashed or was killed; ``on_failure`` or ``on_cancel`` is.

        Args:
            outcome: see stoker.jobs.outcomes; ``outcome.kind`` is ``succeeded``, ``failed``,
                ``retry``, ``snoozed`` or ``cancelled``.
        """

    def on_failure(self, failure: Failure) -> None:
        """Called once for each failed attempt, whether or not it is retried, before its ``on_end``.

        If the worker crashed or was killed, it is called in the monitor's process; in that of a
        scheduler, if the cluster or host was lost.
        """

    def on_cancel(self, failure: Failure) -> None:
        """Called for a cancellation that ``on_end`` could not report: the task ignored it and its
        worker was killed, or the attempt ended in a way after which it would have been retried.

        Override ``on_end`` as well for all other cancellations of jobs that a worker had: its
        outcome is ``cancelled``. Called in the process that recorded the end, nearly always the
        monitor's.

        Args:
            failure: its ``reason`` is ``cancelled``, and the message of its ``fault`` is the reason
                of the cancellation.
        """

    def on_tick(self, fired: Fired) -> None:
        """Called for each tick of a schedule, after it has enqueued a job, was skipped or is held:
        in the scheduler, or in the process that fires a schedule by hand. Called once for all
        missed ticks of a schedule (``fired.count``)."""

    def flush(self, seconds: float) -> None:
        """Called before the process exits: send the remaining data within this many seconds."""
