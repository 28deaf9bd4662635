"""The running job, for log records, reporters and the task's own code."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError
from django.dispatch import Signal

from stoker.brokers.contract import Delivery, LeaseId
from stoker.compat import TASKS_APP, TaskError, TaskResultStatus, task_signals
from stoker.conf import Settings
from stoker.models import Attempt
from stoker.models.job import moment
from stoker.signals import post_execute_in_worker, pre_execute, tell

from . import outcomes
from .outcomes import Outcome
from .package import Package
from .results import Result

logger = logging.getLogger("stoker")


# Not frozen: there is one per job, and creating a frozen object takes several times as long.
@dataclass(slots=True)
class Running:
    """The attempt that the current thread or coroutine belongs to."""

    job_id: UUID
    task: str
    attempt: int
    queue: str
    fence: int
    metadata: Mapping[str, str]
    """The metadata of its package."""
    backend: str
    """Name of the backend under ``TASKS``."""
    lease_id: LeaseId
    reported_at: float = float("-inf")
    """Time of the last progress report, in monotonic seconds."""
    is_logged: bool = False
    """Whether its start was logged, so that its end is logged, too."""

    @property
    def short_id(self) -> str:
        """The random end of the job's id: ids of the same minute begin alike."""
        return self.job_id.hex[-12:]

    def log_start(self) -> None:
        """Log that the attempt starts, if such lines are wanted."""
        if job_lines.isEnabledFor(logging.INFO):
            self.is_logged = True
            self._log("job_started")

    def log_end(self, outcome: Outcome, seconds: float) -> None:
        """Log how the attempt ended. Failures are logged elsewhere."""
        if not isinstance(outcome, FAILURES):
            self._log("job_ended", outcome=outcome.kind, seconds=seconds)

    def _log(self, name: str, **facts: Any) -> None:
        tell(
            name,
            task=self.task,
            job_id=self.job_id,
            short_id=self.short_id,
            attempt=self.attempt,
            **facts,
        )


job_lines = logging.getLogger("stoker.jobs")
"""A cluster turns its level up on a terminal and with ``-v 2``."""
FAILURES = (outcomes.Failed, outcomes.Retry)
tasks_logger = logging.getLogger(TASKS_APP)
DJANGOS_OWN = {
    id(task_signals.log_task_enqueued),
    id(task_signals.log_task_started),
    id(task_signals.log_task_finished),
}
"""Receivers that only write log records."""
SIGNALS = (
    task_signals.task_started,
    task_signals.task_finished,
    pre_execute,
    post_execute_in_worker,
)
"""Signals about attempts that the worker sends."""

_last_found: tuple[tuple[Any, ...], bool] = ((), False)
"""Cache of somebody_listens: receivers, and the answer."""

current: ContextVar[Running | None] = ContextVar("stoker_running", default=None)


def fencing_number() -> int:
    """Return the fencing number of the running attempt.

    It increases with each attempt that gets a place under the same key. Store it with the task's
    writes and refuse lower numbers, which come from attempts that have lost their place.

    Returns:
        0 outside of a job, and for tasks without lock, limit, rate and sequence.
    """
    running = current.get()
    return 0 if running is None else running.fence


def is_heard(signal: Signal, level: int = logging.INFO) -> bool:
    """Return whether sending the signal has any effect. Django's own receivers only write a log
    record at this level."""
    if not signal.receivers or tasks_logger.isEnabledFor(level):
        return bool(signal.receivers)
    for receiver in signal.receivers:  # noqa: SIM110 - a generator takes twice as long
        if receiver[0][0] not in DJANGOS_OWN:
            return True
    return False


def somebody_listens() -> bool:
    """Return whether signals about attempts have receivers. The answer is cached while these do not
    change, because this runs for each job."""
    global _last_found
    (one, two, three, four), writes = SIGNALS, tasks_logger.isEnabledFor(logging.INFO)
    asked = (writes, one.receivers, two.receivers, three.receivers, four.receivers)
    known, is_any = _last_found
    if asked != known:
        # copied before they are checked, because another thread may change them
        known = (writes, *map(list, asked[1:]))
        is_any = any(map(is_heard, SIGNALS))
        _last_found = known, is_any
    return is_any


def running_result(
    settings: Settings,
    task: Any,
    package: Package,
    delivery: Delivery,
    started_at: float,
    worker_id: str,
) -> Result[Any]:
    """Return the TaskResult of the attempt that begins, for signals, contexts and ``backoff``."""
    now = moment(started_at)
    worker_ids, errors = _earlier(settings, delivery) if delivery.attempt > 1 else ([], [])
    return Result(
        task=task,
        id=str(package.job_id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=moment(package.enqueued_at),
        started_at=now,
        finished_at=None,
        last_attempted_at=now,
        args=list(package.args),
        kwargs=package.kwargs,
        backend=settings.alias,
        errors=errors,
        worker_ids=[*worker_ids, worker_id],
    )


def conclude(result: Result[Any], outcome: Outcome, value: Any, finished_at: datetime) -> None:
    """Set the result's final status, value and error."""
    succeeded = isinstance(outcome, outcomes.Succeeded)
    status = TaskResultStatus.SUCCESSFUL if succeeded else TaskResultStatus.FAILED
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", finished_at)
    object.__setattr__(result, "_return_value", value)
    if isinstance(outcome, outcomes.Failed):
        error = TaskError(
            exception_class_path=outcome.fault.exception_class, traceback=outcome.fault.traceback
        )
        result.errors.append(error)


def _earlier(settings: Settings, delivery: Delivery) -> tuple[list[str], list[TaskError]]:
    """Return the worker ids and errors of the earlier attempts. An attempt without a record has an
    empty worker id."""
    try:
        rows = list(
            Attempt.objects.using(settings.database)
            .filter(job_id=delivery.job_id, number__lt=delivery.attempt)
            .order_by("number")
        )
    except (DatabaseError, InterfaceError):
        logger.exception("The earlier attempts of job %s could not be read.", delivery.job_id)
        rows = []
    worker_ids = [""] * (delivery.attempt - 1)
    for row in rows:
        worker_ids[row.number - 1] = row.worker_id
    errors = [
        TaskError(exception_class_path=row.exception_class, traceback=row.traceback)
        for row in rows
        if row.exception_class
    ]
    return worker_ids, errors
