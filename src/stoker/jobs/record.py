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

from collections.abc import Collection, Sequence
from uuid import UUID

from django.db import transaction

from stoker.brokers.contract import Broker, Lease, Return
from stoker.conf import Settings
from stoker.dead_letters.entries import bury, resolve
from stoker.exceptions import PackageError
from stoker.models import Attempt, DeadLetter, Job, Requeue, Step
from stoker.models.job import Ending, NewJob, Successes, moment
from stoker.signals import post_execute
from stoker.store.clock import instant_us
from stoker.store.insert import Success, add_successful
from stoker.store.statements import lock_by_key, with_keys
from stoker.values.ids import is_marked, is_step, none_is_marked
from stoker.workflows.deliver import Ended
from stoker.workflows.follow import follow, transaction_for

from . import outcomes
from .announce import announce
from .cached_results import keep
from .faults import plain_fault
from .once import has_not_begun
from .outcomes import Attempted, Failed, Fault, Outcome, Succeeded, Verdict
from .package import JobOptions, Package, sealer_for
from .retries import crash_delay_seconds
from .tallies import Tallies


class WorkerCrashed(Exception):
    """Named in the record of an attempt whose worker process died; never raised."""


class TaskKilled(Exception):
    """Named in the record of an attempt whose worker was killed at its time-out; never raised."""


def finish(
    settings: Settings,
    broker: Broker,
    attempted: Sequence[Attempted],
    *,
    is_again: bool = False,
    tallies: Tallies | None = None,
) -> set[Lease]:
    """Record these attempts and free their leases.

    Args:
        settings: the backend's.
        broker: where the leases are from.
        attempted: what workers came to.
        is_again: whether this was tried before, and failed: it may have been done all the same.
        tallies: where what is recorded is counted.

    Returns:
        The leases that were stale: somebody else has the job now, nothing was recorded for it.
    """
    verdicts = [_resolve(settings, one) for one in attempted]
    done = _recorded(settings, verdicts) if is_again else set()
    over = [verdict.lease.job_id for verdict in verdicts if verdict.is_over]
    inside, outside = _split(broker, verdicts)
    # Nobody else has them while their ends are being recorded, unless we are stopped meanwhile.
    leases = [verdict.lease for verdict in outside]
    stale = broker.extend(leases, lease_seconds=settings.lease_seconds) if leases else set()
    outside = [verdict for verdict in outside if verdict.lease not in stale]
    rowless = _rowless(settings, verdicts)
    with transaction_for(settings.database, over):
        if inside:
            stale |= _free(broker, inside)
        if unrecorded := stale | done:
            verdicts = [one for one in verdicts if one.lease not in unrecorded]
        outright = record_outright(settings, outside, rowless)
        if rest := [one for one in outside if one.lease.job_id not in outright]:
            ensure_rows(settings, rest, rowless)
            done |= known(settings, rest)
            verdicts = [one for one in verdicts if one.lease not in done]
        entries = _record(settings, verdicts, rowless, outright)
    announce(settings, verdicts, entries)  # if freeing fails, nobody will do this again
    if tallies is not None:
        tallies.add(verdicts)
    if outside:
        _free(broker, outside)
    return stale - done


def _split(broker: Broker, verdicts: list[Verdict]) -> tuple[list[Verdict], list[Verdict]]:
    """Those whose leases are in the store, and those whose leases are the broker's own."""
    if broker.capabilities.transactional:
        return verdicts, []
    inside = [one for one in verdicts if broker.is_inside(one.lease)]
    return inside, [one for one in verdicts if not broker.is_inside(one.lease)]


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
    if isinstance(outcome, outcomes.Succeeded):  # nearly always
        return Verdict(attempted, outcome, crashes, delivery.lease, True)
    if isinstance(outcome, outcomes.Crashed):
        crashes += 1
        fault = plain_fault(WorkerCrashed, outcome.detail)
        package = package_of(settings, attempted)
        options = _options(settings, package)
        is_last = delivery.attempt >= options.max_attempts or crashes >= options.max_crashes
        outcome = _retry_unless(is_last, fault, "crash", crashes)
        # A package that kills whoever opens it never begins: its crashes count all the same.
        if is_last and crashes < options.max_crashes and has_not_begun(settings, package):
            outcome = outcomes.Snoozed(0.0, "its cluster is gone, and it had not begun")
    elif isinstance(outcome, outcomes.TimedOut):
        fault = plain_fault(TaskKilled, outcome.detail)
        options = _options(settings, package_of(settings, attempted))
        is_last = delivery.attempt >= options.max_attempts
        outcome = _retry_unless(is_last, fault, "timeout", delivery.attempt)
    is_over = isinstance(outcome, outcomes.Cancelled | Failed)
    return Verdict(attempted, outcome, crashes, delivery.lease, is_over)


def _retry_unless(is_last: bool, fault: Fault, reason: str, times: int) -> Outcome:
    if is_last:
        return Failed(fault, reason)
    return outcomes.Retry(fault, crash_delay_seconds(times), reason)


def _options(settings: Settings, package: Package | None) -> JobOptions:
    if package is None:
        return JobOptions(max_attempts=settings.max_attempts, max_crashes=settings.max_crashes)
    return package.options


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


def _rowless(settings: Settings, verdicts: Sequence[Verdict]) -> set[UUID]:
    """Those of which no row stays: nobody wants to know, or a cache has it."""
    succeeded = [one for one in verdicts if _succeeded(one)]
    if not settings.keep_results.keeps_successes:
        return {one.lease.job_id for one in succeeded}
    if settings.results_cache is None:
        return set()
    at_once = [
        one
        for one in succeeded
        if one.attempted.delivery.attempt == 1
        and one.attempted.delivery.package
        and not is_marked(one.lease.job_id)
    ]
    return keep(settings, [as_job(one, package_of(settings, one.attempted)) for one in at_once])


def _record(
    settings: Settings,
    verdicts: Sequence[Verdict],
    rowless: Collection[UUID],
    outright: Collection[UUID],
) -> list[DeadLetter]:
    alias = settings.database
    succeeded = [verdict for verdict in verdicts if _succeeded(verdict)]
    others = [verdict for verdict in verdicts if not _succeeded(verdict)]
    entries = _record_troubles(settings, others) if others else []
    resolve(alias, [verdict.lease.job_id for verdict in succeeded])
    over = [verdict for verdict in verdicts if verdict.is_over]
    follow(settings, [as_ended(one) for one in over if is_marked(one.lease.job_id)])
    if rowless:
        _forget(alias, [one.lease.job_id for one in over if one.lease.job_id in rowless])
        over = [verdict for verdict in over if verdict.lease.job_id not in rowless]
    if outright:
        over = [verdict for verdict in over if verdict.lease.job_id not in outright]
    Job.objects.using(alias).finish([as_ending(verdict) for verdict in over])
    return entries


def _record_troubles(settings: Settings, verdicts: Sequence[Verdict]) -> list[DeadLetter]:
    """Of what did not succeed: attempts, dead letters, steps that wait again."""
    attempts = [
        as_attempt(one) for one in verdicts if not isinstance(one.outcome, outcomes.Snoozed)
    ]
    if attempts:
        Attempt.objects.using(settings.database).bulk_create(attempts, ignore_conflicts=True)
    failed = [(one.attempted, one.outcome) for one in verdicts if isinstance(one.outcome, Failed)]
    entries = bury(settings, failed)
    snoozing = [one.lease.job_id for one in verdicts if isinstance(one.outcome, outcomes.Snoozed)]
    if steps := [job_id for job_id in snoozing if is_step(job_id)]:
        Step.objects.using(settings.database).disown(steps)
    return entries


def _succeeded(verdict: Verdict) -> bool:
    return isinstance(verdict.outcome, outcomes.Succeeded)


def _forget(alias: str, job_ids: Sequence[UUID]) -> None:
    if job_ids:
        Attempt.objects.using(alias).filter(job_id__in=job_ids).delete()
        Job.objects.using(alias).filter(pk__in=job_ids).delete()


def finish_together(settings: Settings, broker: Broker, successes: Successes) -> bool:
    """Record these attempts and free their leases, if nothing else is to be done about any.

    Returns:
        Whether that was done. If not, nothing was, and each is a matter of ``finish``: something
        follows from its end, its row does not stay, or somebody else has its job by now.
    """
    alias, job_ids = settings.database, successes.job_ids
    if not (_is_plain(settings) and none_is_marked(job_ids)):
        return False
    write = Job.objects.using(alias).succeeding(successes)
    with transaction.atomic(using=alias):
        if not broker.end_all(job_ids, successes.lease_ids):
            transaction.set_rollback(True, using=alias)
            return False
        if Requeue.objects.using(alias).have_any(job_ids):
            resolve(alias, [UUID(job_id) for job_id in job_ids])
        write()
    return True


def _is_plain(settings: Settings) -> bool:
    keeps_rows = settings.keep_results.keeps_successes and settings.results_cache is None
    return keeps_rows and not post_execute.receivers


def record_outright(
    settings: Settings, verdicts: Sequence[Verdict], rowless: Collection[UUID]
) -> set[UUID]:
    """Record, of what has succeeded at once, all that the store knows nothing of: nearly all there
    is, so it is one statement. That the row is new says that nobody has recorded anything else of
    the job, and who wants to now has to wait for us. Returns the jobs that are recorded by it."""
    if rowless:
        return set()
    successes = [
        Success(
            delivery.job_id,
            attempted.task,
            delivery.queue,
            delivery.priority,
            delivery.package,
            instant_us(attempted.enqueued_at),
            attempted.worker_id,
            instant_us(attempted.started_at),
            instant_us(attempted.finished_at),
            verdict.outcome.value,
        )
        for verdict in verdicts
        if isinstance(verdict.outcome, Succeeded)
        and (attempted := verdict.attempted).task
        and attempted.enqueued_at is not None
        and (delivery := attempted.delivery).attempt == 1
        and not is_marked(delivery.job_id)
    ]
    return add_successful(settings.database, successes)


def ensure_rows(settings: Settings, verdicts: Sequence[Verdict], rowless: Collection[UUID]) -> None:
    """Rows for those that have none. Those of which none stays need none, unless something follows
    from their end."""
    jobs = []
    for verdict in verdicts:
        delivery = verdict.attempted.delivery
        if delivery.job_id in rowless and not is_marked(delivery.job_id):
            continue
        package = package_of(settings, verdict.attempted)
        task, enqueued_at = (package.task, package.enqueued_at) if package else ("", 0.0)
        place = (delivery.queue, delivery.priority)
        jobs.append(NewJob(delivery.job_id, task, *place, delivery.package, enqueued_at))
    Job.objects.using(settings.database).ensure(jobs)


def known(settings: Settings, verdicts: Sequence[Verdict]) -> set[Lease]:
    """Of these, what the store knows already: an end of the job, or this attempt as one that came
    to nothing. Who recorded that died before the broker heard of it; or we were stopped for so long
    that the job was taken over. The broker's leases are no fence for the store: the rows are, which
    stay locked until ours are written."""
    alias, job_ids = settings.database, [one.lease.job_id for one in verdicts]
    jobs = lock_by_key(Job.objects.using(alias), job_ids, "id", "status")
    ended = {job.id for job in jobs if job.status is not None}
    lost = set(
        Attempt.objects.using(alias).filter(job_id__in=job_ids).values_list("job_id", "number")
    )
    return {
        one.lease
        for one in verdicts
        if one.lease.job_id in ended or (one.lease.job_id, one.attempted.delivery.attempt) in lost
    }


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
