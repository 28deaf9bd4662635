"""Dead letters: entries for jobs that failed for good, until a later job for the same work
succeeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from stoker.conf import Settings
from stoker.exceptions import PackageError
from stoker.jobs.faults import fingerprint
from stoker.jobs.outcomes import Attempted, Failed
from stoker.jobs.package import sealer_for
from stoker.models import DeadLetter, Job, Requeue
from stoker.store.written import moment
from stoker.values.ids import new_job_id

from .policy import cooldowns_us


def bury(settings: Settings, buried: Sequence[tuple[Attempted, Failed]]) -> list[DeadLetter]:
    """Write one dead letter per logical job, in the caller's transaction. Return them."""
    if not buried:
        return []
    job_ids = [attempted.delivery.job_id for attempted, _ in buried]
    alias = settings.database
    jobs = {job.pk: job for job in Job.objects.using(alias).filter(pk__in=job_ids)}
    known = Requeue.objects.using(alias).identities([job_id.hex for job_id in job_ids])
    entries = [
        _entry(settings, attempted, failed, jobs.get(attempted.delivery.job_id), known)
        for attempted, failed in sorted(buried, key=lambda pair: pair[0].finished_at)
    ]
    return DeadLetter.objects.using(alias).upsert(
        entries, cooldowns_us(settings, entries, may_import=False)
    )


def resolve(alias: str, succeeded: Sequence[str]) -> None:
    """Close the dead letters that these successful jobs continued, in the caller's transaction.

    Args:
        alias: of the database.
        succeeded: the 32 digits of each job's id.
    """
    known = Requeue.objects.using(alias).identities(succeeded)
    letters = DeadLetter.objects.using(alias)
    by_identity = {
        one.identity: one for one in letters.unclosed().filter(identity__in=known.values())
    }
    for job_id, identity in sorted(known.items(), key=lambda pair: pair[1]):
        letter = by_identity.get(identity)
        if letter is not None and letter.job_id < job_id:
            letters.close(letter, DeadLetter.State.RESOLVED, "", f"job {job_id} succeeded")


def note_successors(alias: str, enqueued: Mapping[str, UUID]) -> None:
    """Record that newer jobs with the same unique keys continue open dead letters.

    The dead letters are not updated, because that would lock them in a transaction that may be
    long.

    Args:
        enqueued: identity of the logical job -> id of the new job.
    """
    if not enqueued:
        return
    letters = DeadLetter.objects.using(alias).unclosed().filter(identity__in=enqueued)
    notes = [
        Requeue(
            job_id=enqueued[identity],
            identity=identity,
            from_job_id=job_id,
            kind=Requeue.By.SUCCESSOR,
        )
        for identity, job_id in letters.values_list("identity", "job_id")
    ]
    if notes:
        Requeue.objects.using(alias).bulk_create(notes, ignore_conflicts=True)


def key_of(identity: str) -> str:
    """Return the name of the unique key in an identity; "" = none."""
    return identity.rpartition(" ")[0]


def _entry(
    settings: Settings,
    attempted: Attempted,
    failed: Failed,
    job: Job | None,
    known: Mapping[UUID, str],
) -> DeadLetter:
    delivery = attempted.delivery
    package = bytes(job.package) if job else delivery.package
    identity = known.get(delivery.job_id) or _identity(settings, package) or str(delivery.job_id)
    failed_at = moment(attempted.finished_at)
    return DeadLetter(
        id=new_job_id(),
        identity=identity,
        key=key_of(identity),
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
        enqueued_at=job.enqueued_at if job else None,
        first_failed_at=failed_at,
        failed_at=failed_at,
    )


def _identity(settings: Settings, package: bytes) -> str:
    """Return the signed identity of the job, or "" if the package cannot be opened."""
    try:
        return sealer_for(settings).open_without_arguments(package).options.identity
    except PackageError:
        return ""
