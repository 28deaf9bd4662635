"""Clusters and their workers, and requests to clusters."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from django.http import HttpRequest
from pydantic import Field

from stoker.api.access import Routes, operator_of, perform
from stoker.api.filters import NO_REASON, ReasonBody
from stoker.api.shapes import ClusterList
from stoker.api.values import Backend, Strict, settings_of
from stoker.inspect.stats import ClusterState
from stoker.operations import clusters
from stoker.operations.operation import Operation

routes = Routes(tags=["clusters"])


class Resizing(ReasonBody):
    """The body of a request to change the number of workers."""

    workers: Annotated[int, Strict, Field(ge=1, le=1024)] | None
    """None = the number at the cluster's start."""


class Recycling(ReasonBody):
    """The body of a request to replace workers."""

    worker: Annotated[int, Strict, Field(ge=0, le=1023)] | None = None
    """Number of the worker; None = all."""


@routes.show("/clusters", "stoker.view_cluster", ClusterList)
def list_clusters(request: HttpRequest, backend: Backend = None) -> Any:
    """List the clusters, with their workers and the running jobs of each."""
    return {"clusters": clusters.find(backend=settings_of(backend).alias)}


@routes.show("/clusters/{cluster_id}", "stoker.view_cluster", ClusterState)
def get_cluster(request: HttpRequest, cluster_id: UUID, backend: Backend = None) -> Any:
    """Show one cluster with its workers."""
    return clusters.get(cluster_id, backend=settings_of(backend).alias)


@routes.change("/clusters/{cluster_id}/quiet", clusters.QUIET, ClusterState, may_conflict=True)
def quiet_cluster(request: HttpRequest, cluster_id: UUID, backend: Backend = None) -> Any:
    """Ask a cluster to take no more jobs; running jobs continue. It does so within a second."""
    return _ask(request, clusters.QUIET, cluster_id, backend)


@routes.change("/clusters/{cluster_id}/resume", clusters.RESUME, ClusterState, may_conflict=True)
def resume_cluster(request: HttpRequest, cluster_id: UUID, backend: Backend = None) -> Any:
    """Ask a quiet cluster to take jobs again."""
    return _ask(request, clusters.RESUME, cluster_id, backend)


@routes.change("/clusters/{cluster_id}/stop", clusters.STOP, ClusterState, may_conflict=True)
def stop_cluster(request: HttpRequest, cluster_id: UUID, backend: Backend = None) -> Any:
    """Ask a cluster to stop, as SIGTERM does. Its process manager may start it again."""
    return _ask(request, clusters.STOP, cluster_id, backend)


@routes.change(
    "/clusters/{cluster_id}/resize",
    clusters.RESIZE,
    ClusterState,
    may_conflict=True,
    example={"workers": 6},
)
def resize_cluster(
    request: HttpRequest, cluster_id: UUID, body: Resizing, backend: Backend = None
) -> Any:
    """Ask a cluster to change its number of workers. 409: the number is above its maximum."""
    workers = "" if body.workers is None else str(body.workers)
    return _ask(request, clusters.RESIZE, cluster_id, backend, body, workers=workers)


@routes.change(
    "/clusters/{cluster_id}/recycle",
    clusters.RECYCLE,
    ClusterState,
    may_conflict=True,
    example={"worker": 0},
)
def recycle_workers(
    request: HttpRequest, cluster_id: UUID, body: Recycling, backend: Backend = None
) -> Any:
    """Ask a cluster to replace one or all of its workers by new processes, once their running jobs
    have ended. 409: it has no such worker."""
    worker = "" if body.worker is None else str(body.worker)
    return _ask(request, clusters.RECYCLE, cluster_id, backend, body, worker=worker)


def _ask(
    request: HttpRequest,
    operation: Operation,
    cluster_id: UUID,
    backend: str | None,
    body: ReasonBody = NO_REASON,
    **options: str,
) -> ClusterState:
    operator = operator_of(request, backend, body.because)
    perform(operation, operator, cluster_id, **options)
    return clusters.get(cluster_id, backend=operator.alias)
