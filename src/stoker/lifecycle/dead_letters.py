"""Dead letters: what is kept of a job that used up its tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from stoker.ids import new_job_id
from stoker.models import DeadLetter, Job
from stoker.models.job import moment

from .faults import fingerprint
from .outcomes import Attempted, Failed


def bury(alias: str, buried: Sequence[tuple[Attempted, Failed]]) -> list[DeadLetter]:
    """Write one entry per logical job, in the caller's transaction. Returns the entries."""
    if not buried:
        return []
    job_ids = [attempted.delivery.job_id for attempted, _ in buried]
    jobs = {job.pk: job for job in Job.objects.using(alias).filter(pk__in=job_ids)}
    entries = [_entry(attempted, failed, jobs) for attempted, failed in buried]
    DeadLetter.objects.using(alias).upsert(entries)
    return entries


def _entry(attempted: Attempted, failed: Failed, jobs: Mapping[UUID, Job]) -> DeadLetter:
    delivery = attempted.delivery
    job = jobs.get(delivery.job_id)
    failed_at = moment(attempted.finished_at)
    return DeadLetter(
        id=new_job_id(),
        identity=str(delivery.job_id),
        job_id=delivery.job_id,
        task=job.task if job else "",
        queue=delivery.queue,
        priority=delivery.priority,
        package=bytes(job.package) if job else delivery.package,
        reason=failed.reason,
        exception_class=failed.fault.exception_class,
        message=failed.fault.message,
        traceback=failed.fault.traceback,
        fingerprint=fingerprint(failed.fault),
        attempts=delivery.attempt,
        worker_id=attempted.worker_id,
        first_failed_at=failed_at,
        failed_at=failed_at,
    )
