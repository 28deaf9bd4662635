"""Find clusters, judge their health, and request that they take no more jobs or stop.

::

    from stoker.operations import clusters

    for cluster in clusters.find(): ...
    clusters.quiet(cluster.id)

A request is stored, and the cluster obeys within a second. It applies only to this cluster: a
cluster that starts later takes jobs. Every call takes ``backend``, a name under ``TASKS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from stoker.conf import settings_for
from stoker.exceptions import ClusterNotFound
from stoker.inspect.stats import ClusterState, longest_silence, state_of
from stoker.inspect.stats import clusters as known_clusters
from stoker.models import Cluster
from stoker.signals import tell
from stoker.store.engines.sessions import explained
from stoker.values.ids import parse_job_id

from .operation import Done, Operation, Operator

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
    """Whether the clusters work, and the reason as one sentence."""

    is_good: bool
    sentence: str


def find(*, backend: str = "default") -> tuple[ClusterState, ...]:
    """Return the clusters, the longest running first.

    A cluster that died is listed as silent until upkeep removes it.
    """
    return known_clusters(settings_for(backend))


def get(cluster_id: UUID | str, *, backend: str = "default") -> ClusterState:
    """Return one cluster.

    Raises:
        ClusterNotFound: There is no cluster with this id, or there is none any more.
    """
    for cluster in find(backend=backend):
        if cluster.id == str(parse_job_id(str(cluster_id))):
            return cluster
    raise ClusterNotFound(f"There is no cluster {str(cluster_id)!r} (any more).")


def quiet(cluster_id: UUID | str, *, backend: str = "default") -> bool:
    """Ask a cluster to take no more jobs: running jobs continue, others go back to their queue.

    Returns:
        False: The cluster was asked to stop before, and is stopping.

    Raises:
        ClusterNotFound: There is no cluster with this id, or there is none any more.
    """
    return _ask(cluster_id, Cluster.Request.QUIET, backend)


def resume(cluster_id: UUID | str, *, backend: str = "default") -> bool:
    """Ask a quiet cluster to take jobs again. See ``quiet`` for what it returns and raises."""
    return _ask(cluster_id, Cluster.Request.NONE, backend)


def stop(cluster_id: UUID | str, *, backend: str = "default") -> bool:
    """Ask a cluster to stop, as SIGTERM does: running jobs have ``SHUTDOWN_SECONDS`` to finish.

    The process manager that started the cluster may start it again. See ``quiet`` for what this
    returns and raises.
    """
    return _ask(cluster_id, Cluster.Request.STOP, backend)


def judge(known: Sequence[ClusterState], max_silence_seconds: float) -> Health:
    """Return whether at least one of these clusters works. ``known`` is not empty."""
    best = min(known, key=lambda one: (one.state == Cluster.State.STOPPING, one.silent_seconds))
    name = f"Cluster {best.name} on {best.host} (process {best.pid})"
    if best.silent_seconds > max_silence_seconds:
        sentence = (
            f"{name} has sent no heartbeat for {best.silent_seconds:.1f} s: "
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
    sentence = f"{name} is alive: its last heartbeat is {best.silent_seconds:.1f} s old."
    return Health(True, sentence)


def _ask(cluster_id: UUID | str, request: Cluster.Request, backend: str) -> bool:
    database = settings_for(backend).database
    cluster = get(cluster_id, backend=backend)
    with explained(database):
        return Cluster.objects.using(database).ask(UUID(cluster.id), request)


def _asking(ask: Callable[..., bool], request: str, result: str) -> Callable[..., Done]:
    def act(operator: Operator, cluster_id: UUID | str) -> Done:
        if not ask(cluster_id, backend=operator.alias):
            return Done("The cluster was asked to stop before, and is stopping.", is_good=False)
        tell("cluster_asked", by=operator.by, cluster_id=cluster_id, what=ask.__name__)
        undo = {"cluster": str(cluster_id)} if ask is quiet else {}
        return Done(f"The cluster is asked to {request}: {result}.", undo=undo)

    return act


QUIET = Operation(
    "quiet",
    "cluster",
    "stoker.quiet_cluster",
    _asking(quiet, "take no more jobs", "running jobs continue"),
    undo="resume",
)
RESUME = Operation(
    "resume",
    "cluster",
    "stoker.quiet_cluster",
    _asking(resume, "take jobs again", "it does so within a second"),
)
STOP = Operation(
    "stop",
    "cluster",
    "stoker.stop_cluster",
    _asking(stop, "stop", "running jobs have SHUTDOWN_SECONDS to finish"),
    question="Stop the cluster {name}, as SIGTERM does? Running jobs have SHUTDOWN_SECONDS to "
    "finish. The process manager that started the cluster may start it again.",
    is_grave=True,
)
OPERATIONS = (QUIET, RESUME, STOP)
