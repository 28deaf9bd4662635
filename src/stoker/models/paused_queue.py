"""Paused queues: no cluster starts their jobs.

Every pusher reads the whole table twice a second; it has one row per paused queue.
"""

from __future__ import annotations

from django.db import models

from stoker.store.written import MICROSECONDS, database_now_us, moment
from stoker.values.text import stored_text


class PausedQueueQuerySet(models.QuerySet["PausedQueue"]):
    def names(self) -> frozenset[str]:
        """Return the names of all paused queues."""
        return frozenset(self.values_list("queue", flat=True))

    def pause(self, queue: str, by: str, because: str) -> PausedQueue:
        """Pause a queue. An existing pause is not changed.

        Returns:
            The pause. On MariaDB and MySQL it may be that of another queue, whose name the database
            takes for the same.
        """
        since = moment(database_now_us(self.db) / MICROSECONDS)
        told = {"by": stored_text(by, 150), "because": stored_text(because, 255)}
        row = PausedQueue(queue=queue, since=since, **told)
        self.bulk_create([row], ignore_conflicts=True)
        return self.filter(queue=queue).first() or row  # another process may have resumed it

    def resume(self, queue: str) -> bool:
        """Resume a queue. Return False if it was not paused."""
        return bool(self.filter(queue=queue).delete()[0])


class PausedQueue(models.Model):
    queue = models.CharField(max_length=100, primary_key=True)
    since = models.DateTimeField()
    by = models.CharField(max_length=150, default="", blank=True)
    because = models.CharField(max_length=255, default="", blank=True)

    objects = PausedQueueQuerySet.as_manager()

    class Meta:
        verbose_name = "paused queue"
        verbose_name_plural = "queues"

    def __str__(self) -> str:
        return f"{self.queue} is paused"

    @property
    def how(self) -> str:
        """When it was paused, by whom and why, as the end of a sentence."""
        since = f" since {self.since.isoformat(sep=' ', timespec='seconds')}"
        by = f" by {self.by}" if self.by else ""
        return since + by + (f": {self.because}" if self.because else "")
