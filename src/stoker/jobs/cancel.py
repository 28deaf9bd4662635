"""Cancel: a job that waits is withdrawn and recorded as cancelled, in one transaction. For one that
runs, a request is stored, which its cluster finds within a second.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from django.db import transaction

from stoker.brokers.adapters import broker_for, outgoing_of
from stoker.conf import Settings
from stoker.models import Cancellation, Job, Outgoing
from stoker.values.text import stored_text
from stoker.workflows.follow import end_waiting, record_cancelled, transaction_for

from .states import explained

LONGEST_REASON = 255
LOOKS = 5
"""A job on the move from one table to the next may be missed by one look, not by several."""


def cancel(settings: Settings, unstored: Job, reason: str) -> bool:
    """Cancel a job that waits, or ask that one be ended that runs. False: it has ended, or is not
    there; nothing was changed. For the arguments see ``cancel_waiting``.

    Raises:
        BrokerUnavailable: nobody knows the job, and a database in whose outbox it may wait does not
            answer.
    """
    broker, reason = broker_for(settings), stored_text(reason, LONGEST_REASON)
    has_asked_outboxes = False
    for _ in range(LOOKS):
        if cancel_waiting(settings, unstored, reason):
            return True
        with explained(settings.database):
            place = broker.whereabouts([unstored.pk]).get(unstored.pk)
            if place == "running":
                Cancellation.objects.using(settings.database).ask(unstored.pk, reason)
                return True
            if place is None and (has_asked_outboxes or _is_stored(settings, unstored)):
                return False
        if place is None:
            if _cancel_outgoing(settings, unstored, reason):
                return True
            has_asked_outboxes = True  # it may have been relayed just now
    return False


def _is_stored(settings: Settings, job: Job) -> bool:
    """Whether the store has the job. Then no outbox has it, and other databases are not asked."""
    return Job.objects.using(settings.database).filter(pk=job.pk).exists()


def sweep_requests(settings: Settings) -> int:
    """Forget requests whose job has ended, and cancel where it waits again: it failed when it was
    told to end. Returns how many requests are settled."""
    alias, broker = settings.database, broker_for(settings)
    reasons = Cancellation.objects.using(alias).reasons()
    if not reasons:
        return 0
    places = broker.whereabouts(list(reasons))
    waiting = [job_id for job_id in reasons if places.get(job_id, "running") != "running"]
    for job in Job.objects.using(alias).filter(pk__in=waiting).defer("package"):
        cancel_waiting(settings, job, reasons[job.pk])
    settled = Job.objects.using(alias).filter(pk__in=reasons).exclude(status=None)
    gone = set(reasons) - set(places) | set(settled.values_list("pk", flat=True))
    return Cancellation.objects.using(alias).filter(pk__in=gone).delete()[0]


def cancel_waiting(settings: Settings, unstored: Job, reason: str) -> bool:
    """Cancel a job that waits in the store or the broker. False: it runs, has ended, or is not
    there; nothing was changed.

    Args:
        settings: the backend's.
        unstored: the job, as it would be stored by now if the broker did that at enqueue.
        reason: at most 255 characters of it are kept.
    """
    alias, broker = settings.database, broker_for(settings)
    with explained(alias), transaction_for(alias, [unstored.pk]):
        if broker.withdraw([unstored.pk]):
            if not broker.capabilities.transactional:
                Job.objects.using(alias).bulk_create([unstored], ignore_conflicts=True)
            record_cancelled(settings, [unstored.pk], reason)
            return True
    return False


def _cancel_outgoing(settings: Settings, unstored: Job, reason: str) -> bool:
    """Cancel a job that its broker does not have yet. Its row is locked until that is recorded."""
    alias = settings.database
    for row in outgoing_of(settings, [unstored.pk]):
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
    """The same for many at once, of a broker in the database. Returns those cancelled."""
    with explained(settings.database):
        return end_waiting(settings, job_ids, stored_text(reason, LONGEST_REASON))
