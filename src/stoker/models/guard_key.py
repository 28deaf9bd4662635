"""What guards count under: one row per key, by whose lock claims and finishes take turns."""

from __future__ import annotations

from django.db import models


class GuardKeyQuerySet(models.QuerySet["GuardKey"]):
    pass


class GuardKey(models.Model):
    id = models.UUIDField(primary_key=True)
    """Made of kind, scope and text of the key, see ``guards.keys``."""
    kind = models.CharField(max_length=8)
    name = models.CharField(max_length=255)
    fence = models.BigIntegerField(default=0)
    """The last fencing number that was given."""
    places = models.IntegerField(default=1)
    """How many may have a place at once, as the newest job seen here has it."""
    places_by = models.UUIDField(null=True)
    """That job."""
    places_set = models.IntegerField(null=True)
    """Set by hand; counts before what jobs say."""
    has_line = models.BooleanField(default=False)
    """Whether somebody may be blocked here: where nobody is, nobody has to be looked for."""
    starts = models.JSONField(default=list)
    """The last starts of a rate, see ``rate_window``."""
    due_us = models.BigIntegerField(null=True)
    """When the next of a rate's line may start, on the database's clock."""

    objects = GuardKeyQuerySet.as_manager()

    class Meta:
        verbose_name = "guard key"
        db_table = "stoker_key"
        indexes = (models.Index(fields=["due_us"], name="stoker_key_due"),)

    def __str__(self) -> str:
        return self.name
