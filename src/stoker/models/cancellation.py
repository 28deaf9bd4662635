"""Requests to cancel running jobs. Upkeep deletes them when the jobs have ended."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db import models

from stoker.store.statements import with_keys
from stoker.values.text import stored_text

AT_ONCE = 500


class CancellationQuerySet(models.QuerySet["Cancellation"]):
    def ask(self, job_id: UUID, reason: str) -> None:
        """Request the cancellation of this job. If it was requested before, nothing is changed."""
        request = Cancellation(job_id=job_id, reason=stored_text(reason, 255))
        self.bulk_create([request], ignore_conflicts=True)

    def ask_all(self, job_ids: Sequence[UUID], reason: str) -> None:
        """Request the cancellation of several jobs."""
        self.bulk_create(
            [Cancellation(job_id=job_id, reason=reason[:255]) for job_id in job_ids],
            ignore_conflicts=True,
            batch_size=AT_ONCE,
        )

    def page(self, after: UUID | None) -> dict[UUID, str]:
        """Return job id -> reason of the first requests after this job, in the order of the ids.

        Args:
            after: the last job of the previous page; None = the first page.
        """
        later = self.order_by("pk") if after is None else self.order_by("pk").filter(pk__gt=after)
        return dict(later.values_list("job_id", "reason")[:AT_ONCE])

    def reasons_of(self, job_ids: Sequence[UUID]) -> dict[UUID, str]:
        """Return job id -> reason, for those of these jobs whose cancellation is requested."""
        return dict(with_keys(self, job_ids).values_list("job_id", "reason"))


class Cancellation(models.Model):
    job_id = models.UUIDField(primary_key=True)
    reason = models.CharField(max_length=255, default="", blank=True)

    objects = CancellationQuerySet.as_manager()

    class Meta:
        verbose_name = "cancellation"

    def __str__(self) -> str:
        return f"cancel {self.job_id}"
