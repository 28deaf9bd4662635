"""Health checks for platforms and monitors, and the status of everything."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest
from ninja import Status

from stoker.api.access import Open, Routes
from stoker.api.shapes import Shape, StatusShape
from stoker.api.values import Backend, settings_of
from stoker.exceptions import StokerError
from stoker.inspect.guards import crowded
from stoker.inspect.stats import longest_silence, overview
from stoker.operations.clusters import health_of
from stoker.store.unapplied import unapplied_migrations

routes = Routes(tags=["health"])


class Live(Shape):
    """This process responds."""

    live: Literal[True] = True


class Readiness(Shape):
    """Whether jobs can be enqueued here, and whether a cluster runs them."""

    ready: bool
    """The store is reachable and migrated."""
    because: str
    """Reason why it is not ready."""
    clusters: Literal["alive", "none", "unknown"]
    """Whether a cluster on any host works, as in `stoker health --any-host`. It has no influence on
    `ready`."""


class ClustersHealth(Shape):
    """The result of `manage.py stoker health --any-host`."""

    healthy: bool
    because: str


@routes.route("GET", "/health/live", permissions=Open.TO_ALL, answers={200: Live})
def live(request: HttpRequest) -> Live:
    """Check that this web process responds. Runs no database query."""
    return Live()


@routes.route(
    "GET", "/health/ready", permissions=Open.TO_ALL, answers={200: Readiness, 503: Readiness}
)
def ready(request: HttpRequest, backend: Backend = None) -> Status[Readiness]:
    """Check that the store can be reached and has its tables; 503 if not."""
    settings = settings_of(backend, lists_known=False)
    try:
        is_migrated = not unapplied_migrations(settings.database)
    except (DatabaseError, InterfaceError):
        return _not_ready("the store is unreachable")
    if not is_migrated:
        return _not_ready("manage.py migrate is due")
    try:
        is_alive = health_of(settings, None, longest_silence(settings))[0].is_good
    except (StokerError, DatabaseError, InterfaceError):
        return _not_ready("the store is unreachable")
    return Status(200, Readiness(ready=True, because="", clusters="alive" if is_alive else "none"))


@routes.route(
    "GET",
    "/health/clusters",
    permissions=("stoker.view_cluster",),
    answers={200: ClustersHealth, 503: ClustersHealth},
)
def clusters_health(request: HttpRequest, backend: Backend = None) -> Status[ClustersHealth]:
    """Check that a cluster works, on any host; 503 if none does."""
    settings = settings_of(backend)
    health, _ = health_of(settings, None, longest_silence(settings))
    shape = ClustersHealth(healthy=health.is_good, because=health.sentence)
    return Status(200 if health.is_good else 503, shape)


@routes.route(
    "GET",
    "/status",
    permissions=("stoker.view_cluster", "stoker.view_job", "stoker.view_deadletter"),
    answers={200: StatusShape},
)
def status(request: HttpRequest, backend: Backend = None) -> Any:
    """Show queues, clusters with their workers and running jobs, dead letters and guards, as
    `manage.py stoker info --json` does."""
    settings = settings_of(backend)
    return {**asdict(overview(settings)), "guards": asdict(crowded(settings))}


def _not_ready(because: str) -> Status[Readiness]:
    return Status(503, Readiness(ready=False, because=because, clusters="unknown"))
