"""Cancel: a job that waits is withdrawn and recorded as cancelled, in one transaction."""

from __future__ import annotations

import time
from uuid import UUID

from django.db import transaction
from django.db.models import Max

from .brokers import broker_for
from .conf import Settings
from .models import Attempt, Job
from .models.job import Ending
from .progress import explained


def cancel_waiting(settings: Settings, unstored: Job, reason: str) -> bool:
    """Cancel a job that waits. False: it runs, has ended, or is not there; nothing was changed.

    Args:
        settings: the backend's.
        unstored: the job, as it would be stored by now if the broker did that at enqueue.
        reason: at most 255 characters of it are kept.
    """
    alias, broker = settings.database, broker_for(settings)
    with explained(alias), transaction.atomic(using=alias):
        if unstored.pk not in broker.withdraw([unstored.pk]):
            return False
        if not broker.capabilities.transactional:
            Job.objects.using(alias).bulk_create([unstored], ignore_conflicts=True)
        Job.objects.using(alias).finish([_ending(alias, unstored.pk, reason)])
    return True


def _ending(alias: str, job_id: UUID, reason: str) -> Ending:
    failures = Attempt.objects.using(alias).filter(job_id=job_id)
    return Ending(
        job_id=job_id,
        status=Job.Status.CANCELLED.value,
        attempts=failures.aggregate(last=Max("number"))["last"] or 0,
        worker_id="",
        started_at=None,
        finished_at=time.time(),
        reason=reason,
    )
