"""Tell the log, signals and reporters about recorded outcomes, and make the rows of attempts that
did not succeed. Each failed attempt is reported once, by the process that has the most details.

::

    the task raised, or could not be started      in the worker, while the error is handled
    its worker crashed, or was killed in time     in the monitor
    its cluster or host was lost                  in the scheduler that records it
    its outcome cannot be recorded                in the monitor
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from uuid import UUID

from stoker.brokers.contract import Lease
from stoker.compat import task_backends
from stoker.conf import Settings
from stoker.dead_letters.policy import tell_task
from stoker.exceptions import LeaseLost, PackageError
from stoker.jobs import outcomes
from stoker.jobs.attempt_signals import reporters_cancel
from stoker.jobs.faults import Fault
from stoker.jobs.outcomes import Attempted, Batch, Failed, Retried, Verdict
from stoker.jobs.package import Package, sealer_for
from stoker.jobs.received import result_about
from stoker.jobs.retries import OTHER_KEY_WAIT, UNKNOWN_TASK_WAIT
from stoker.models import Attempt, DeadLetter, Job
from stoker.signals import attempt_failed, call_project, dead_lettered, post_execute, tell
from stoker.store.transactions import after_commit
from stoker.store.written import moment
from stoker.workflows.deliver import Ended
from stoker.workflows.hooks import about_of_ended

LEASE_LOST = f"{LeaseLost.__module__}.{LeaseLost.__qualname__}"


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
    """``error``, ``timeout``, ``crash``, ``expired``, ``unreadable`` or ``unknown_task``;
    ``cancelled`` for ``Reporter.on_cancel``."""
    is_final: bool
    """Whether the job has ended. If not, it will be retried."""
    started_at: float | None
    """Seconds since 1970. None: unknown."""
    finished_at: float
    package: Package | None
    """The job's package; None if it cannot be opened. Without arguments and metadata if it is
    pickled and the worker is gone."""
    exception: BaseException | None = None
    """The exception with its traceback; None if only its text is available."""

    @property
    def task(self) -> str:
        """Dotted path of the task. "": unknown."""
        return self.package.task if self.package else ""


def tell_failure(
    settings: Settings,
    attempted: Attempted,
    package: Package | None = None,
    *,
    as_sealed: Callable[[], Package] | None = None,
    has_lost_lease: bool = False,
) -> None:
    """Log a failed attempt, and send ``attempt_failed`` if the signal has receivers.

    Args:
        settings: the backend's.
        attempted: the attempt.
        package: its package, if it is open already.
        as_sealed: opens the package again for receivers, because the task may have changed its
            arguments.
        has_lost_lease: whether nothing but the end of its lease shows that the attempt is over.
    """
    outcome = attempted.outcome
    if not isinstance(outcome, Failed | Retried):
        return
    package = package or _opened(settings, attempted)
    _log(attempted, outcome, package, has_lost_lease)
    if not attempt_failed.receivers:
        return
    if as_sealed is not None:
        package = as_sealed()
    failure = _failure_of(settings, attempted, package, outcome)
    sender = type(task_backends[settings.alias])
    call_project(
        "signal attempt_failed", partial(attempt_failed.send_robust, sender, failure=failure)
    )


def _tell_cancelled(settings: Settings, verdict: Verdict) -> None:
    """Tell reporters that a job was cancelled, if the end of its attempt in the worker did not say
    so."""
    outcome, attempted = verdict.outcome, verdict.attempted
    if not isinstance(outcome, outcomes.Cancelled) or not reporters_cancel.receivers:
        return
    if not outcome.was_killed and outcome.instead_of is None:
        return
    cancelled = Failed(Fault("", outcome.reason, ""), "cancelled")
    failure = _failure_of(settings, attempted, _opened(settings, attempted), cancelled)
    sender = type(task_backends[settings.alias])
    call_project("reporters", partial(reporters_cancel.send_robust, sender, failure=failure))


def _failure_of(
    settings: Settings, attempted: Attempted, package: Package | None, outcome: Failed | Retried
) -> Failure:
    delivery = attempted.delivery
    return Failure(
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


def _log(
    attempted: Attempted,
    outcome: Failed | Retried,
    package: Package | None,
    has_lost_lease: bool,
) -> None:
    began_at = attempted.started_at
    after = "" if began_at is None else f" after {max(0.0, attempted.finished_at - began_at):.3f} s"
    fault = outcome.fault
    has_lost_lease = has_lost_lease or fault.exception_class == LEASE_LOST
    follows = "The job has ended"
    if (
        fault.exception_class == LEASE_LOST
    ):  # whatever this process has decided, it will not be recorded
        follows = "Another cluster has the job"
    elif isinstance(outcome, Retried):
        delay = delay_of(outcome.delay_seconds)
        follows = f"The next attempt is in {delay}" if delay else "The next attempt is due now"
    error = fault.message.partition("\n")[0] if has_lost_lease else fault.in_one_line
    trace = fault.traceback.rstrip()
    tell(
        "attempt_failed",
        task=package.task if package else "unknown task",
        job_id=attempted.delivery.job_id,
        queue=attempted.delivery.queue,
        attempt=attempted.delivery.attempt,
        happened="lost its lease" if has_lost_lease else "failed",
        after=after,
        error=error.removesuffix("."),
        follows=follows,
        traceback=trace if "\n" in trace else "",  # one line says no more than the sentence
    )


def delay_of(seconds: float) -> str:
    """Return a delay as text, ``5.0 s``. A delay that would be ``0.0 s`` is ""."""
    text = f"{max(0.0, seconds):.1f} s"
    return "" if text == "0.0 s" else text


def _at_hand(fault: Fault) -> BaseException | None:
    """Return the exception that is being handled, if the fault was made from it, else None."""
    error = sys.exception()
    if error is None:
        return None
    kind = type(error)
    return (
        error if fault.exception_class == f"{kind.__module__}.{kind.__qualname__}"[:255] else None
    )


def _opened(settings: Settings, attempted: Attempted) -> Package | None:
    """Return the package, or None if it cannot be opened. The arguments are not unpickled, because
    the project's code may just have crashed the worker."""
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


def tell_stale(leases: Iterable[Lease]) -> None:
    """Log that the outcomes of jobs with these leases came too late."""
    for lease in leases:
        tell("stale_outcome", job_id=lease.job_id)


def _tell_released(verdict: Verdict, outcome: outcomes.Snoozed) -> None:
    """Log that a job was snoozed or released. If this cluster cannot run it, log the first job with
    each reason as a warning: there may be thousands, and each comes back every few seconds."""
    is_first = (
        outcome.wait in (UNKNOWN_TASK_WAIT, OTHER_KEY_WAIT)
        and outcome.reason not in _reasons_told
        and len(_reasons_told) < MOST_REASONS
    )
    if is_first:
        _reasons_told.add(outcome.reason)
    delay = delay_of(outcome.delay_seconds)
    tell(
        "not_runnable_here" if is_first else "put_back",
        job_id=verdict.lease.job_id,
        task=verdict.attempted.task,
        attempt=verdict.attempted.delivery.attempt,
        seconds=outcome.delay_seconds,
        delay=f" for {delay}" if delay else "",
        reason=outcome.reason,
    )


MOST_REASONS = 1000
"""Maximum number of different reasons that a process warns of."""
_reasons_told: set[str] = set()


def announce(settings: Settings, batch: Batch, entries: Sequence[DeadLetter]) -> None:
    """Send signals and log events for the outcomes in a batch and for new dead letters."""
    for verdict in batch.verdicts(batch.decided):
        if isinstance(verdict.attempted.outcome, outcomes.Crashed | outcomes.TimedOut):
            tell_failure(
                settings,
                replace(verdict.attempted, outcome=verdict.outcome),
                has_lost_lease=verdict.attempted.outcome == outcomes.CLUSTER_GONE,
            )
        _tell_cancelled(settings, verdict)
        if isinstance(verdict.outcome, outcomes.Snoozed):
            _tell_released(verdict, verdict.outcome)
    if post_execute.receivers:
        _tell_those_who_listen(settings, batch.over().verdicts())
    if not entries:
        return
    sender = type(task_backends[settings.alias])
    for entry in entries:
        tell(
            "dead_lettered",
            job_id=entry.job_id,
            task=entry.task or "an unknown task",
            attempts=entry.attempts,
            reason=entry.reason,
            error=_error_of(entry),
        )
        send = partial(dead_lettered.send_robust, sender, dead_letter=entry)
        if dead_lettered.receivers:
            call_project("signal dead_lettered", send)
        tell_task(entry)


def _error_of(entry: DeadLetter) -> str:
    """Return the error for the end of a sentence: ``": builtins.ValueError: no coal"``, or ""."""
    message = entry.message.partition("\n")[0].removesuffix(".")
    parts = [part for part in (entry.exception_class, message) if part]
    return "".join(f": {part}" for part in parts)


def _tell_those_who_listen(settings: Settings, over: Sequence[Verdict]) -> None:
    """Send ``post_execute`` for finished jobs, after the commit of an open transaction."""
    if over:
        send = partial(_send, settings, over)
        after_commit(settings.database, send)


def _send(settings: Settings, over: Sequence[Verdict]) -> None:
    for verdict in over:
        call_project("signal post_execute", partial(_send_one, settings, verdict))


def _send_one(settings: Settings, verdict: Verdict) -> None:
    sender = type(task_backends[settings.alias])
    about = about_of_ended(as_ended(verdict), _task_of(settings, verdict))
    result = result_about(settings, about)
    post_execute.send_robust(sender, task_result=result, outcome=verdict.outcome)


def _task_of(settings: Settings, verdict: Verdict) -> str:
    jobs = Job.objects.using(settings.database).filter(pk=verdict.lease.job_id)
    return jobs.values_list("task", flat=True).first() or ""


def as_ended(verdict: Verdict) -> Ended:
    """Return the data about an ended job for workflows and hooks."""
    job_id, attempt = verdict.lease.job_id, verdict.attempted.delivery.attempt
    match verdict.outcome:
        case outcomes.Succeeded(value):
            return Ended(job_id, Job.Status.SUCCESSFUL, attempt, value, lease=verdict.lease)
        case outcomes.Cancelled(reason):
            return Ended(job_id, Job.Status.CANCELLED, attempt, None, "", reason)
        case Failed(fault):
            told = (fault.exception_class, fault.message)
            return Ended(job_id, Job.Status.FAILED, attempt, None, *told)
    raise AssertionError("the outcome does not end the job")


def as_attempt(verdict: Verdict) -> Attempt:
    """Return the row to store for an attempt that did not succeed."""
    attempted, outcome, kind = verdict.attempted, verdict.outcome, Attempt.Kind.FAILED
    started_at = attempted.started_at
    if isinstance(outcome, outcomes.Cancelled) and isinstance(outcome.instead_of, Retried):
        outcome = outcome.instead_of
    fault = outcome.fault if isinstance(outcome, Failed | Retried) else Fault("", "", "")
    seen = attempted.outcome
    if isinstance(outcome, outcomes.Cancelled):
        kind, fault = Attempt.Kind.CANCELLED, Fault("", outcome.reason, "")
    elif isinstance(seen, outcomes.Crashed):
        kind = Attempt.Kind.CRASHED
    elif isinstance(outcome, Failed | Retried) and outcome.reason == "timeout":
        kind = Attempt.Kind.TIMED_OUT
    return Attempt(
        job_id=verdict.lease.job_id,
        number=attempted.delivery.attempt,
        kind=kind,
        worker_id=attempted.worker_id,
        started_at=None if started_at is None else moment(started_at),
        finished_at=moment(attempted.finished_at),
        retry_at=_retry_at(verdict),
        exception_class=fault.exception_class,
        message=fault.message,
        traceback=fault.traceback,
        exit_code=seen.exit_code if isinstance(seen, outcomes.Crashed) else None,
        signal=seen.signal if isinstance(seen, outcomes.Crashed | outcomes.TimedOut) else None,
    )


def _retry_at(verdict: Verdict) -> datetime | None:
    """Return when the next attempt is due; None if there is none."""
    if not isinstance(verdict.outcome, Retried):
        return None
    try:
        return moment(verdict.attempted.finished_at + verdict.outcome.delay_seconds)
    except (OverflowError, ValueError):  # later than a datetime can say
        return None
