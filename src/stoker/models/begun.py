"""Started jobs of tasks with ``at_most_once=True``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from uuid import UUID

from django.db import models
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from stoker.store.statements import delete_by_key

from .job import Job

KEPT_SECONDS = 7 * 24 * 3600.0
"""Minimum time in seconds that the start of a job is remembered. It is always remembered until
the job has ended, also if only a broker outside the store has the job."""


class BegunQuerySet(models.QuerySet["Begun"]):
    def forget(
        self,
        seconds: float,
        limit: int,
        at_brokers: Callable[[Sequence[UUID]], Collection[UUID]],
    ) -> Iterator[int]:
        """Delete older rows whose jobs have ended. Yield the number after each batch.

        Args:
            seconds: age of the youngest row to delete.
            limit: number of rows per batch.
            at_brokers: returns which of these jobs the brokers outside the store have. The store
                has no row of such a job until it has ended.
        """
        unended = Job.objects.using(self.db).filter(pk=OuterRef("pk"), status=None)
        old = self.filter(begun_at__lt=timezone.now() - timedelta(seconds=seconds))
        old = old.exclude(Exists(unended)).order_by("begun_at", "pk")
        rest = old
        while rows := list(rest.values_list("begun_at", "pk")[:limit]):
            job_ids = [job_id for _, job_id in rows]
            over = set(job_ids).difference(at_brokers(job_ids))
            delete_by_key(self, over)
            yield len(over)
            begun_at, job_id = rows[-1]
            rest = old.filter(Q(begun_at__gt=begun_at) | Q(begun_at=begun_at, pk__gt=job_id))


class Begun(models.Model):
    """A started job. The primary key guarantees that it starts once: a worker that cannot insert
    the row must not run the job."""

    job_id = models.UUIDField(primary_key=True)
    worker_id = models.CharField(max_length=128)
    begun_at = models.DateTimeField(db_index=True)

    objects = BegunQuerySet.as_manager()

    class Meta:
        verbose_name = "begun job"
        verbose_name_plural = "begun jobs"

    def __str__(self) -> str:
        return f"{self.job_id} by {self.worker_id}"
