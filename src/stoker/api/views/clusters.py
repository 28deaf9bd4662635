"""Clusters and their workers; requests to take no more jobs, to take them again, to stop."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest

from stoker.api.access import Routes, operator_of, perform
from stoker.api.shapes import ClusterList
from stoker.api.values import Backend, settings_of
from stoker.inspect.stats import ClusterState
from stoker.operations import clusters
from stoker.operations.operation import Operation

routes = Routes(tags=["clusters"])


@routes.show("/clusters", "stoker.view_cluster", ClusterList)
def list_clusters(request: HttpRequest, backend: Backend = None) -> Any:
    """The clusters with their workers, and what each of them runs."""
    return {"clusters": clusters.find(backend=settings_of(backend).alias)}


@routes.show("/clusters/{cluster_id}", "stoker.view_cluster", ClusterState)
def get_cluster(request: HttpRequest, cluster_id: UUID, backend: Backend = None) -> Any:
    """One cluster with its workers."""
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


def _ask(
    request: HttpRequest, operation: Operation, cluster_id: UUID, backend: str | None
) -> ClusterState:
    operator = operator_of(request, backend)
    perform(operation, operator, cluster_id)
    return clusters.get(cluster_id, backend=operator.alias)
