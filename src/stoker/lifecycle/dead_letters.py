"""Dead letters: what is kept of a job that used up its tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from stoker.conf import Settings
from stoker.exceptions import PackageError
from stoker.ids import new_job_id
from stoker.models import DeadLetter, Job
from stoker.models.job import moment
from stoker.package import sealer_for

from .faults import fingerprint
from .outcomes import Attempted, Failed


def bury(settings: Settings, buried: Sequence[tuple[Attempted, Failed]]) -> list[DeadLetter]:
    """Write one entry per logical job, in the caller's transaction. Returns the entries."""
    if not buried:
        return []
    job_ids = [attempted.delivery.job_id for attempted, _ in buried]
    alias = settings.database
    jobs = {job.pk: job for job in Job.objects.using(alias).filter(pk__in=job_ids)}
    entries = [_entry(settings, attempted, failed, jobs) for attempted, failed in buried]
    DeadLetter.objects.using(alias).upsert(entries)
    return entries


def _entry(
    settings: Settings, attempted: Attempted, failed: Failed, jobs: Mapping[UUID, Job]
) -> DeadLetter:
    delivery = attempted.delivery
    job = jobs.get(delivery.job_id)
    package = bytes(job.package) if job else delivery.package
    failed_at = moment(attempted.finished_at)
    return DeadLetter(
        id=new_job_id(),
        identity=_identity(settings, package) or str(delivery.job_id),
        job_id=delivery.job_id,
        task=job.task if job else "",
        queue=delivery.queue,
        priority=delivery.priority,
        package=package,
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


def _identity(settings: Settings, package: bytes) -> str:
    """What was signed with the job; a package that cannot be opened says nothing."""
    try:
        return sealer_for(settings).open_without_arguments(package).options.identity
    except PackageError:
        return ""
