"""The running clusters and their signs of life."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import models

from .clock import DatabaseNow, microseconds


class ClusterQuerySet(models.QuerySet["Cluster"]):
    def beat(self, cluster_id: UUID, state: str, info: dict[str, Any]) -> bool:
        """Write a sign of life. False when the row is gone: others hold this cluster for dead."""
        changed = self.filter(pk=cluster_id).update(
            heartbeat_us=DatabaseNow(), state=state, info=info
        )
        return bool(changed)

    def ask(self, cluster_id: UUID, request: str) -> bool:
        """Ask something of this cluster, which looks for it every second; "" takes it back. False:
        there is no such cluster, or it was asked to stop, which stands."""
        asked = self.filter(pk=cluster_id).exclude(request=Cluster.Request.STOP)
        if request == Cluster.Request.STOP:
            asked = self.filter(pk=cluster_id)
        # MySQL counts the rows that it has changed, not those that it has found.
        return bool(asked.update(request=request)) or asked.filter(request=request).exists()

    def silent_for(self, seconds: float) -> models.QuerySet[Cluster]:
        """Clusters without a sign of life for that long on the database's clock."""
        return self.filter(heartbeat_us__lt=DatabaseNow() - microseconds(seconds))

    def alive_within(self, seconds: float) -> models.QuerySet[Cluster]:
        return self.filter(heartbeat_us__gte=DatabaseNow() - microseconds(seconds))


class Cluster(models.Model):
    class State(models.TextChoices):
        RUNNING = "running"
        QUIET = "quiet"
        """It takes no more jobs, because it was asked to; what runs goes on."""
        STOPPING = "stopping"

    class Request(models.TextChoices):
        NONE = ""
        QUIET = "quiet"
        STOP = "stop"

    id = models.UUIDField(primary_key=True)
    """A fresh one for every ``stoker run``."""
    name = models.CharField(max_length=100)
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.RUNNING)
    request = models.CharField(
        max_length=5, choices=Request.choices, default="", db_default="", blank=True
    )
    """What it is asked to do (``stoker.clusters``)."""
    heartbeat_us = models.BigIntegerField(db_index=True)
    started_at = models.DateTimeField()
    info = models.JSONField(default=dict)
    """Queues served, processes, and what each worker runs."""

    objects = ClusterQuerySet.as_manager()

    class Meta:
        verbose_name = "cluster"
        permissions = (
            ("quiet_cluster", "Can tell clusters to take no more jobs, and to take them again"),
            ("stop_cluster", "Can stop clusters"),
        )

    def __str__(self) -> str:
        return f"{self.name} on {self.host} ({self.pid})"
