"""Clusters, with the running jobs of each worker."""

from __future__ import annotations

from typing import Any

from stoker.dashboard.context import DashboardContext
from stoker.dashboard.views import PageContent, page
from stoker.models import Cluster
from stoker.operations import clusters
from stoker.operations.clusters import RECYCLE, RESIZE, ClusterState


@page("stoker.view_cluster")
def show(visit: DashboardContext) -> PageContent:
    """Return all clusters, the longest running first."""
    longest = clusters.longest_silence(visit.settings)
    rows = [
        {"is": one, "state": clusters.state_of(one, longest), "busy": _busy(one)}
        for one in clusters.find(backend=visit.alias)
    ]
    context = {
        "rows": rows,
        "longest_silence": longest,
        "resize": RESIZE,
        "recycle": RECYCLE,
        "may_change": visit.may(RESIZE.permission),
    }
    return PageContent("clusters", context)


def _busy(one: ClusterState) -> dict[str, Any]:
    return {
        "workers": sum(bool(worker.running) for worker in one.workers),
        "jobs_done": sum(worker.jobs_done for worker in one.workers),
        "is_asked": one.request and one.state == Cluster.State.RUNNING,
    }
