"""Clusters in the admin, with their workers and the jobs that these run."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http.response import HttpResponseBase

from stoker.inspect.stats import ClusterState, WorkerState, longest_silence, state_of
from stoker.models import Cluster
from stoker.operations import clusters
from stoker.operations.wording import duration, exactly, mebibytes, since

from .base import AdminContext, StoreAdmin


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
            "state": state_of(cluster, longest_silence(visit.settings)),
            "started": exactly(cluster.started_at),
            "started_ago": since(cluster.started_at),
            "silent": duration(cluster.silent_seconds),
            "queues": ", ".join(cluster.queues) or "all",
            "memory": clusters.memory_in_words(cluster),
            "workers": [_worker(visit, worker) for worker in cluster.workers],
            "buttons": self.buttons(visit, operations, cluster.id),
        }

    def _back(self, visit: AdminContext, object_id: str) -> str:
        return visit.at("cluster_changelist")


def _worker(visit: AdminContext, worker: WorkerState) -> dict[str, Any]:
    memory = worker.resident_bytes
    running = [
        {"job": job, "url": visit.at("job_change", job.job_id), "for": duration(job.seconds)}
        for job in worker.running
    ]
    return {
        "worker": worker,
        "memory": "" if not memory else mebibytes(memory),
        "running": running,
    }
