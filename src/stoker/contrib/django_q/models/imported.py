"""What ``stoker import_django_q`` has copied, so that it is not copied a second time."""

from __future__ import annotations

from django.db import models


class Imported(models.Model):
    table = models.CharField(max_length=32)
    key = models.CharField(max_length=32)
    """The primary key there."""

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["table", "key"], name="stoker_dq_imported_once"),
        )

    def __str__(self) -> str:
        return f"{self.table} {self.key}"
