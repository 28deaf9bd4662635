"""Requeues of dead letters: the new job, person, time and reason."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db import models
from django.db.models.functions import Now

from stoker.store.engines import engine_of
from stoker.store.written import InsertedAt, as_uuid


class RequeueQuerySet(models.QuerySet["Requeue"]):
    def identities(self, job_ids: Sequence[str]) -> dict[UUID, str]:
        """Return job id -> identity of the logical job, for jobs that continue a dead letter. Each
        job is given by the 32 digits of its id."""
        if not job_ids:
            return {}
        found = engine_of(self.db).find_by_key("requeue_identities", job_ids)
        return {as_uuid(job_id): identity for job_id, identity in found}


class Requeue(models.Model):
    """A job that continues a dead letter. Kept as long as the dead letter."""

    class By(models.TextChoices):
        PERSON = "person"
        POLICY = "policy"
        """``DeadLetters(requeue_after=...)``."""
        SUCCESSOR = "successor"
        """A newer job with the same unique key was enqueued, so this is not a requeue."""

    job_id = models.UUIDField(primary_key=True)
    identity = models.CharField(max_length=255, db_index=True)
    """The logical job, as in DeadLetter."""
    from_job_id = models.UUIDField(db_index=True)
    """The failed job."""
    kind = models.CharField(max_length=9, choices=By.choices, default=By.PERSON)
    by = models.CharField(max_length=150, default="")
    because = models.CharField(max_length=255, default="")
    requeued_at = InsertedAt(db_default=Now())

    objects = RequeueQuerySet.as_manager()

    class Meta:
        verbose_name = "requeue"

    def __str__(self) -> str:
        return f"{self.from_job_id} again as {self.job_id}"
