"""The signals about attempts that a worker sends, and the result that they pass.

The signals of reporters are sent in the context of the attempt, for an async task on the event
loop. Receivers of the project may block or use the ORM, so for an async task they are called in a
thread.
"""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial
from typing import Any

from django.db import DatabaseError, InterfaceError
from django.dispatch import Signal

from stoker.brokers.contract import Delivery
from stoker.compat import TaskError, TaskResultStatus, task_backends, task_signals
from stoker.conf import Settings
from stoker.models import Attempt
from stoker.signals import call_project, post_execute_in_worker, pre_execute
from stoker.store.written import moment

from . import outcomes
from .outcomes import Outcome
from .package import Package
from .results import Result
from .running import DJANGOS_OWN, Running, is_heard, tasks_logger

logger = logging.getLogger("stoker")

reporters_start, reporters_end = Signal(), Signal()
"""Sent to reporters only, with the arguments of ``pre_execute`` and ``post_execute_in_worker``.
Receivers must not block."""
reporters_cancel = Signal()
"""Sent to reporters only, with a ``failure``, if a job that a worker had was cancelled, and the
``reporters_end`` of its attempt did not say so."""
PUBLIC = (
    task_signals.task_started,
    task_signals.task_finished,
    pre_execute,
    post_execute_in_worker,
)
SIGNALS = (*PUBLIC, reporters_start, reporters_end)

_last_found: tuple[tuple[Any, ...], bool] = ((), False)
"""Cache of ``are_signals_heard``: the receivers, and its answer for them."""


def are_signals_heard() -> bool:
    """Return whether signals about attempts have receivers. The answer is cached until the
    receivers change, because this runs for each job."""
    global _last_found
    writes = tasks_logger.isEnabledFor(logging.INFO)
    receivers = [signal.receivers for signal in SIGNALS]
    asked = (writes, receivers)
    known, is_any = _last_found
    if asked != known:
        # copied before they are checked, because another thread may change them
        known = (writes, [list(some) for some in receivers])
        is_any = any(map(is_heard, SIGNALS))
        _last_found = known, is_any
    return is_any


def has_project_receivers() -> bool:
    """Return whether receivers of the project are connected to these signals."""
    return any(
        receiver[0][0] not in DJANGOS_OWN for signal in PUBLIC for receiver in signal.receivers
    )


class AttemptSignals:
    """Sends the signals of one backend. Errors are logged."""

    def __init__(self, settings: Settings) -> None:
        self._sender = type(task_backends[settings.alias])

    def report_start(self, result: Result[Any]) -> None:
        self._send("reporters_start", reporters_start, task_result=result)

    def send_start(self, result: Result[Any]) -> None:
        self._send("task_started", task_signals.task_started, task_result=result)
        self._send("pre_execute", pre_execute, task_result=result)

    def send_end(self, result: Result[Any], outcome: Outcome) -> None:
        if isinstance(outcome, outcomes.Succeeded | outcomes.Failed | outcomes.Cancelled):
            self._send("task_finished", task_signals.task_finished, task_result=result)
        told = {"task_result": result, "outcome": outcome}
        self._send("post_execute_in_worker", post_execute_in_worker, **told)

    def report_end(self, result: Result[Any], outcome: Outcome) -> None:
        self._send("reporters_end", reporters_end, task_result=result, outcome=outcome)

    def _send(self, name: str, signal: Signal, **facts: Any) -> None:
        if signal.receivers:
            call_project(f"signal {name}", partial(signal.send_robust, self._sender, **facts))


def running_result(
    settings: Settings, running: Running, package: Package, worker_id: str
) -> Result[Any]:
    """Return the TaskResult of the attempt that begins, for signals, contexts and ``backoff``."""
    delivery, now = running.delivery, moment(running.started_at)
    worker_ids, errors = _earlier(settings, delivery) if delivery.attempt > 1 else ([], [])
    return Result(
        task=running.found.task,
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
        _own_attempt=delivery.attempt,
    )


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


def set_end(result: Result[Any], outcome: Outcome, value: Any, finished_at: datetime) -> None:
    """Set the result's final status, value and error, if the outcome is final."""
    if not isinstance(outcome, outcomes.Succeeded | outcomes.Failed | outcomes.Cancelled):
        return
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
