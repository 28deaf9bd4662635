"""Records of the rows that ``stoker import_django_q`` has copied, so that no row is copied
twice."""

from __future__ import annotations

from django.db import models


class Imported(models.Model):
    table = models.CharField(max_length=32)
    key = models.CharField(max_length=32)
    """Primary key in the old table."""

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["table", "key"], name="stoker_dq_imported_once"),
        )

    def __str__(self) -> str:
        return f"{self.table} {self.key}"
