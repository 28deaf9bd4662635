"""What a person, or the age of it, does to a dead letter in the end: discard and purge."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from django.db import transaction

from stoker.brokers import broker_for
from stoker.conf import Settings
from stoker.models import Attempt, DeadLetter, Job, Requeue
from stoker.models.commits import after_commit
from stoker.models.dead_letter import CLOSED, DeadLetterQuerySet
from stoker.models.halting import let_go
from stoker.models.statements import with_keys

from .requeue import is_alive

TRIES = 10


def discard(settings: Settings, dead_letter_id: UUID, by: str, because: str) -> bool:
    """Nothing is to be done about this dead letter. A sequence that it halts goes on.

    Returns:
        False: it was closed already, is not there, or a job carries it on, which would have to be
        cancelled first.
    """
    alias = settings.database
    letters = DeadLetter.objects.using(alias)
    for _ in range(TRIES):
        seen = letters.unclosed().filter(pk=dead_letter_id).first()
        if seen is None:
            return False
        if seen.successor_id is not None and is_alive(alias, seen.successor_id):
            return False
        with transaction.atomic(using=alias):
            queues = let_go(alias, [seen.job_id])
            if letters.close(seen, DeadLetter.State.DISCARDED, by, because):
                _call(settings, queues)
                return True
            transaction.set_rollback(True, using=alias)
    return False


def past(settings: Settings, state: str, before: datetime) -> DeadLetterQuerySet:
    """Those that may be purged: closed before that moment; or open, and failed before it."""
    letters = DeadLetter.objects.using(settings.database).filter(state=state)
    if state in CLOSED:
        return letters.filter(closed_at__lt=before)
    if state == DeadLetter.State.OPEN:
        return letters.filter(failed_at__lt=before)
    return letters.none()  # a job carries it on


def purge(settings: Settings, state: str, before: datetime, ids: Sequence[UUID]) -> int:
    """Delete those of these dead letters that are past, with their history. Returns how many."""
    alias = settings.database
    with transaction.atomic(using=alias):
        rows = with_keys(past(settings, state, before), ids)
        job_ids = list(rows.values_list("job_id", flat=True))
        queues = let_go(alias, job_ids)
        locked = with_keys(past(settings, state, before), ids).filter(job_id__in=job_ids)
        gone = dict(locked.select_for_update().values_list("pk", "identity"))
        identities = list(gone.values())
        with_keys(DeadLetter.objects.using(alias), list(gone)).delete()
        _forget_history(alias, identities, job_ids)
        _call(settings, queues)
    return len(gone)


def _forget_history(alias: str, identities: Sequence[str], job_ids: Sequence[UUID]) -> None:
    """What happened to jobs that are kept is kept with them."""
    requeues = Requeue.objects.using(alias).filter(identity__in=identities)
    tried = {*job_ids, *requeues.values_list("from_job_id", flat=True)}
    requeues.delete()
    kept = set(with_keys(Job.objects.using(alias), tried).values_list("pk", flat=True))
    Attempt.objects.using(alias).filter(job_id__in=tried - kept).delete()


def _call(settings: Settings, queues: set[str]) -> None:
    if queues:
        broker = broker_for(settings)
        after_commit(settings.database, lambda: broker.wake_up(queues))
