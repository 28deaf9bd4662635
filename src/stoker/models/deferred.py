"""Jobs that wait for their moment: enqueued with ``run_after``, or waiting for a retry."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db import models

from stoker.store.statements import delete_returning_guards


class DeferredQuerySet(models.QuerySet["Deferred"]):
    def withdraw(self, job_ids: Sequence[UUID], *, waits: bool = True) -> dict[UUID, int]:
        """Delete these jobs' rows, if they still exist. Return job id -> number of needs.

        Args:
            job_ids: of the jobs.
            waits: False: skip rows that other transactions have locked.
        """
        return delete_returning_guards(self, job_ids, waits=waits)


class Deferred(models.Model):
    job_id = models.UUIDField(primary_key=True)
    due_us = models.BigIntegerField()
    """Microseconds since 1970 on the database's clock."""
    queue = models.CharField(max_length=100)
    rank = models.SmallIntegerField(default=0)
    attempts = models.SmallIntegerField(default=0)
    crashes = models.SmallIntegerField(default=0)
    guards = models.SmallIntegerField(default=0, db_default=0)

    objects = DeferredQuerySet.as_manager()

    class Meta:
        verbose_name = "deferred job"
        indexes = (models.Index(fields=["due_us"], name="stoker_deferred_due"),)

    def __str__(self) -> str:
        return f"{self.queue} {self.job_id}"
