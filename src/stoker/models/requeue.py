"""Jobs that carry on a dead letter: who sent it again, when and why."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from django.db import models
from django.db.models.functions import Now

from .statements import with_keys


class RequeueQuerySet(models.QuerySet["Requeue"]):
    def identities(self, job_ids: Collection[UUID]) -> dict[UUID, str]:
        """Job id -> the logical job that it carries on, for those that do."""
        if not job_ids:
            return {}
        return dict(with_keys(self, job_ids).values_list("pk", "identity"))


class Requeue(models.Model):
    """One job that was made of a dead letter. Kept as long as the dead letter."""

    class By(models.TextChoices):
        PERSON = "person"
        POLICY = "policy"
        """``DeadLetters(requeue_after=...)``."""
        SUCCESSOR = "successor"
        """Nobody sent it again: a newer job of the same unique key was enqueued."""

    job_id = models.UUIDField(primary_key=True)
    identity = models.CharField(max_length=255, db_index=True)
    """The logical job, as in DeadLetter."""
    from_job_id = models.UUIDField(db_index=True)
    """The job that had failed."""
    kind = models.CharField(max_length=9, choices=By.choices, default=By.PERSON)
    by = models.CharField(max_length=150, default="")
    because = models.CharField(max_length=255, default="")
    requeued_at = models.DateTimeField(db_default=Now())

    objects = RequeueQuerySet.as_manager()

    class Meta:
        verbose_name = "requeue"

    def __str__(self) -> str:
        return f"{self.from_job_id} again as {self.job_id}"
