"""Clusters: seen, and asked to take no more jobs or to stop, from wherever the store is.

::

    from stoker import clusters

    for cluster in clusters.find(): ...
    clusters.quiet(cluster.id)

What is asked stands in the store, and the cluster does it within a second. It is not asked of the
next one: a cluster that starts, starts to work. Every call takes ``backend``, a name under
``TASKS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from stoker.conf import Settings, settings_for
from stoker.exceptions import ClusterNotFound
from stoker.inspect.stats import ClusterState, longest_silence, state_of
from stoker.inspect.stats import clusters as known_clusters
from stoker.jobs.states import explained
from stoker.models import Cluster
from stoker.values.ids import parse_job_id

__all__ = [
    "ClusterState",
    "Health",
    "find",
    "get",
    "judge",
    "longest_silence",
    "quiet",
    "resume",
    "state_of",
    "stop",
]


class Health(NamedTuple):
    """Whether clusters are well, and why one thinks so."""

    is_good: bool
    sentence: str


def find(*, backend: str = "default") -> tuple[ClusterState, ...]:
    """The clusters, the longest running first; one that died is among them, silent, until upkeep
    has buried it."""
    return known_clusters(settings_for(backend))


def get(cluster_id: UUID | str, *, backend: str = "default") -> ClusterState:
    """One cluster.

    Raises:
        ClusterNotFound: there is none with that id (any more).
    """
    for cluster in find(backend=backend):
        if cluster.id == str(parse_job_id(str(cluster_id))):
            return cluster
    raise ClusterNotFound(f"There is no cluster {str(cluster_id)!r} (any more).")


def quiet(cluster_id: UUID | str, *, backend: str = "default") -> bool:
    """Ask a cluster to take no more jobs: what runs goes on, what had not started goes back.

    Returns:
        False: it was asked to stop before, and does.

    Raises:
        ClusterNotFound: there is none with that id (any more).
    """
    return _ask(cluster_id, Cluster.Request.QUIET, backend)


def resume(cluster_id: UUID | str, *, backend: str = "default") -> bool:
    """Ask a cluster that was told to be quiet to take jobs again. As ``quiet``."""
    return _ask(cluster_id, Cluster.Request.NONE, backend)


def stop(cluster_id: UUID | str, *, backend: str = "default") -> bool:
    """Ask a cluster to stop, as SIGTERM does: running jobs have ``SHUTDOWN_SECONDS`` to finish.
    Whether it is started again is up to whatever started it. As ``quiet``."""
    return _ask(cluster_id, Cluster.Request.STOP, backend)


def judge(known: Sequence[ClusterState], max_silence_seconds: float) -> Health:
    """Whether one of these clusters, of which there is at least one, does its work."""
    best = min(known, key=lambda one: (one.state == Cluster.State.STOPPING, one.silent_seconds))
    name = f"Cluster {best.name} on {best.host} (process {best.pid})"
    if best.silent_seconds > max_silence_seconds:
        sentence = (
            f"{name} has given no sign of life for {best.silent_seconds:.1f} s: "
            f"more than {max_silence_seconds:g} s."
        )
        return Health(False, sentence)
    stuck = best.loops.get("monitor", 0.0) + best.silent_seconds
    if "monitor" in best.loops and stuck > max_silence_seconds:
        return Health(
            False, f"{name} records nothing: its monitor has not moved for {stuck:.1f} s."
        )
    if best.state == Cluster.State.STOPPING:
        return Health(False, f"{name} is {best.state}: it takes no more jobs.")
    if best.state == Cluster.State.QUIET:
        name += ", which was asked to take no more jobs,"
    sentence = f"{name} is alive: its last sign of life is {best.silent_seconds:.1f} s old."
    return Health(True, sentence)


def _ask(cluster_id: UUID | str, request: Cluster.Request, backend: str) -> bool:
    settings: Settings = settings_for(backend)
    cluster = get(cluster_id, backend=backend)
    with explained(settings.database):
        return Cluster.objects.using(settings.database).ask(UUID(cluster.id), request)
