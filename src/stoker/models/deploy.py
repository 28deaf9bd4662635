"""Deploys: the moments at which a cluster with new code started."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models.functions import Now

from stoker.store.written import InsertedAt


class DeployQuerySet(models.QuerySet["Deploy"]):
    def note(self, cluster: str, host: str, digest: str) -> None:
        """Record that a cluster starts, if its code differs from that of the previous start."""
        newest = self.filter(cluster=cluster).order_by("-pk").first()
        if newest is None or newest.digest != digest:
            self.create(cluster=cluster, host=host, digest=digest)

    def of(self, cluster: str, since: datetime) -> DeployQuerySet:
        """Return the deploys of a cluster since a moment, the oldest first."""
        return self.filter(cluster=cluster, at__gte=since).order_by("pk")

    def forget(self, cluster: str, before: datetime) -> int:
        """Delete old deploys. The newest one is kept for the next comparison."""
        own = self.filter(cluster=cluster)
        newest = own.order_by("-pk").first()
        if newest is None:
            return 0
        return own.filter(at__lt=before, pk__lt=newest.pk).delete()[0]


class Deploy(models.Model):
    """One start of a cluster with new code. During a rolling deploy, clusters with old and with new
    code may start in turn; each change is a row."""

    id = models.BigAutoField(primary_key=True)
    cluster = models.CharField(max_length=100)
    """The setting ``CLUSTER``."""
    host = models.CharField(max_length=255)
    digest = models.CharField(max_length=64)
    """Digest of the project's Python files."""
    at = InsertedAt(db_default=Now())

    objects = DeployQuerySet.as_manager()

    class Meta:
        verbose_name = "deploy"
        indexes = (models.Index(fields=["cluster", "at"], name="stoker_deploy_time"),)

    def __str__(self) -> str:
        return f"{self.cluster} on {self.host} at {self.at}"
