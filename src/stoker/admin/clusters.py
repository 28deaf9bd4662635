"""Clusters in the admin, with their workers and the jobs that these run."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http.response import HttpResponseBase

from stoker.inspect.stats import ClusterState, WorkerState
from stoker.models import Cluster
from stoker.operations import clusters
from stoker.operations.wording import duration, exactly, since

from .base import AdminContext, StoreAdmin

MEBIBYTE = 1 << 20


@admin.register(Cluster)
class ClusterAdmin(StoreAdmin):
    view_permission = "stoker.view_cluster"
    plural = "Clusters"
    operations = (clusters.QUIET, clusters.RESUME, clusters.STOP)

    def all(self, visit: AdminContext) -> HttpResponseBase:
        rows = [self._row(visit, one) for one in clusters.find(backend=visit.alias)]
        return self.show(visit, "clusters", {"rows": rows})

    def one(self, visit: AdminContext, object_id: str) -> HttpResponseBase:
        cluster = clusters.get(object_id, backend=visit.alias)
        return self.show(visit, "clusters", {"rows": [self._row(visit, cluster)]})

    def _row(self, visit: AdminContext, cluster: ClusterState) -> dict[str, Any]:
        is_quiet = cluster.state == "quiet" or cluster.request == "quiet"
        operations = [clusters.RESUME if is_quiet else clusters.QUIET, clusters.STOP]
        return {
            "cluster": cluster,
            "state": clusters.state_of(cluster, clusters.longest_silence(visit.settings)),
            "started": exactly(cluster.started_at),
            "started_ago": since(cluster.started_at),
            "silent": duration(cluster.silent_seconds),
            "queues": ", ".join(cluster.queues) or "all",
            "memory": ", ".join(
                f"{one.role} {_mebibytes(one.resident_bytes)}"
                for one in cluster.processes
                if one.resident_bytes
            ),
            "workers": [_worker(visit, worker) for worker in cluster.workers],
            "buttons": self.buttons(visit, operations, cluster.id),
        }

    def _back(self, visit: AdminContext, object_id: str) -> str:
        return visit.at("cluster_changelist")


def _mebibytes(number: int) -> str:
    return f"{number / MEBIBYTE:,.0f} MiB"


def _worker(visit: AdminContext, worker: WorkerState) -> dict[str, Any]:
    memory = worker.resident_bytes
    running = [
        {"job": job, "url": visit.at("job_change", job.job_id), "for": duration(job.seconds)}
        for job in worker.running
    ]
    return {
        "worker": worker,
        "memory": "" if not memory else _mebibytes(memory),
        "running": running,
    }
