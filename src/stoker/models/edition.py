"""Editions: which sets of declared schedules there are, and which of them clusters run by now.

Two versions of a project may run at once, as in a rolling deploy. The one whose edition was seen
for the first time last decides, for as long as it is alive: so neither undoes what the other does.
"""

from __future__ import annotations

from django.db import IntegrityError, models, transaction

from stoker.store.clock import DatabaseNow, microseconds


class EditionQuerySet(models.QuerySet["Edition"]):
    def report(self, cluster: str, backend: str, digest: str) -> None:
        """A cluster of this edition is alive."""
        now = DatabaseNow()
        seen = self.filter(cluster=cluster, backend=backend, digest=digest)
        if seen.update(seen_us=now):
            return
        try:
            with transaction.atomic(using=self.db):
                self.create(
                    cluster=cluster, backend=backend, digest=digest, first_seen_us=now, seen_us=now
                )
        except IntegrityError:
            seen.update(seen_us=now)

    def alive(self, cluster: str, backend: str, seconds: float) -> list[str]:
        """The digests that were reported within so many seconds, the newest edition first."""
        recent = self.filter(
            cluster=cluster, backend=backend, seen_us__gt=DatabaseNow() - microseconds(seconds)
        )
        return list(recent.order_by("-first_seen_us", "-pk").values_list("digest", flat=True))

    def forget(self, seconds: float) -> int:
        """Delete those that nobody has reported for so long."""
        return self.filter(seen_us__lt=DatabaseNow() - microseconds(seconds)).delete()[0]


class Edition(models.Model):
    id = models.BigAutoField(primary_key=True)
    cluster = models.CharField(max_length=100)
    backend = models.CharField(max_length=64)
    digest = models.CharField(max_length=64)
    first_seen_us = models.BigIntegerField()
    seen_us = models.BigIntegerField()

    objects = EditionQuerySet.as_manager()

    class Meta:
        verbose_name = "edition"
        constraints = (
            models.UniqueConstraint(
                fields=["cluster", "backend", "digest"], name="stoker_edition_once"
            ),
        )

    def __str__(self) -> str:
        return f"{self.cluster} {self.backend} {self.digest}"
