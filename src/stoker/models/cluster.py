"""Running clusters and their heartbeats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import models, transaction

from stoker.store.written import MICROSECONDS, DatabaseNow, microseconds, moment

from .claimed import Claimed

LONGEST_HOST = 80
"""Maximum number of characters of the host name in the id of a worker."""
LONGEST_RECYCLE = 8000
HANDED_OUT_SECONDS = 1.0
"""A cluster usually starts or releases a claimed job within this time."""


class Seat(NamedTuple):
    """The worker that runs a job, or the cluster that has claimed it."""

    worker_id: str
    """Id of the worker as in results, or its prefix for the cluster if the worker is unknown."""
    since: datetime
    """Start of the attempt, or of the claim if the start is unknown."""
    has_started: bool = True
    """Whether a worker has started the job, as far as is known."""
    process: str = ""
    """Host and process of the worker, if the last heartbeat named the job."""


def name_of(worker_id: str) -> str:
    """Return the end of a worker's id: number and incarnation, such as ``0.1``."""
    return worker_id.rpartition(":")[2]


class ClusterQuerySet(models.QuerySet["Cluster"]):
    def beat(self, cluster_id: UUID, state: str, info: dict[str, Any]) -> bool:
        """Write a heartbeat. Return False if the row was deleted: the cluster counts as dead."""
        changed = self.filter(pk=cluster_id).update(
            heartbeat_us=DatabaseNow(), state=state, info=info
        )
        return bool(changed)

    def ask(self, cluster_id: UUID, request: str) -> bool:
        """Store a request to a cluster, which reads its requests every second. The request ""
        withdraws an earlier one.

        Returns False if the cluster does not exist or was asked to stop, which cannot be withdrawn.
        """
        asked = self.filter(pk=cluster_id).exclude(request=Cluster.Request.STOP)
        if request == Cluster.Request.STOP:
            asked = self.filter(pk=cluster_id)
        # MySQL counts changed rows, not found rows.
        return bool(asked.update(request=request)) or asked.filter(request=request).exists()

    def resize(self, cluster_id: UUID, workers: int | None) -> bool:
        """Request a number of workers. Return False if the cluster does not exist."""
        asked = self.filter(pk=cluster_id)
        return bool(asked.update(workers=workers)) or asked.filter(workers=workers).exists()

    def recycle(self, cluster_id: UUID, workers: Iterable[str]) -> bool:
        """Request that these workers are replaced, see ``Cluster.recycle``. Requests for workers
        that have been replaced since are forgotten. Return False if the cluster does not exist, or
        if more requests are open than fit in the column."""
        with transaction.atomic(using=self.db):
            row = self.select_for_update().filter(pk=cluster_id).first()
            if row is None:
                return False
            open_still = set(row.recycle.split()).intersection(row.worker_names())
            text = " ".join(sorted(open_still.union(workers)))
            if len(text) > LONGEST_RECYCLE:
                return False
            self.filter(pk=cluster_id).update(recycle=text)
            return True

    def silent_for(self, seconds: float) -> models.QuerySet[Cluster]:
        """Return clusters without a heartbeat for that long on the database's clock."""
        return self.filter(heartbeat_us__lt=DatabaseNow() - microseconds(seconds))

    def seats(self, claims: Mapping[UUID, Claimed | None]) -> dict[UUID, Seat]:
        """Return job id -> worker, from the last heartbeats, else from the leases.

        Args:
            claims: running jobs with their leases; None if the lease is not in the store.
        """
        found: dict[UUID, Seat] = {}
        clusters: Iterable[Any] = self.annotate(now_us=DatabaseNow()).order_by("heartbeat_us")
        for cluster in clusters:
            own = {
                job_id: claim
                for job_id, claim in claims.items()
                if claim is None or claim.holder == cluster.pk
            }
            leased = {
                job_id: cluster.seat_of(claim, moment(cluster.now_us / MICROSECONDS))
                for job_id, claim in own.items()
                if claim
            }
            shown = {job_id: seat for job_id, seat in cluster.seats() if job_id in own}
            found |= leased | shown
        return found

    def alive_within(self, seconds: float) -> models.QuerySet[Cluster]:
        return self.filter(heartbeat_us__gte=DatabaseNow() - microseconds(seconds))


class ClusterStatus(models.TextChoices):
    RUNNING = "running"
    QUIET = "quiet"
    """The cluster takes no new jobs, on request; its running jobs continue."""
    STOPPING = "stopping"


class Cluster(models.Model):
    State = ClusterStatus

    class Request(models.TextChoices):
        NONE = ""
        QUIET = "quiet"
        STOP = "stop"

    id = models.UUIDField(primary_key=True)
    """A new id for every ``stoker run``."""
    name = models.CharField(max_length=100)
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.RUNNING)
    request = models.CharField(
        max_length=5, choices=Request.choices, default="", db_default="", blank=True
    )
    """The pending request, see ``stoker clusters``."""
    workers = models.PositiveSmallIntegerField(null=True, blank=True)
    """The number of workers that an operator has asked for. None = the number at its start."""
    recycle = models.CharField(max_length=LONGEST_RECYCLE, default="", db_default="", blank=True)
    """The workers to replace, separated by spaces. Each is written as its number and incarnation,
    such as ``0.1``: the end of its id."""
    heartbeat_us = models.BigIntegerField(db_index=True)
    started_at = models.DateTimeField()
    info = models.JSONField(default=dict)
    """Served queues, processes, and the running jobs of each worker."""

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
        """Common prefix of the ids of its workers."""
        return f"{self.host[:LONGEST_HOST]}:{self.pk.hex[-8:]}"

    def worker_names(self) -> list[str]:
        """Return the workers of the last heartbeat as in ``recycle``."""
        return [name_of(worker.get("id", "")) for worker in self.info.get("workers", ())]

    def seat_of(self, claim: Claimed, now: datetime) -> Seat:
        """Return the cluster as the place of a leased job that its last heartbeat does not mention.

        The lease began at the claim, because leases are extended only after some time. The job has
        started unless that was a moment ago.

        Args:
            claim: the lease.
            now: the current time on the database's clock.
        """
        lease_seconds = self.info.get("lease_seconds")
        since = moment((claim.leased_until_us - microseconds(lease_seconds or 0.0)) / MICROSECONDS)
        is_fresh = lease_seconds and (now - since).total_seconds() < HANDED_OUT_SECONDS
        return Seat(self.worker_ids, since, has_started=not is_fresh)

    def seats(self) -> Iterator[tuple[UUID, Seat]]:
        """Yield the jobs that its workers ran at the last heartbeat."""
        for worker in self.info.get("workers", ()):
            for job in worker["running"]:
                since = moment(self.heartbeat_us / MICROSECONDS - job["seconds"])
                worker_id, process = (
                    worker.get("id", self.worker_ids),
                    f"{self.host}:{worker['pid']}",
                )
                yield UUID(job["job"]), Seat(worker_id, since, process=process)
