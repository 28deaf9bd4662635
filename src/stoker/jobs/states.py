"""Read the states of jobs from the store and the broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import TextChoices

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import BrokerJob
from stoker.brokers.outage import outage_error
from stoker.compat import InvalidTask, TaskError, TaskResultDoesNotExist, TaskResultStatus
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, PackageError, UnknownTask
from stoker.models import Attempt, Claimed, Cluster, Job, Outgoing
from stoker.models.cluster import Seat
from stoker.store.engines.sessions import explained
from stoker.store.written import moment
from stoker.tasks.decorator import absent_task, find_task

from .cached_results import look_up
from .package import Package, sealer_for

ONLY_BROKER_MAY_KNOW = (
    "The job is not in the database. The broker may have it, but does not answer."
)
LOOKS = 3
"""How many times to look for a job. A single look may miss a job that moves between tables."""


class JobState(TextChoices):
    """The state of a job."""

    DEFERRED = "DEFERRED"
    BLOCKED = "BLOCKED"
    READY = "READY"
    CLAIMED = "CLAIMED"
    """A cluster has leased the job, and no worker has started it yet."""
    RUNNING = "RUNNING"
    SUCCESSFUL = "SUCCESSFUL"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def for_django(self) -> TaskResultStatus:
        """Return the nearest of the four states of ``django.tasks``."""
        return FOR_DJANGO[self]


FOR_DJANGO = {
    JobState.DEFERRED: TaskResultStatus.READY,
    JobState.BLOCKED: TaskResultStatus.READY,
    JobState.READY: TaskResultStatus.READY,
    JobState.CLAIMED: TaskResultStatus.READY,
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.SUCCESSFUL: TaskResultStatus.SUCCESSFUL,
    JobState.FAILED: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
}


@dataclass(frozen=True, slots=True)
class Progress:
    """State, row, failed attempts and worker of one job, as of the time they were read."""

    job: Job | None
    """The job's row. None: the job has not ended, and its broker is outside the store. Then
    ``full_progress_of`` has an unsaved row, unless the broker cannot look up jobs."""
    state: JobState
    failures: Sequence[Attempt] = ()
    """The attempts that did not succeed, in order."""
    seat: Seat | None = None
    """The worker that runs the job."""
    claim: Claimed | None = None
    """The row of a running job's lease, if it is in the store."""

    @property
    def errors(self) -> list[TaskError]:
        """One error for each failed attempt."""
        return [
            TaskError(exception_class_path=attempt.exception_class, traceback=attempt.traceback)
            for attempt in self.failures
            if attempt.exception_class
        ]

    @property
    def worker_ids(self) -> list[str]:
        """Workers of the attempts, in order."""
        ids = [attempt.worker_id for attempt in self.failures]
        if self.job is not None and self.state == JobState.SUCCESSFUL:
            ids.append(self.job.worker_id)
        elif self.seat is not None:
            ids.append(self.seat.worker_id)
        return ids

    @property
    def attempts(self) -> int:
        """Number of attempts that were begun."""
        if self.job is not None and self.job.status is not None:
            return self.job.attempts
        begun = self.failures[-1].number if self.failures else 0
        return begun + (self.state == JobState.RUNNING)

    @property
    def started_at(self) -> datetime | None:
        """Start of the first attempt, if it is known."""
        known = [attempt.started_at for attempt in self.failures if attempt.started_at]
        return known[0] if known else self.last_attempted_at

    @property
    def last_attempted_at(self) -> datetime | None:
        if self.job is not None and self.job.started_at is not None:
            return self.job.started_at
        if self.seat is not None:
            return self.seat.since
        return self.failures[-1].started_at if self.failures else None


def progress_of(settings: Settings, job_ids: Sequence[UUID]) -> dict[UUID, Progress]:
    """Return job id -> progress, for the jobs that exist."""
    found: dict[UUID, Progress] = {}
    looked_for = list(job_ids)
    with explained(settings.database):
        for look in range(LOOKS):
            is_last = look == LOOKS - 1
            found |= _look(settings, looked_for, is_last)
            looked_for = [job_id for job_id in looked_for if job_id not in found]
            if looked_for and not look:
                found |= _cached(settings, looked_for)
                looked_for = [job_id for job_id in looked_for if job_id not in found]
            if not looked_for:
                break
    return found


def _cached(settings: Settings, job_ids: Sequence[UUID]) -> dict[UUID, Progress]:
    """Return ended jobs from a cache or the broker, unless they have a row that the last read
    missed."""
    found = look_up(settings, job_ids) | broker_for(settings).results(job_ids)
    there = _look(settings, list(found), is_last=False) if found else {}
    return {
        job_id: Progress(job, JobState(str(job.status)))
        for job_id, job in found.items()
        if job_id not in there
    }


def progress_of_one(settings: Settings, job_id: UUID) -> Progress:
    """Return the progress of a job.

    Raises:
        TaskResultDoesNotExist: the job does not exist (any more).
    """
    return _the_one(progress_of(settings, [job_id]), job_id)


def full_progress_of(settings: Settings, job_ids: Sequence[UUID]) -> dict[UUID, Progress]:
    """Return the same as ``progress_of``, also with the rows of jobs that only a broker outside the
    store has. Those rows are unsaved."""
    found = progress_of(settings, job_ids)
    rowless = [job_id for job_id, progress in found.items() if progress.job is None]
    rows = rows_at_broker(settings, rowless) if rowless else {}
    found |= {job_id: replace(found[job_id], job=row) for job_id, row in rows.items()}
    gone = [job_id for job_id in rowless if job_id not in rows]
    if gone and broker_for(settings).capabilities.look_up:  # they have ended, or have a row now
        for job_id in gone:
            del found[job_id]
        found |= progress_of(settings, gone)
    return found


def full_progress_of_one(settings: Settings, job_id: UUID) -> Progress:
    """Return the progress of a job, as ``full_progress_of``.

    Raises:
        TaskResultDoesNotExist: the job does not exist (any more).
    """
    return _the_one(full_progress_of(settings, [job_id]), job_id)


def _the_one(found: Mapping[UUID, Progress], job_id: UUID) -> Progress:
    if job_id in found:
        return found[job_id]
    if error := outage_error():
        sentence = f"{ONLY_BROKER_MAY_KNOW.rstrip('.')}: {error}"
        raise BrokerUnavailable(sentence) from error
    raise not_there(job_id)


def rows_at_broker(settings: Settings, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
    """Return job id -> unsaved row, for the jobs that only a broker outside the store has. The task
    is "" if the package cannot be opened."""
    jobs = broker_for(settings).jobs(job_ids)
    return {job_id: _packed(settings, job_id, job) for job_id, job in jobs.items()}


def _packed(settings: Settings, job_id: UUID, job: BrokerJob) -> Job:
    """Return an unsaved row with the values in a package."""
    row = Job(id=job_id, package=job.package)
    row.run_after = None if job.due is None else moment(job.due)
    with suppress(PackageError):
        package = sealer_for(settings).open_without_arguments(job.package)
        row.task, row.queue, row.priority = package.task, package.queue, package.priority
        row.enqueued_at = moment(package.enqueued_at)
    return row


def not_there(job_id: Any) -> TaskResultDoesNotExist:
    """Return the error for an unknown job."""
    return TaskResultDoesNotExist(
        f"There is no job {str(job_id)!r}: it was never committed, or is not kept (any more)."
    )


def package_of(settings: Settings, job: Job | None) -> Package | None:
    """Return the package of a job, or None if it cannot be opened. The job's state can be shown
    without it."""
    try:
        return sealer_for(settings).open(bytes(job.package)) if job is not None else None
    except PackageError:
        return None


def task_of(settings: Settings, job: Job | None) -> Any:
    """Return the job's task as it was enqueued, or a stand-in if it does not exist any more."""
    path = job.task if job is not None else ""
    try:
        task = find_task(path)
    except UnknownTask:
        return absent_task(path, settings.alias)
    assert job is not None
    changes = {"priority": job.priority, "queue_name": job.queue, "backend": settings.alias}
    if job.run_after is not None:
        changes["run_after"] = job.run_after
    changes = {name: value for name, value in changes.items() if getattr(task, name) != value}
    try:
        return task.using(**changes) if changes else task
    except InvalidTask:  # the settings have changed, for example the queue is not allowed any more
        return task


def _look(settings: Settings, job_ids: Sequence[UUID], is_last: bool) -> dict[UUID, Progress]:
    alias = settings.database
    jobs = Job.objects.using(alias).in_bulk(job_ids)
    failures: dict[UUID, list[Attempt]] = {}
    for attempt in Attempt.objects.using(alias).filter(job_id__in=job_ids).order_by("number"):
        failures.setdefault(attempt.job_id, []).append(attempt)
    broker = broker_for(settings)
    under_way = [job_id for job_id in job_ids if job_id not in jobs or jobs[job_id].status is None]
    places = broker.states(under_way) if under_way else {}
    for row in broker.outgoing([one for one in under_way if one not in {**places, **jobs}]):
        jobs[row.pk] = row_in_outbox(row)
        places[row.pk] = "ready" if row.run_after is None else "deferred"
    unknown = [job_id for job_id in under_way if job_id not in places and job_id not in jobs]
    places |= dict.fromkeys(broker.not_arrived(unknown), "ready") if unknown else {}
    found = {}
    for job_id in job_ids:
        job = jobs.get(job_id)
        state = _state(job, places.get(job_id))
        if state is None and job is not None and is_last:
            state = JobState.READY
        if state is not None:
            found[job_id] = Progress(job, state, failures.get(job_id, ()))
    return found | _seated(settings, found)


def _seated(settings: Settings, found: Mapping[UUID, Progress]) -> dict[UUID, Progress]:
    """Return the running jobs with their workers, and the claimed ones that have not started."""
    running = {key: one for key, one in found.items() if one.state == JobState.RUNNING}
    if not running:
        return {}
    alias = settings.database
    claims: dict[UUID, Claimed | None] = dict.fromkeys(running)
    claims |= Claimed.objects.using(alias).in_bulk(list(running))
    seats = Cluster.objects.using(alias).seats(claims)
    return {
        job_id: replace(one, seat=seats[job_id], claim=claims[job_id])
        if seats[job_id].has_started
        else replace(one, state=JobState.CLAIMED)
        for job_id, one in running.items()
        if job_id in seats
    }


def row_in_outbox(row: Outgoing) -> Job:
    """Return an unsaved row for a job in an outbox."""
    return Job(
        id=row.pk,
        task=row.task,
        queue=row.queue,
        priority=row.priority,
        package=row.package,
        enqueued_at=moment(row.enqueued_at),
        run_after=None if row.run_after is None else moment(row.run_after),
    )


def _state(job: Job | None, place: str | None) -> JobState | None:
    if job is not None and job.status is not None:
        return JobState(job.status)
    return None if place is None else JobState(place.upper())
