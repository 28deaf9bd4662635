"""Clusters with their workers, and what each of them runs; told to be quiet, to go on, to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.http.response import HttpResponseBase

from stoker.inspect.stats import ClusterState
from stoker.models import Cluster
from stoker.operations import clusters
from stoker.signals import tell

from .base import Outcome, StoreAdmin, Verb, Visit, ago, duration, shown_moment

MEBIBYTE = 1 << 20


def _asking(ask: Callable[..., bool], sentence: str) -> Callable[[Visit, str, str], Outcome]:
    def act(visit: Visit, cluster_id: str, because: str) -> Outcome:
        if not ask(cluster_id, backend=visit.alias):
            return Outcome("The cluster was asked to stop already, and does.", is_good=False)
        tell("cluster_asked", by=visit.by, cluster_id=cluster_id, what=ask.__name__)
        return Outcome(sentence)

    return act


@admin.register(Cluster)
class ClusterAdmin(StoreAdmin):
    view_permission = "stoker.view_cluster"
    plural = "Clusters"
    verbs = (
        Verb(
            "quiet",
            "Quiet",
            "stoker.quiet_cluster",
            _asking(clusters.quiet, "The cluster is asked to take no more jobs."),
        ),
        Verb(
            "resume",
            "Resume",
            "stoker.quiet_cluster",
            _asking(clusters.resume, "The cluster is asked to take jobs again."),
        ),
        Verb(
            "stop",
            "Stop",
            "stoker.stop_cluster",
            _asking(clusters.stop, "The cluster is asked to stop."),
            asks="Stop the cluster {name}, as SIGTERM does? Whatever started it may start another.",
            is_grave=True,
        ),
    )

    def all(self, visit: Visit) -> HttpResponseBase:
        rows = [self._row(visit, one) for one in clusters.find(backend=visit.alias)]
        return self.show(visit, "clusters", {"rows": rows})

    def one(self, visit: Visit, object_id: str) -> HttpResponseBase:
        cluster = clusters.get(object_id, backend=visit.alias)
        return self.show(visit, "clusters", {"rows": [self._row(visit, cluster)]})

    def _row(self, visit: Visit, cluster: ClusterState) -> dict[str, Any]:
        is_quiet = cluster.state == "quiet" or cluster.request == "quiet"
        names = ["resume" if is_quiet else "quiet", "stop"]
        allowed = clusters.longest_silence(visit.settings)
        return {
            "cluster": cluster,
            "started": shown_moment(cluster.started_at),
            "started_ago": ago(cluster.started_at),
            "silent": duration(cluster.silent_seconds),
            "is_silent": cluster.silent_seconds > allowed,
            "queues": ", ".join(cluster.queues) or "all",
            "workers": [_worker(visit, worker) for worker in cluster.workers],
            "buttons": self.buttons(visit, names, cluster.id),
        }

    def _back(self, visit: Visit, object_id: str) -> str:
        return visit.at("cluster_changelist")


def _worker(visit: Visit, worker: Any) -> dict[str, Any]:
    memory = worker.resident_bytes
    return {
        "worker": worker,
        "memory": "" if not memory else f"{memory / MEBIBYTE:,.0f} MiB",
        "running": [
            {
                "job": job,
                "url": visit.at("job_change", job.job_id),
                "for": duration(job.seconds),
            }
            for job in worker.running
        ],
    }
