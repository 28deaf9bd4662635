"""What a broker outside the store brings has no row yet when it ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from stoker.brokers.base import Lease
from stoker.conf import Settings
from stoker.ids import is_marked
from stoker.models import Attempt, Job
from stoker.models.clock import instant_us
from stoker.models.job import NewJob
from stoker.models.outright import Success, add_successful
from stoker.models.statements import lock_by_key

from .as_rows import package_of
from .outcomes import Succeeded, Verdict


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
