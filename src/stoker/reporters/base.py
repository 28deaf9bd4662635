"""What a reporter is: see docs/howto/write-a-reporter.md."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from stoker.jobs.failures import Failure
from stoker.jobs.outcomes import Outcome
from stoker.jobs.results import Result
from stoker.jobs.running import Running
from stoker.schedules.fire import Fired


class Reporter:
    """Tells somebody else what happens to jobs. Made once in each process that knows the settings,
    with its options as keywords; what it does not override costs nothing.

    What a hook raises is told once in the log, and harms no job. ``on_enqueue``, ``on_start`` and
    ``on_end`` stand in the way of each job: they must not wait for anything. ``on_failure`` and
    ``on_tick`` may: they are called in a thread of the reporter's own, one after another. While a
    hundred wait for their turn, more are dropped, and the log says so.
    """

    never_waits: ClassVar[bool] = False
    """Whether ``on_failure`` and ``on_tick`` only hand over what they have to tell, too: then they
    are called where it happens, in the context of the job."""

    def begin(self, role: str) -> None:
        """A process of a cluster begins: ``pusher``, ``monitor``, ``scheduler`` or ``worker``."""

    def on_enqueue(self, task: Any, job_id: UUID, metadata: dict[str, str]) -> None:
        """A job is about to be made. What is added to ``metadata`` travels with it."""

    def on_start(self, running: Running, result: Result[Any]) -> None:
        """In the worker, before each attempt, where the task will run.

        Args:
            running: which attempt of which job, and the job's metadata.
            result: its TaskResult: arguments, when it was enqueued, when it was started.
        """

    def on_end(self, running: Running, result: Result[Any], outcome: Outcome) -> None:
        """In the worker, after each attempt, also when ``on_start`` failed. What crashes, or is
        killed, does not come so far: of that only ``on_failure`` tells.

        Args:
            outcome: what it came to, see stoker.jobs.outcomes: ``outcome.kind`` is
                ``succeeded``, ``failed``, ``retry``, ``snoozed`` or ``cancelled``.
        """

    def on_failure(self, failure: Failure) -> None:
        """An attempt failed, for good or to be tried again: once for each, before its ``on_end``.
        In the monitor's process where the worker crashed or was killed."""

    def on_tick(self, fired: Fired) -> None:
        """In the scheduler: a tick of a schedule became a job, or was left out."""

    def flush(self, seconds: float) -> None:
        """The process is about to end: send what is left, in so many seconds at most."""
