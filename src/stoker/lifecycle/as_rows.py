"""How an attempt came out, as the store keeps it."""

from __future__ import annotations

from stoker.conf import Settings
from stoker.exceptions import PackageError
from stoker.following.ended import Ended
from stoker.models import Attempt, Job
from stoker.models.ending import Ending
from stoker.models.job import moment
from stoker.package import Package, sealer_for

from . import outcomes
from .outcomes import Attempted, Failed, Fault, Verdict


def as_ending(verdict: Verdict) -> Ending:
    outcome, attempted = verdict.outcome, verdict.attempted
    value, reason, status = None, "", Job.Status.FAILED
    if isinstance(outcome, outcomes.Succeeded):
        value, status = outcome.value, Job.Status.SUCCESSFUL
    elif isinstance(outcome, outcomes.Cancelled):
        reason, status = outcome.reason, Job.Status.CANCELLED
    elif isinstance(outcome, Failed):
        reason = f"{outcome.reason}: {outcome.fault.in_one_line}"
    return Ending(
        job_id=verdict.lease.job_id,
        status=status.value,
        attempts=attempted.delivery.attempt,
        worker_id=attempted.worker_id,
        started_at=attempted.started_at,
        finished_at=attempted.finished_at,
        value=value,
        reason=reason,
    )


def as_ended(verdict: Verdict) -> Ended:
    job_id, attempt = verdict.lease.job_id, verdict.attempted.delivery.attempt
    match verdict.outcome:
        case outcomes.Succeeded(value):
            return Ended(job_id, Job.Status.SUCCESSFUL, attempt, value)
        case outcomes.Cancelled(reason):
            return Ended(job_id, Job.Status.CANCELLED, attempt, None, "", reason)
        case Failed(fault):
            told = (fault.exception_class, fault.message)
            return Ended(job_id, Job.Status.FAILED, attempt, None, *told)
    raise AssertionError("it is not over")


def as_attempt(verdict: Verdict) -> Attempt:
    attempted, outcome, kind = verdict.attempted, verdict.outcome, Attempt.Kind.FAILED
    fault = outcome.fault if isinstance(outcome, Failed | outcomes.Retry) else Fault("", "", "")
    seen = attempted.outcome
    if isinstance(outcome, outcomes.Cancelled):
        kind, fault = Attempt.Kind.CANCELLED, Fault("", outcome.reason, "")
    elif isinstance(seen, outcomes.Crashed):
        kind = Attempt.Kind.CRASHED
    elif isinstance(outcome, Failed | outcomes.Retry) and outcome.reason == "timeout":
        kind = Attempt.Kind.TIMED_OUT
    return Attempt(
        job_id=verdict.lease.job_id,
        number=attempted.delivery.attempt,
        kind=kind,
        worker_id=attempted.worker_id,
        started_at=None if attempted.started_at is None else moment(attempted.started_at),
        finished_at=moment(attempted.finished_at),
        exception_class=fault.exception_class,
        message=fault.message,
        traceback=fault.traceback,
        exit_code=seen.exit_code if isinstance(seen, outcomes.Crashed) else None,
        signal=seen.signal if isinstance(seen, outcomes.Crashed | outcomes.TimedOut) else None,
    )


def as_job(verdict: Verdict, package: Package | None) -> Job:
    """What the row of a job that has ended would be."""
    delivery, ending = verdict.attempted.delivery, as_ending(verdict)
    return Job(
        pk=delivery.job_id,
        task=package.task if package else "",
        queue=delivery.queue,
        priority=delivery.priority,
        package=delivery.package,
        enqueued_at=moment(package.enqueued_at if package else 0.0),
        status=ending.status,
        attempts=ending.attempts,
        worker_id=ending.worker_id,
        started_at=None if ending.started_at is None else moment(ending.started_at),
        finished_at=moment(ending.finished_at),
        value=ending.value,
    )


def package_of(settings: Settings, attempted: Attempted) -> Package | None:
    """What was tried, without its arguments; None when it cannot be opened."""
    delivery = attempted.delivery
    data = delivery.package
    if not data:
        packages = Job.objects.using(settings.database).packages([delivery.job_id])
        data = packages.get(delivery.job_id, b"")
    try:
        return sealer_for(settings).open_without_arguments(data)
    except PackageError:
        return None
