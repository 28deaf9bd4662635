"""Finish: carry out what attempts came to. Record first, ack last; with a transactional broker both
are one transaction. A stale lease changes nothing.

::

    Succeeded                      ack      job: SUCCESSFUL
    Cancelled                      ack      job: CANCELLED             attempt
    Failed                         ack      job: FAILED, dead letter   attempt
    Retry                          release  after its delay            attempt
    Snoozed                        release  after its delay, attempt given back
    Crashed, TimedOut              tries left: as Retry; else as Failed

What is over goes on as its workflow and its hooks say (stoker.following).
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.brokers.base import Broker, Lease, Return
from stoker.conf import Settings
from stoker.exceptions import PackageError
from stoker.following.ended import Ended
from stoker.following.follow import follow, transaction_for
from stoker.ids import is_marked, is_step
from stoker.models import Attempt, DeadLetter, Job, Step
from stoker.models.job import Ending, NewJob, moment
from stoker.models.statements import with_keys
from stoker.package import JobOptions, Package, sealer_for

from . import outcomes
from .announcing import announce
from .dead_letters import bury, resolve
from .faults import plain_fault
from .outcomes import Attempted, Failed, Fault, Outcome, Verdict
from .retries import crash_delay_seconds


class WorkerCrashed(Exception):
    """Named in the record of an attempt whose worker process died; never raised."""


class TaskKilled(Exception):
    """Named in the record of an attempt whose worker was killed at its time-out; never raised."""


def finish(
    settings: Settings, broker: Broker, attempted: Sequence[Attempted], *, is_again: bool = False
) -> set[Lease]:
    """Record these attempts and free their leases.

    Args:
        settings: the backend's.
        broker: where the leases are from.
        attempted: what workers came to.
        is_again: whether this was tried before, and failed: it may have been done all the same.

    Returns:
        The leases that were stale: somebody else has the job now, nothing was recorded for it.
    """
    verdicts = [_resolve(settings, one) for one in attempted]
    done = _recorded(settings, verdicts) if is_again else set()
    over = [verdict.lease.job_id for verdict in verdicts if verdict.is_over]
    inside, outside = verdicts, list[Verdict]()
    if not broker.capabilities.transactional:
        inside = [verdict for verdict in verdicts if broker.is_inside(verdict.lease)]
        outside = [verdict for verdict in verdicts if not broker.is_inside(verdict.lease)]
    # Nobody else has them while their ends are being recorded.
    leases = [verdict.lease for verdict in outside]
    stale = broker.extend(leases, lease_seconds=settings.lease_seconds) if leases else set()
    outside = [verdict for verdict in outside if verdict.lease not in stale]
    with transaction_for(settings.database, over):
        if inside:
            stale |= _free(broker, inside)
        if unrecorded := stale | done:
            verdicts = [one for one in verdicts if one.lease not in unrecorded]
        if outside:
            _ensure_rows(settings, outside)
        entries = _record(settings, verdicts)
    announce(settings, verdicts, entries)  # if freeing fails, nobody will do this again
    if outside:
        _free(broker, outside)
    return stale - done


def _recorded(settings: Settings, verdicts: Sequence[Verdict]) -> set[Lease]:
    """Of these, what is recorded as just this attempt's end."""
    over = {one.lease.job_id: one for one in verdicts if one.is_over}
    ended = with_keys(Job.objects.using(settings.database).exclude(status=None), list(over))
    return {
        over[job_id].lease
        for job_id, attempts, worker_id in ended.values_list("pk", "attempts", "worker_id")
        if attempts == over[job_id].attempted.delivery.attempt
        and worker_id == over[job_id].attempted.worker_id
    }


def _resolve(settings: Settings, attempted: Attempted) -> Verdict:
    """Decide about attempts that could not decide for themselves."""
    delivery, outcome = attempted.delivery, attempted.outcome
    crashes = delivery.crashes
    if isinstance(outcome, outcomes.Crashed):
        crashes += 1
        fault = plain_fault(WorkerCrashed, outcome.detail)
        options = _options(settings, attempted)
        is_last = delivery.attempt >= options.max_attempts or crashes >= options.max_crashes
        outcome = _retry_unless(is_last, fault, "crash", crashes)
    elif isinstance(outcome, outcomes.TimedOut):
        fault = plain_fault(TaskKilled, outcome.detail)
        options = _options(settings, attempted)
        is_last = delivery.attempt >= options.max_attempts
        outcome = _retry_unless(is_last, fault, "timeout", delivery.attempt)
    is_over = isinstance(outcome, outcomes.Succeeded | outcomes.Cancelled | Failed)
    return Verdict(attempted, outcome, crashes, delivery.lease, is_over)


def _retry_unless(is_last: bool, fault: Fault, reason: str, times: int) -> Outcome:
    if is_last:
        return Failed(fault, reason)
    return outcomes.Retry(fault, crash_delay_seconds(times), reason)


def _options(settings: Settings, attempted: Attempted) -> JobOptions:
    package = _open(settings, attempted)
    if package is None:
        return JobOptions(max_attempts=settings.max_attempts, max_crashes=settings.max_crashes)
    return package.options


def _open(settings: Settings, attempted: Attempted) -> Package | None:
    delivery = attempted.delivery
    data = delivery.package
    if not data:
        packages = Job.objects.using(settings.database).packages([delivery.job_id])
        data = packages.get(delivery.job_id, b"")
    try:
        return sealer_for(settings).open_without_arguments(data)
    except PackageError:
        return None


def _free(broker: Broker, verdicts: Sequence[Verdict]) -> set[Lease]:
    """Ack what is over, release what is to be tried again. Returns the stale leases."""
    over = [verdict.lease for verdict in verdicts if verdict.is_over]
    again = [_return(verdict) for verdict in verdicts if not verdict.is_over]
    failed = {verdict.lease.job_id for verdict in verdicts if isinstance(verdict.outcome, Failed)}
    return broker.settle(over, again, failed=failed)


def _return(verdict: Verdict) -> Return:
    attempts = verdict.attempted.delivery.attempt
    outcome = verdict.outcome
    if isinstance(outcome, outcomes.Snoozed):
        attempts -= 1
    assert isinstance(outcome, outcomes.Snoozed | outcomes.Retry)
    return Return(verdict.lease, outcome.delay_seconds, attempts, verdict.crashes)


def _record(settings: Settings, verdicts: Sequence[Verdict]) -> list[DeadLetter]:
    alias = settings.database
    attempts = [_attempt(verdict) for verdict in verdicts if _is_recorded_as_attempt(verdict)]
    if attempts:
        Attempt.objects.using(alias).bulk_create(attempts, ignore_conflicts=True)
    buried = [
        (verdict.attempted, verdict.outcome)
        for verdict in verdicts
        if isinstance(verdict.outcome, Failed)
    ]
    entries = bury(settings, buried)
    over = [verdict for verdict in verdicts if verdict.is_over]
    resolve(alias, [verdict.lease.job_id for verdict in over if _succeeded(verdict)])
    snoozing = [one.lease.job_id for one in verdicts if isinstance(one.outcome, outcomes.Snoozed)]
    if steps := [job_id for job_id in snoozing if is_step(job_id)]:
        Step.objects.using(alias).disown(steps)
    follow(settings, [_ended(one) for one in over if is_marked(one.lease.job_id)])
    if not settings.keep_results.keeps_successes:
        _forget(alias, [verdict for verdict in over if _succeeded(verdict)])
        over = [verdict for verdict in over if not _succeeded(verdict)]
    Job.objects.using(alias).finish([_ending(verdict) for verdict in over])
    return entries


def _succeeded(verdict: Verdict) -> bool:
    return isinstance(verdict.outcome, outcomes.Succeeded)


def _is_recorded_as_attempt(verdict: Verdict) -> bool:
    return not isinstance(verdict.outcome, outcomes.Succeeded | outcomes.Snoozed)


def _forget(alias: str, verdicts: Sequence[Verdict]) -> None:
    job_ids = [verdict.lease.job_id for verdict in verdicts]
    if job_ids:
        Attempt.objects.using(alias).filter(job_id__in=job_ids).delete()
        Job.objects.using(alias).filter(pk__in=job_ids).delete()


def _ending(verdict: Verdict) -> Ending:
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


def _ended(verdict: Verdict) -> Ended:
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


def _attempt(verdict: Verdict) -> Attempt:
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


def _ensure_rows(settings: Settings, verdicts: Sequence[Verdict]) -> None:
    """A broker outside the store delivers jobs that have no row yet. Those that are to be forgotten
    need none."""
    jobs = []
    for verdict in verdicts:
        delivery = verdict.attempted.delivery
        is_kept = settings.keep_results.keeps_successes or not _succeeded(verdict)
        if not is_kept and not is_marked(delivery.job_id):
            continue
        package = _open(settings, verdict.attempted)
        task, enqueued_at = (package.task, package.enqueued_at) if package else ("", 0.0)
        place = (delivery.queue, delivery.priority)
        jobs.append(NewJob(delivery.job_id, task, *place, delivery.package, enqueued_at))
    Job.objects.using(settings.database).ensure(jobs)
