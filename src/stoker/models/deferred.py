"""Jobs that wait for their due time: enqueued with ``run_after``, or waiting for a retry."""

from __future__ import annotations

from django.db import models


class Deferred(models.Model):
    job_id = models.UUIDField(primary_key=True)
    due_us = models.BigIntegerField()
    """Microseconds since 1970 on the database's clock."""
    queue = models.CharField(max_length=100)
    rank = models.SmallIntegerField(default=0)
    attempts = models.SmallIntegerField(default=0)
    crashes = models.SmallIntegerField(default=0)
    guards = models.SmallIntegerField(default=0, db_default=0)

    class Meta:
        verbose_name = "deferred job"
        indexes = (models.Index(fields=["due_us"], name="stoker_deferred_due"),)

    def __str__(self) -> str:
        return f"{self.queue} {self.job_id}"
