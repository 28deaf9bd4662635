"""Failures: each failed attempt is reported once, by the process that knows most about it.

::

    the task raised, or could not be started      in the worker, while the error is handled
    its worker crashed, or was killed in time     in the monitor, or the process that records it
    its outcome cannot be recorded                in the monitor
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from stoker.compat import task_backends
from stoker.conf import Settings
from stoker.exceptions import PackageError
from stoker.models import Job
from stoker.signals import attempt_failed, call_project, tell

from .outcomes import Attempted, Failed, Fault, Retry
from .package import Package, sealer_for


@dataclass(frozen=True, slots=True)
class Failure:
    """One attempt that failed."""

    job_id: UUID
    queue: str
    attempt: int
    """Number of the attempt, from 1."""
    backend: str
    """Name of the backend under ``TASKS``."""
    worker_id: str
    fault: Fault
    reason: str
    """``error``, ``timeout``, ``crash``, ``expired``, ``unreadable`` or ``unknown_task``."""
    is_final: bool
    """Whether the job has ended. If not, it will be retried."""
    started_at: float | None
    """Seconds since 1970. None: unknown."""
    finished_at: float
    package: Package | None
    """The job's package; None if it cannot be opened. Without arguments and metadata if it is
    pickled and the worker is gone."""
    exception: BaseException | None = None
    """The exception with its traceback; None if only its text is known."""

    @property
    def task(self) -> str:
        """Dotted path of the task. "": unknown."""
        return self.package.task if self.package else ""


def tell_failure(settings: Settings, attempted: Attempted, package: Package | None = None) -> None:
    """Log a failed attempt, and send ``attempt_failed`` if the signal has receivers."""
    outcome, delivery = attempted.outcome, attempted.delivery
    if not isinstance(outcome, Failed | Retry):
        return
    package = package or _opened(settings, attempted)
    _log(attempted, outcome, package)
    if not attempt_failed.receivers:
        return
    failure = Failure(
        job_id=delivery.job_id,
        queue=delivery.queue,
        attempt=delivery.attempt,
        backend=settings.alias,
        worker_id=attempted.worker_id,
        fault=outcome.fault,
        reason=outcome.reason,
        is_final=isinstance(outcome, Failed),
        started_at=attempted.started_at,
        finished_at=attempted.finished_at,
        package=package,
        exception=_at_hand(outcome.fault),
    )
    sender = type(task_backends[settings.alias])
    call_project(
        "signal attempt_failed", partial(attempt_failed.send_robust, sender, failure=failure)
    )


def _log(attempted: Attempted, outcome: Failed | Retry, package: Package | None) -> None:
    began_at = attempted.started_at
    after = "" if began_at is None else f" after {max(0.0, attempted.finished_at - began_at):.3f} s"
    follows = "The job has ended"
    if isinstance(outcome, Retry):
        follows = f"The next attempt is in {outcome.delay_seconds:.1f} s"
    trace = outcome.fault.traceback.rstrip()
    tell(
        "attempt_failed",
        task=package.task if package else "unknown task",
        job_id=attempted.delivery.job_id,
        queue=attempted.delivery.queue,
        attempt=attempted.delivery.attempt,
        after=after,
        error=outcome.fault.in_one_line,
        follows=follows,
        traceback=trace if "\n" in trace else "",  # one line says no more than the sentence
    )


def _at_hand(fault: Fault) -> BaseException | None:
    """Return the exception that is being handled, if the fault was made from it."""
    error = sys.exception()
    if error is None:
        return None
    kind = type(error)
    return (
        error if fault.exception_class == f"{kind.__module__}.{kind.__qualname__}"[:255] else None
    )


def _opened(settings: Settings, attempted: Attempted) -> Package | None:
    """Return the package, or None if it cannot be opened. No code of the project is run, because it
    may just have crashed the worker."""
    delivery = attempted.delivery
    try:
        data = delivery.package
        if not data:
            data = Job.objects.using(settings.database).packages([delivery.job_id])[delivery.job_id]
        sealer = sealer_for(settings)
        if settings.serializer == "pickle":
            return sealer.open_without_arguments(data)
        return sealer.open(data)
    except PackageError:
        return None
    except Exception:  # noqa: BLE001 - a report must not undo the record
        return None
