"""Assertions about enqueued jobs. Their failure messages show the jobs that were enqueued
instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from stoker.brokers.adapters import broker_for
from stoker.compat import task_signals
from stoker.conf import settings_for
from stoker.exceptions import as_seconds

from .calls import call
from .store import still_known
from .waiting import Enqueued, enqueued, opened, path_of

TOLERANCE_SECONDS = 2.0
"""Tolerance of ``after``: a test takes time between two readings of the clock."""

After = datetime | timedelta | float


def assert_enqueued(
    task: Any,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    count: int | None = None,
    queue: str | None = None,
    priority: int | None = None,
    after: After | None = None,
    backend: str = "default",
) -> list[Enqueued]:
    """Assert that matching jobs wait. Omitted arguments match anything.

    Args:
        task: the task, or its dotted path.
        args: all positional arguments.
        kwargs: all keyword arguments.
        count: exact number of jobs; None = at least one.
        queue, priority: as they were enqueued.
        after: earliest start: a datetime, or seconds or a timedelta after the enqueue, within 2 s;
            0 = without delay.
        backend: an alias in ``TASKS``.

    Returns:
        The matching jobs.

    Raises:
        AssertionError: the message shows the jobs that wait instead.
    """
    wanted = ExpectedJob(path_of(task), args, kwargs, queue, priority, after)
    return _check(wanted, enqueued(backend=backend), count, "waits")


def assert_not_enqueued(
    task: Any,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    after: After | None = None,
    backend: str = "default",
) -> None:
    """Assert that no matching job waits. See ``assert_enqueued``."""
    wanted = ExpectedJob(path_of(task), args, kwargs, queue, priority, after)
    _check(wanted, enqueued(backend=backend), 0, "waits")


@contextmanager
def assert_enqueues(
    task: Any,
    count: int | None = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    after: After | None = None,
    backend: str = "default",
) -> Iterator[list[Enqueued]]:
    """Assert that the block enqueues matching jobs. Yields a list that holds them after the block.

    Jobs that have already run count; jobs that were rolled back do not. See ``assert_enqueued``.
    """
    wanted = ExpectedJob(path_of(task), args, kwargs, queue, priority, after)
    settings = settings_for(backend)
    job_ids: list[UUID] = []
    found: list[Enqueued] = []

    def take_down(sender: Any, task_result: Any, **_: Any) -> None:
        if task_result.backend == backend:
            job_ids.append(UUID(task_result.id))

    task_signals.task_enqueued.connect(take_down, weak=False)
    try:
        yield found
    finally:
        task_signals.task_enqueued.disconnect(take_down)
    jobs = opened(settings, still_known(broker_for(settings), job_ids))
    found += _check(wanted, jobs, count, "was enqueued")


@dataclass(frozen=True, slots=True)
class ExpectedJob:
    """Properties that a job must have; None matches anything."""

    task: str
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    queue: str | None = None
    priority: int | None = None
    after: After | None = None

    def fits(self, job: Enqueued) -> bool:
        return (
            job.task == self.task
            and (self.args is None or job.args == tuple(self.args))
            and (self.kwargs is None or job.kwargs == dict(self.kwargs))
            and self.queue in (None, job.queue)
            and self.priority in (None, job.priority)
            and self._fits_moment(job)
        )

    def like(self, job: Enqueued) -> str:
        """Format the expected call like the job's, for a line-by-line comparison."""
        args = job.args if self.args is None else self.args
        kwargs = job.kwargs if self.kwargs is None else self.kwargs
        return call(self.task, args, kwargs)

    def _fits_moment(self, job: Enqueued) -> bool:
        if self.after is None:
            return True
        if isinstance(self.after, datetime):
            return job.run_after == self.after
        delay = 0.0
        if job.run_after is not None:
            delay = (job.run_after - job.enqueued_at).total_seconds()
        return abs(delay - as_seconds(self.after)) <= TOLERANCE_SECONDS

    def __str__(self) -> str:
        told = [
            f"{name}={value!r}"
            for name in ("args", "kwargs", "queue", "priority", "after")
            if (value := getattr(self, name)) is not None
        ]
        return f"{self.task} with {', '.join(told)}" if told else self.task


def _check(
    wanted: ExpectedJob, jobs: Sequence[Enqueued], count: int | None, verb: str
) -> list[Enqueued]:
    fitting = [job for job in jobs if wanted.fits(job)]
    if len(fitting) == count or (count is None and fitting):
        return fitting
    if fitting:
        plural = {"waits": "wait", "was enqueued": "were enqueued"}[verb]
        number = f"{len(fitting)} jobs of" if len(fitting) > 1 else "1 job of"
        said = f"{number} {wanted} {plural if len(fitting) > 1 else verb}"
        expected = "none" if count == 0 else str(count)
        raise AssertionError(f"{said}; {expected} expected.\n{_listed(jobs)}")
    said = f"No job of {wanted} {verb}."
    raise AssertionError(f"{said}\n{_differences(wanted, jobs)}{_listed(jobs)}")


def _differences(wanted: ExpectedJob, jobs: Sequence[Enqueued]) -> str:
    """Show how jobs of the same task differ from the expected one."""
    near = [job for job in jobs if job.task == wanted.task][:3]
    lines: list[str] = []
    for job in near:
        if wanted.like(job) != job.call:
            lines += difflib.ndiff([wanted.like(job)], [job.call])
    shown = "\n".join(line.rstrip() for line in lines)
    return f"Expected (-) and enqueued (+):\n{shown}\n" if lines else ""


def _listed(jobs: Sequence[Enqueued]) -> str:
    if not jobs:
        return "There are no other jobs either."
    return "\n".join([f"There are {len(jobs)}:", *(f"  {job}" for job in jobs)])
