"""Jobs that carry on a dead letter: who sent it again, when and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models.functions import Now

from stoker.store.engines import engine_of
from stoker.store.written import as_uuid


class RequeueQuerySet(models.QuerySet["Requeue"]):
    def identities(self, job_ids: Collection[UUID]) -> dict[UUID, str]:
        """Job id -> the logical job that it carries on, for those that do."""
        if not job_ids:
            return {}
        found = self._find([job_id.hex for job_id in job_ids])
        return {as_uuid(job_id): identity for job_id, identity in found}

    def have_any(self, job_ids: Sequence[str]) -> bool:
        """Whether one of these jobs carries on something; by their 32 digits."""
        return bool(self._find(job_ids))

    def _find(self, digits: Sequence[str]) -> list[tuple[Any, ...]]:
        return engine_of(self.db).find_by_key("requeue_identities", digits)


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
