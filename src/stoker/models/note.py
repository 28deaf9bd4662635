"""Notes of running jobs: a checkpoint for the next attempt, and the progress."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, models
from django.db.models import Exists, OuterRef
from django.utils import timezone

from stoker.store.statements import delete_by_key, with_keys

from .attempt import Attempt
from .claimed import Claimed
from .dead_letter import DeadLetter
from .job import Job

LONGEST_MESSAGE = 255
KEPT_SECONDS = 600.0
"""How long a job's last note is kept if nothing else needs it, in seconds."""
UNKNOWN_SECONDS = 7 * 24 * 3600.0
"""How long a note is kept if its job has no row, in seconds."""


class ProgressReport(NamedTuple):
    """The progress that a job reported."""

    done: float
    total: float | None
    """The total in the unit of ``done``; None = unknown."""
    message: str

    @property
    def fraction(self) -> float | None:
        """Progress from 0 to 1; None without a total."""
        if not self.total:
            return None
        return max(0.0, min(1.0, self.done / self.total))


class NoteQuerySet(models.QuerySet["Note"]):
    def holds_lease(self, job_id: UUID, lease_id: int | str) -> bool:
        """Return whether the attempt with this lease may still write notes for the job."""
        return Claimed.objects.using(self.db).filter(pk=job_id, lease_id=lease_id).exists()

    def is_over(self, job_id: UUID, attempt: int) -> bool:
        """Return whether this attempt, or a later one, is recorded as ended. It is if another
        cluster has taken over the job from a broker outside the store, which has its lease."""
        ended = Attempt.objects.using(self.db).filter(job_id=job_id, number__gte=attempt)
        return ended.exists()

    def write(self, job_id: UUID, **values: Any) -> None:
        """Write these fields of a job's note."""
        self._upsert([Note(job_id=job_id, noted_at=timezone.now(), **values)], *values)

    def _upsert(self, rows: Sequence[Note], *names: str) -> None:
        features = connections[self.db].features
        self.bulk_create(
            rows,
            update_conflicts=True,
            update_fields=[*names, "noted_at"],
            unique_fields=["job_id"] if features.supports_update_conflicts_with_target else None,
        )

    def checkpoint_of(self, job_id: UUID) -> bytes | None:
        """Return the checkpoint of the last attempt that wrote one."""
        data = self.filter(pk=job_id).values_list("checkpoint", flat=True).first()
        return None if data is None else bytes(data)

    def report_of(self, job_id: UUID) -> ProgressReport | None:
        """Return the job's progress, or None if it has reported none."""
        row = self.filter(pk=job_id).only("done", "total", "message").first()
        if row is None or row.done is None:
            return None
        return ProgressReport(row.done, row.total, row.message)

    def hand_on(self, jobs: Mapping[UUID, UUID]) -> None:
        """Copy the checkpoints of jobs to those that continue them.

        Args:
            jobs: job -> the job that continues it.
        """
        noted = with_keys(self.exclude(checkpoint=None), jobs)
        now = timezone.now()
        rows = [
            Note(job_id=jobs[job_id], checkpoint=data, noted_at=now)
            for job_id, data in noted.values_list("pk", "checkpoint")
        ]
        if rows:
            self._upsert(rows, "checkpoint")

    def forget(
        self, after: UUID | None, limit: int, kept_seconds: float = KEPT_SECONDS
    ) -> tuple[int, UUID | None]:
        """Delete notes of missing or finished jobs.

        Notes of jobs whose dead letter may be requeued are kept, and so are recent ones, which a
        user may want to read.

        Args:
            after: the last job of the previous page; None = the first page.
            limit: maximum number of notes to read.
            kept_seconds: age below which notes are kept.

        Returns:
            The number of deleted notes, and the last job of this page; None after the last page.
        """
        later = self.order_by("pk") if after is None else self.filter(pk__gt=after).order_by("pk")
        found = list(later.values_list("pk", "noted_at")[:limit])
        before = timezone.now() - timedelta(seconds=kept_seconds)
        over = self._over([job_id for job_id, noted_at in found if noted_at <= before])
        delete_by_key(self, over)
        return len(over), found[-1][0] if len(found) == limit else None

    def _over(self, job_ids: Collection[UUID]) -> set[UUID]:
        letters = DeadLetter.objects.using(self.db).unclosed().filter(job_id=OuterRef("pk"))
        jobs = Job.objects.using(self.db).filter(pk__in=job_ids)
        needed = jobs.filter(models.Q(status=None) | Exists(letters))
        # A job in a broker outside the store has no row until it has ended.
        unknown = set(job_ids) - set(jobs.values_list("pk", flat=True))
        before = timezone.now() - timedelta(seconds=UNKNOWN_SECONDS)
        recent = self.filter(pk__in=unknown, noted_at__gt=before)
        return (
            set(job_ids)
            - set(needed.values_list("pk", flat=True))
            - set(recent.values_list("pk", flat=True))
        )


class Note(models.Model):
    job_id = models.UUIDField(primary_key=True)
    checkpoint = models.BinaryField(null=True)
    """The checkpoint, serialised like a return value."""
    done = models.FloatField(null=True)
    total = models.FloatField(null=True)
    message = models.CharField(max_length=LONGEST_MESSAGE, default="")
    noted_at = models.DateTimeField()

    objects = NoteQuerySet.as_manager()

    class Meta:
        verbose_name = "note"

    def __str__(self) -> str:
        return f"{self.job_id}: {self.done} of {self.total}"
