"""Started jobs of tasks with ``at_most_once=True``."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models import Exists, OuterRef
from django.utils import timezone

from stoker.store.statements import delete_by_key

from .job import Job

KEPT_SECONDS = 7 * 24 * 3600.0
"""Minimum time in seconds that the start of a job is remembered. It is always remembered until
the job has ended."""


class BegunQuerySet(models.QuerySet["Begun"]):
    def forget(self, seconds: float, limit: int) -> int:
        """Delete up to ``limit`` older rows whose jobs have ended. Return their number."""
        unended = Job.objects.using(self.db).filter(pk=OuterRef("pk"), status=None)
        old = self.filter(begun_at__lt=timezone.now() - timedelta(seconds=seconds))
        over = old.exclude(Exists(unended)).order_by("begun_at")
        job_ids = list(over.values_list("pk", flat=True)[:limit])
        delete_by_key(self, job_ids)
        return len(job_ids)


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
