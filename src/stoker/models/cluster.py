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

    def silent_for(self, seconds: float) -> models.QuerySet[Cluster]:
        """Clusters without a sign of life for that long on the database's clock."""
        return self.filter(heartbeat_us__lt=DatabaseNow() - microseconds(seconds))

    def alive_within(self, seconds: float) -> models.QuerySet[Cluster]:
        return self.filter(heartbeat_us__gte=DatabaseNow() - microseconds(seconds))


class Cluster(models.Model):
    class State(models.TextChoices):
        RUNNING = "running"
        STOPPING = "stopping"

    id = models.UUIDField(primary_key=True)
    """A fresh one for every ``stoker run``."""
    name = models.CharField(max_length=100)
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.RUNNING)
    heartbeat_us = models.BigIntegerField(db_index=True)
    started_at = models.DateTimeField()
    info = models.JSONField(default=dict)
    """Queues served, processes, and what each worker runs."""

    objects = ClusterQuerySet.as_manager()

    class Meta:
        verbose_name = "cluster"

    def __str__(self) -> str:
        return f"{self.name} on {self.host} ({self.pid})"
