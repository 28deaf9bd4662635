"""Keys of which one job may be alive: a row per key, and its primary key is the rule."""

from __future__ import annotations

from django.db import models


class UniqueKeyQuerySet(models.QuerySet["UniqueKey"]):
    pass


class UniqueKey(models.Model):
    """Counts as taken while its job is alive, or its period is not over: there is nothing that
    could be left taken by a crash."""

    key_id = models.UUIDField(primary_key=True)
    """Made of scope and text of the key, see ``guards.keys``."""
    name = models.CharField(max_length=255)
    """For screens; the key is what counts."""
    job_id = models.UUIDField()
    """The last job that has taken it."""
    taken_us = models.BigIntegerField()
    """When that job was enqueued first, on the database's clock: a debounce counts from there."""
    until_us = models.BigIntegerField(default=0)
    """Taken until then in any case, on the database's clock."""

    objects = UniqueKeyQuerySet.as_manager()

    class Meta:
        verbose_name = "unique key"
        db_table = "stoker_unique"

    def __str__(self) -> str:
        return self.name
