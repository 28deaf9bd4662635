"""Cancel jobs.

A waiting job is withdrawn and recorded as cancelled in one transaction. For a running job a request
is stored, which its cluster finds within a second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.brokers.dispatch import Dispatch
from stoker.conf import Settings
from stoker.models import Cancellation, Job, Outgoing, Step
from stoker.store.engines.sessions import explained
from stoker.store.statements import lock_by_key
from stoker.store.transactions import after_commit, is_in_transaction
from stoker.values.ids import is_step
from stoker.values.text import stored_text
from stoker.workflows.follow import end_waiting, record_cancelled, transaction_for

LONGEST_REASON = 255
LOOKS = 5
"""How many times to look for a job. A single look may miss a job that moves between tables."""


def cancel(settings: Settings, unstored: Job, reason: str) -> bool:
    """Cancel a waiting job, or request the cancellation of a running one.

    Returns False if the job has ended or does not exist. For the arguments see ``cancel_waiting``.

    A job at a broker outside the database is withdrawn after the request was committed; within a
    transaction, when that commits.

    Raises:
        BrokerUnavailable: the job is unknown, and a database in whose outbox it may wait does not
            answer.
    """
    broker, reason = broker_for(settings), stored_text(reason, LONGEST_REASON)
    has_asked_outboxes = False
    for _ in range(LOOKS):
        if _forgets_withdrawn(broker) and _request(settings, unstored, reason):
            return True
        if cancel_waiting(settings, unstored, reason):
            return True
        with explained(settings.database):
            _forget_request_row(settings, unstored)
            place = broker.states([unstored.pk]).get(unstored.pk)
            if place == "running":
                Cancellation.objects.using(settings.database).ask(unstored.pk, reason)
                # Its cluster may have released it just before it could see the request.
                after_commit(settings.database, partial(cancel_waiting, settings, unstored, reason))
                return True
            if place is None and (has_asked_outboxes or _is_stored(settings, unstored)):
                return False
        if place is None:
            if _cancel_outgoing(settings, unstored, reason):
                return True
            has_asked_outboxes = True  # it may have been relayed just now
    return False


def _is_stored(settings: Settings, job: Job) -> bool:
    """Return whether the store has the job. If it has, the outboxes of other databases need not be
    searched."""
    return Job.objects.using(settings.database).filter(pk=job.pk).exists()


def _forgets_withdrawn(broker: Dispatch) -> bool:
    """Return whether a withdrawn job is gone even if the transaction that records its end is rolled
    back."""
    can = broker.capabilities
    return can.shared and can.look_up and not can.transactional


def _request(settings: Settings, unstored: Job, reason: str) -> bool:
    """Store the request before a waiting job is withdrawn, so that upkeep can finish the work if
    this process dies. Return whether the caller has nothing left to do."""
    alias, broker = settings.database, broker_for(settings)
    with explained(alias):
        if broker.states([unstored.pk]).get(unstored.pk, "running") == "running":
            return False
        with transaction.atomic(using=alias):
            Cancellation.objects.using(alias).ask(unstored.pk, reason)
            if not is_step(unstored.pk):  # upkeep finds the data of a step itself
                Job.objects.using(alias).bulk_create([unstored], ignore_conflicts=True)
        if not is_in_transaction(alias):
            return False
        withdraw = partial(cancel_waiting, settings, unstored, reason)
        transaction.on_commit(withdraw, using=alias, robust=True)
    return True


def _forget_request_row(settings: Settings, unstored: Job) -> None:
    """Delete the row without a package that was inserted with the request, because the job has
    begun meanwhile."""
    if _forgets_withdrawn(broker_for(settings)):
        rows = Job.objects.using(settings.database)
        rows.filter(pk=unstored.pk, status=None, package=b"").delete()


def sweep_requests(settings: Settings) -> int:
    """Delete requests whose job has ended. Cancel jobs that wait for a retry because their attempt
    failed after the request to end it. Return the number of deleted requests."""
    alias, broker = settings.database, broker_for(settings)
    reasons = Cancellation.objects.using(alias).reasons()
    if not reasons:
        return 0
    outgoing: set[UUID] = set()
    if _forgets_withdrawn(broker):
        outgoing = {row.pk for row in broker.outgoing(list(reasons))}
    places = broker.states(list(reasons))
    waiting = [job_id for job_id in reasons if places.get(job_id, "running") != "running"]
    for job in [*Job.objects.using(alias).filter(pk__in=waiting), *_steps(alias, waiting)]:
        cancel_waiting(settings, job, reasons[job.pk])
    absent = set(reasons) - set(places) - outgoing
    if _forgets_withdrawn(broker):
        _record_withdrawn(settings, {job_id: reasons[job_id] for job_id in sorted(absent)})
    settled = Job.objects.using(alias).filter(pk__in=reasons).exclude(status=None)
    gone = absent | set(settled.values_list("pk", flat=True))
    return Cancellation.objects.using(alias).filter(pk__in=gone).delete()[0]


def _record_withdrawn(settings: Settings, reasons: Mapping[UUID, str]) -> None:
    """Record as cancelled the jobs that another process withdrew but could not record."""
    alias = settings.database
    steps = {job.pk: job for job in _steps(alias, reasons)}
    for job_id, reason in reasons.items():
        with explained(alias), transaction_for(alias, [job_id]):
            if job_id in steps:
                Job.objects.using(alias).bulk_create([steps[job_id]], ignore_conflicts=True)
            if _is_unended(alias, job_id):
                record_cancelled(settings, [job_id], reason)


def _steps(alias: str, job_ids: Iterable[UUID]) -> list[Job]:
    """Return unsaved rows for jobs of workflow steps that have no row."""
    steps = Step.objects.using(alias).filter(job_id__in=list(job_ids), state=Step.State.ENQUEUED)
    labels = {job_id: label for job_id, label in steps.values_list("job_id", "label") if job_id}
    stored = set(Job.objects.using(alias).filter(pk__in=labels).values_list("pk", flat=True))
    return [unstored_step(*one) for one in labels.items() if one[0] not in stored]


def unstored_step(job_id: UUID, label: str) -> Job:
    """Return an unsaved row for the job of a step that never began."""
    return Job(pk=job_id, task=label, queue="default", package=b"", enqueued_at=timezone.now())


def _is_unended(alias: str, job_id: UUID) -> bool:
    """Lock a job's row. Return whether it exists and the job has not ended."""
    rows = lock_by_key(Job.objects.using(alias), [job_id], "id", "status")
    return any(job.status is None for job in rows)


class _NotWaitingError(Exception):
    """Raised if the job does not wait. The transaction is rolled back."""


def cancel_waiting(settings: Settings, unstored: Job, reason: str) -> bool:
    """Cancel a job that waits in the store or the broker. Return False if it is running, has ended
    or does not exist; nothing is changed then.

    Args:
        settings: settings of the backend.
        unstored: the job as an unsaved row, for brokers that store no row at enqueue.
        reason: at most 255 characters are kept.
    """
    alias, broker = settings.database, broker_for(settings)
    with (
        suppress(_NotWaitingError),
        explained(alias),
        transaction_for(alias, [unstored.pk]),
    ):
        if _forgets_withdrawn(broker):  # upkeep waits for the lock on this row
            Job.objects.using(alias).bulk_create([unstored], ignore_conflicts=True)
            if not _is_unended(alias, unstored.pk):
                raise _NotWaitingError
        if not broker.withdraw([unstored.pk]):
            raise _NotWaitingError
        if not broker.capabilities.transactional:
            Job.objects.using(alias).bulk_create([unstored], ignore_conflicts=True)
        record_cancelled(settings, [unstored.pk], reason)
        return True
    return False


def _cancel_outgoing(settings: Settings, unstored: Job, reason: str) -> bool:
    """Cancel a job that is still in an outbox. Its outbox row stays locked until the end is
    recorded."""
    alias = settings.database
    for row in broker_for(settings).outgoing([unstored.pk]):
        outbox = row._state.db
        with transaction.atomic(using=outbox):
            if not Outgoing.objects.using(outbox).filter(pk=unstored.pk).delete()[0]:
                continue
            with explained(alias), transaction_for(alias, [unstored.pk]):
                Job.objects.using(alias).bulk_create([unstored], ignore_conflicts=True)
                record_cancelled(settings, [unstored.pk], reason)
        return True
    return False


def cancel_those_waiting(settings: Settings, job_ids: Collection[UUID], reason: str) -> set[UUID]:
    """Cancel the given jobs that wait, for a broker in the database. Return their ids."""
    with explained(settings.database):
        return end_waiting(settings, job_ids, stored_text(reason, LONGEST_REASON))
