"""Jobs that a guard holds back. Each waits in the line of the key that refused it."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db import models

from .statements import delete_returning_keys


class BlockedQuerySet(models.QuerySet["Blocked"]):
    def withdraw(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Remove these jobs, unless their turn has come. Returns those removed."""
        return delete_returning_keys(self, job_ids)


class Blocked(models.Model):
    job_id = models.UUIDField(primary_key=True)
    key_id = models.UUIDField()
    """Whose line it waits in: one key at a time, that of the first guard which refused it."""
    queue = models.CharField(max_length=100)
    rank = models.SmallIntegerField(default=0)
    attempts = models.SmallIntegerField(default=0)
    crashes = models.SmallIntegerField(default=0)
    guards = models.SmallIntegerField(default=0, db_default=0)

    objects = BlockedQuerySet.as_manager()

    class Meta:
        verbose_name = "blocked job"
        indexes = (
            models.Index(fields=["key_id", "queue", "rank", "job_id"], name="stoker_blocked_line"),
        )

    def __str__(self) -> str:
        return f"{self.queue} {self.job_id} waits for {self.key_id}"
