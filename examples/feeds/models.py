from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

if TYPE_CHECKING:
    from .states import ImportState


class Feed(models.Model):
    url = models.URLField(max_length=500, unique=True)
    title = models.CharField(max_length=200, blank=True)
    added_at = models.DateTimeField(auto_now_add=True)
    imported_at = models.DateTimeField(null=True, blank=True)
    job_id = models.CharField(max_length=64, blank=True, editable=False)
    """Id of the job that imports the feed. Stoker stores the job's state, so it is not stored
    here."""

    state: ImportState
    """State of the import, for the page. Set by the view."""

    def __str__(self) -> str:
        return self.title or self.url


class Entry(models.Model):
    feed = models.ForeignKey(Feed, on_delete=models.CASCADE, related_name="entries")
    guid = models.CharField(max_length=255)
    title = models.CharField(max_length=300)
    link = models.URLField(max_length=2000, blank=True)
    published = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "entries"
        constraints = [
            # An entry exists only once, however often its feed is imported.
            models.UniqueConstraint(fields=["feed", "guid"], name="entry_once_per_feed"),
        ]

    def __str__(self) -> str:
        return self.title
