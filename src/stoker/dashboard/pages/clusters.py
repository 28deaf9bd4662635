"""Clusters: what each worker runs; told to be quiet, to go on, to stop."""

from __future__ import annotations

from typing import Any

from stoker.dashboard.request_context import Visit
from stoker.dashboard.views import Done, Page, Refusal, action, page
from stoker.models import Cluster
from stoker.operations import clusters
from stoker.operations.clusters import ClusterState


@page("stoker.view_cluster")
def show(visit: Visit) -> Page:
    """All of them, the longest running first."""
    longest = clusters.longest_silence(visit.settings)
    rows = [
        {"is": one, "state": clusters.state_of(one, longest), "busy": _busy(one)}
        for one in clusters.find(backend=visit.alias)
    ]
    return Page("clusters", {"rows": rows, "longest_silence": longest})


@action("stoker.quiet_cluster")
def quiet(visit: Visit) -> Done:
    """It takes no more jobs."""
    if not clusters.quiet(_cluster(visit), backend=visit.alias):
        return Done("It was asked to stop before, and does.", is_bad=True)
    return Done(
        "It was asked to take no more jobs. What runs goes on.",
        undo="resume-cluster",
        fields=(("cluster", _cluster(visit)),),
    )


@action("stoker.quiet_cluster")
def resume(visit: Visit) -> Done:
    """It takes jobs again."""
    if not clusters.resume(_cluster(visit), backend=visit.alias):
        return Done("It was asked to stop before, and does.", is_bad=True)
    return Done("It was asked to take jobs again.")


@action("stoker.stop_cluster")
def stop(visit: Visit) -> Done:
    """It ends, after what runs."""
    clusters.stop(_cluster(visit), backend=visit.alias)
    seconds = visit.settings.shutdown_seconds
    return Done(f"It was asked to stop. What runs has {seconds:g} s to finish.")


def _cluster(visit: Visit) -> str:
    cluster = visit.request.POST.get("cluster", "")
    if not cluster:
        raise Refusal(400, "No cluster was named.")
    return cluster


def _busy(one: ClusterState) -> dict[str, Any]:
    busy = sum(bool(worker.running) for worker in one.workers)
    return {
        "workers": busy,
        "jobs_done": sum(worker.jobs_done for worker in one.workers),
        "is_asked": one.request and one.state == Cluster.State.RUNNING,
    }
