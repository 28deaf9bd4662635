"""Editions: the sets of declared schedules, and which of them live clusters use.

During a rolling deploy two versions of a project run at once. The edition that was first seen last
decides while it is alive, so that the versions do not undo each other's changes.
"""

from __future__ import annotations

from django.db import IntegrityError, models, transaction

from stoker.store.written import DatabaseNow, microseconds


class EditionQuerySet(models.QuerySet["Edition"]):
    def report(self, cluster: str, backend: str, digest: str) -> None:
        """Record that a cluster of this edition is alive."""
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
        """Return the digests reported within that many seconds, newest edition first."""
        recent = self.filter(
            cluster=cluster, backend=backend, seen_us__gt=DatabaseNow() - microseconds(seconds)
        )
        return list(recent.order_by("-first_seen_us", "-pk").values_list("digest", flat=True))

    def forget(self, seconds: float) -> int:
        """Delete editions that were not reported for that long."""
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
