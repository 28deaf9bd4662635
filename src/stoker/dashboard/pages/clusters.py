"""Clusters, with the running jobs of each worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any
from uuid import UUID

from stoker.dashboard.context import DashboardContext
from stoker.dashboard.views import PageContent, page, start_of
from stoker.inspect.stats import ClusterState, WorkerState, longest_silence, state_of
from stoker.models import Cluster
from stoker.operations import clusters
from stoker.operations.clusters import RECYCLE, RESIZE
from stoker.operations.details import REVEAL, calls_of_jobs
from stoker.store.engines.sessions import explained
from stoker.tasks.arguments import ShownCall

MOST_ROWS, HEAD = 50, 3
"""Number of rows of a page. The head of a cluster is as long as three workers."""
SHOWN = 5
"""Maximum number of running jobs to show for each worker."""
MOST_CALLS = 500
"""Maximum number of running jobs whose arguments are read."""


@page("stoker.view_cluster")
def show(visit: DashboardContext) -> PageContent:
    """Return a page of clusters, the longest running first."""
    longest = longest_silence(visit.settings)
    every, start = clusters.find(backend=visit.alias), start_of(visit)
    found = _first(every[start:])
    end = start + len(found)
    calls = _calls(visit, found)
    rows = [
        {
            "is": one,
            "state": state_of(one, longest),
            "busy": _busy(one),
            "workers": [_worker(worker, calls) for worker in one.workers],
        }
        for one in found
    ]
    context = {
        "rows": rows,
        "longest_silence": longest,
        "resize": RESIZE,
        "recycle": RECYCLE,
        "may_change": visit.may(RESIZE.permission),
        **visit.paging(str(end) if end < len(every) else None),
    }
    return PageContent("clusters", context)


def _first(found: Sequence[ClusterState]) -> Sequence[ClusterState]:
    """Return the clusters that fit on a page: at least one."""
    lengths = accumulate(len(one.workers) + HEAD for one in found)
    return found[: max(1, sum(length <= MOST_ROWS for length in lengths))]


def _calls(
    visit: DashboardContext, found: Sequence[ClusterState]
) -> Mapping[UUID, ShownCall | None]:
    """Return the arguments of the running jobs that the page shows."""
    if not visit.may("stoker.view_job"):
        return {}
    running = [job for one in found for worker in one.workers for job in worker.running[:SHOWN]]
    ids = [UUID(job.job_id) for job in running[:MOST_CALLS]]
    with explained(visit.database):
        return calls_of_jobs(visit.settings, ids, reveal=visit.may(REVEAL))


def _worker(worker: WorkerState, calls: Mapping[UUID, ShownCall | None]) -> dict[str, Any]:
    running = [{"is": job, "call": calls.get(UUID(job.job_id))} for job in worker.running[:SHOWN]]
    return {"is": worker, "running": running, "more": max(0, len(worker.running) - SHOWN)}


def _busy(one: ClusterState) -> dict[str, Any]:
    return {
        "workers": sum(bool(worker.running) for worker in one.workers),
        "leaving": sum(worker.is_leaving for worker in one.workers),
        "jobs_done": sum(worker.jobs_done for worker in one.workers),
        "is_asked": one.request and one.state == Cluster.State.RUNNING,
    }
