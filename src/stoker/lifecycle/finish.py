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

from stoker.brokers.base import Broker, Lease, Return
from stoker.cached_results import keep
from stoker.conf import Settings
from stoker.following.follow import follow, transaction_for
from stoker.ids import is_marked, is_step
from stoker.models import Attempt, DeadLetter, Job, Step
from stoker.models.statements import with_keys
from stoker.package import JobOptions, Package

from . import outcomes
from .announcing import announce
from .as_rows import as_attempt, as_ended, as_ending, as_job, package_of
from .dead_letters import bury, resolve
from .faults import plain_fault
from .once import has_not_begun
from .outcomes import Attempted, Failed, Fault, Outcome, Verdict
from .outside import ensure_rows, known, record_outright
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
