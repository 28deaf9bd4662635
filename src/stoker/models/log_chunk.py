"""Lines that jobs logged and printed, in chunks."""

from __future__ import annotations

from django.db import models
from django.utils import timezone


class LogChunkQuerySet(models.QuerySet["LogChunk"]):
    def forget(self, limit: int) -> int:
        """Delete up to ``limit`` chunks whose retention has ended. Return their number."""
        old = self.filter(keep_until__lt=timezone.now()).order_by("keep_until")
        keys = list(old.values_list("pk", flat=True)[:limit])
        return self.filter(pk__in=keys).delete()[0] if keys else 0


class LogChunk(models.Model):
    """Some lines of one attempt, in order. The chunks of a job are in the order of their keys."""

    id = models.BigAutoField(primary_key=True)
    job_id = models.UUIDField()
    attempt = models.SmallIntegerField()
    lines = models.TextField()
    """The lines as text, in the format of ``stoker.logs.lines``."""
    keep_until = models.DateTimeField()

    objects = LogChunkQuerySet.as_manager()

    class Meta:
        verbose_name = "part of a job's log"
        indexes = (
            models.Index(fields=["job_id", "id"], name="stoker_log_job"),
            models.Index(fields=["keep_until"], name="stoker_log_until"),
        )

    def __str__(self) -> str:
        return f"{self.job_id} attempt {self.attempt}"
