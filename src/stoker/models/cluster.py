"""The running clusters and their signs of life."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import models

from stoker.store.clock import MICROSECONDS, DatabaseNow, microseconds

from .claimed import Claimed
from .job import moment


class Seat(NamedTuple):
    """Where a job runs, as far as it is known."""

    worker_id: str
    """As results name the worker; the cluster's part of it where the worker is not known yet."""
    since: datetime
    """When the attempt began; when the job was claimed, where it is not known yet."""


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

    def seats(self, claims: Mapping[UUID, Claimed | None]) -> dict[UUID, Seat]:
        """Job id -> where it runs: as its cluster showed with its last sign of life, else as its
        lease says.

        Args:
            claims: jobs that run, each with its lease; None where the store does not have it.
        """
        found: dict[UUID, Seat] = {}
        for cluster in self.order_by("heartbeat_us"):
            own = {
                job_id: claim
                for job_id, claim in claims.items()
                if claim is None or claim.holder == cluster.pk
            }
            leased = {job_id: cluster.seat_of(claim) for job_id, claim in own.items() if claim}
            shown = {job_id: seat for job_id, seat in cluster.seats() if job_id in own}
            found |= leased | shown
        return found

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

    @property
    def worker_ids(self) -> str:
        """What the ids of its workers begin with."""
        return f"{self.host[:80]}:{self.pk.hex[-8:]}"

    def seat_of(self, claim: Claimed) -> Seat:
        """Where a job runs that this cluster has and does not show yet. Its lease began when it was
        claimed, or extended last, which it is only when it has been held for long."""
        lease_us = microseconds(self.info.get("lease_seconds", 0.0))
        since = moment((claim.leased_until_us - lease_us) / MICROSECONDS)
        return Seat(self.worker_ids, since)

    def seats(self) -> Iterator[tuple[UUID, Seat]]:
        """The jobs that its workers ran at its last sign of life."""
        for worker in self.info.get("workers", ()):
            for job in worker["running"]:
                since = moment(self.heartbeat_us / MICROSECONDS - job["seconds"])
                yield UUID(job["job"]), Seat(worker.get("id", self.worker_ids), since)
