"""Jobs that wait for their due time: enqueued with ``run_after``, or waiting for a retry."""

from __future__ import annotations

from django.db import models

from .ready import HotRow


class Deferred(HotRow):
    due_us = models.BigIntegerField()
    """Microseconds since 1970 on the database's clock."""

    class Meta:
        verbose_name = "deferred job"
        indexes = (models.Index(fields=["due_us"], name="stoker_deferred_due"),)
