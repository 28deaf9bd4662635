"""Jobs: each row is one enqueued call of a task."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from uuid import UUID

from django.db import models

from stoker.store.statements import with_keys
from stoker.store.written import moment

from .need import NewNeed


# Not frozen, since there is one for each job: that would make it several times as slow to make.
@dataclass(slots=True)
class Message:
    """One job to be stored or sent to a broker."""

    job_id: UUID
    task: str
    queue: str
    priority: int
    package: bytes
    run_after: float | None = None
    """Seconds since 1970, UTC; None = at once."""
    enqueued_at: float = 0.0
    needs: Sequence[NewNeed] = ()
    """Guards of the job. Only for brokers with the capability ``guards``."""
    is_fresh: bool = False
    """Whether this id is new, so that the job cannot have been enqueued before."""
    stays_in_store: bool = False
    """Whether the job always waits in the store, because it is unique or its task is atomic."""


class JobQuerySet(models.QuerySet["Job"]):
    def packages(self, job_ids: Sequence[UUID]) -> Mapping[UUID, bytes]:
        """Return job id -> package."""
        rows = with_keys(self, job_ids).values_list("pk", "package")
        return {job_id: bytes(package) for job_id, package in rows}

    def unended(self, job_ids: Collection[UUID]) -> set[UUID]:
        """Return those of the jobs that have not ended."""
        rows = with_keys(self.filter(status=None), job_ids)
        return set(rows.values_list("pk", flat=True)) if job_ids else set()


class Job(models.Model):
    """One enqueued call of a task. The row is written once when enqueued and once when finished."""

    class Status(models.TextChoices):
        SUCCESSFUL = "SUCCESSFUL"
        FAILED = "FAILED"
        CANCELLED = "CANCELLED"

    id = models.UUIDField(primary_key=True)
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=100)
    priority = models.SmallIntegerField(default=0)
    package = models.BinaryField()
    enqueued_at = models.DateTimeField()
    run_after = models.DateTimeField(null=True)

    status = models.CharField(max_length=10, choices=Status.choices, null=True)  # noqa: DJ001 - see below
    """NULL until the job has ended. Until then its state is the narrow table that contains it."""
    attempts = models.SmallIntegerField(default=0)
    worker_id = models.CharField(max_length=128, default="")
    """The worker of the last attempt. The workers of earlier attempts are in Attempt."""
    started_at = models.DateTimeField(null=True)
    """Start of the last attempt."""
    finished_at = models.DateTimeField(null=True)
    value = models.BinaryField(null=True)
    """The serialised return value."""
    reason = models.CharField(max_length=255, default="")
    """Reason of the failure or cancellation, in one line."""

    objects = JobQuerySet.as_manager()

    class Meta:
        verbose_name = "job"
        permissions = (
            ("cancel_job", "Can cancel jobs"),
            ("pause_queue", "Can pause queues, and resume them"),
            ("clear_queue", "Can clear queues"),
            ("reveal_job", "Can see arguments that are hidden"),
        )

    def __str__(self) -> str:
        return f"{self.task} {self.pk}"


@dataclass(slots=True, kw_only=True)
class JobColumns:
    """Values for the rows of many jobs, as columns: the calls, their outcomes, or both.

    Columns that a statement does not write may be empty. An object per job would cost more time
    than writing it.
    """

    job_ids: Sequence[str]
    """The 32 hexadecimal digits of each job's id. No id occurs twice."""
    tasks: Sequence[str] = ()
    queues: Sequence[str] = ()
    priorities: Sequence[int] = ()
    packages: Sequence[bytes] = ()
    enqueued_at: Sequence[float | None] = ()
    """Seconds since 1970, like all times here."""
    statuses: Sequence[str | None] = ()
    """Values of ``Job.Status``. None = the job has not ended: the columns below are not written."""
    attempts: Sequence[int] = ()
    worker_ids: Sequence[str] = ()
    started_at: Sequence[float | None] = ()
    finished_at: Sequence[float] = ()
    values: Sequence[bytes | None] = ()
    """Serialised return values."""
    reasons: Sequence[str] = ()
    """At most 255 characters each."""

    def take(self, places: Sequence[int]) -> JobColumns:
        """Return the rows at these places."""
        return JobColumns(
            **{
                one.name: [column[place] for place in places]
                for one in fields(JobColumns)
                if (column := getattr(self, one.name))
            }
        )

    def jobs(self) -> list[Job]:
        """Return a ``Job`` for each row of ended jobs. They are not saved."""
        return [
            Job(
                pk=UUID(job_id),
                task=self.tasks[place],
                queue=self.queues[place],
                priority=self.priorities[place],
                package=self.packages[place],
                enqueued_at=moment(self.enqueued_at[place] or 0.0),
                status=self.statuses[place],
                attempts=self.attempts[place],
                worker_id=self.worker_ids[place],
                started_at=_moment(self.started_at[place]),
                finished_at=moment(self.finished_at[place]),
                value=self.values[place],
            )
            for place, job_id in enumerate(self.job_ids)
        ]


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else moment(seconds)
