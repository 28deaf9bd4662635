"""Find clusters, judge their health, and request changes: take no more jobs, stop, have another
number of workers, replace a worker.

::

    from stoker.operations import clusters

    for cluster in clusters.find(): ...
    clusters.quiet(cluster.id)

A request is stored, and the cluster obeys within a second. It applies only to this cluster: a
cluster that starts later takes jobs. Every call takes ``backend``, a name under ``TASKS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from stoker.conf import Settings, settings_for
from stoker.exceptions import ClusterNotFound
from stoker.inspect.stats import ClusterState
from stoker.inspect.stats import clusters as known_clusters
from stoker.models import Cluster
from stoker.signals import tell
from stoker.store.engines.sessions import explained
from stoker.values.durations import in_words
from stoker.values.ids import parse_job_id
from stoker.values.text import plural

from .operation import Done, Operation, Operator
from .wording import mebibytes

LONGEST_NUMBER = 5
"""Digits of a number of workers."""
T = TypeVar("T")

GONE = "There is no cluster '{}' (any more)."


class Health(NamedTuple):
    """Whether the clusters work, and the reason as one sentence."""

    is_good: bool
    sentence: str


def find(*, backend: str = "default") -> tuple[ClusterState, ...]:
    """Return the clusters, the longest running first.

    A cluster that died is listed until the upkeep of another cluster removes it. Its ``state`` is
    that of its last heartbeat, and its ``silent_seconds`` grow.
    """
    return known_clusters(settings_for(backend))


def get(cluster_id: UUID | str, *, backend: str = "default") -> ClusterState:
    """Return one cluster.

    Raises:
        ClusterNotFound: No cluster has this id (any more).
    """
    for cluster in find(backend=backend):
        if cluster.id == str(parse_job_id(str(cluster_id))):
            return cluster
    raise ClusterNotFound(GONE.format(cluster_id))


def quiet(cluster_id: UUID | str, *, backend: str = "default") -> bool:
    """Ask a cluster to take no more jobs: running jobs continue, others go back to their queue.

    Returns:
        False if the cluster is already stopping because of an earlier request.

    Raises:
        ClusterNotFound: No cluster has this id (any more).
    """
    return _ask(cluster_id, Cluster.Request.QUIET, backend)


def resume(cluster_id: UUID | str, *, backend: str = "default") -> bool:
    """Ask a quiet cluster to take jobs again. Returns and raises the same as ``quiet``."""
    return _ask(cluster_id, Cluster.Request.NONE, backend)


def stop(cluster_id: UUID | str, *, backend: str = "default") -> bool:
    """Ask a cluster to stop, as SIGTERM does: running jobs have ``SHUTDOWN_SECONDS`` to finish.

    The process manager that started the cluster may start it again. Returns and raises the same as
    ``quiet``.
    """
    return _ask(cluster_id, Cluster.Request.STOP, backend)


def resize(cluster_id: UUID | str, workers: int | None, *, backend: str = "default") -> int | None:
    """Ask a cluster to have this number of workers, until it ends or is asked again.

    New workers start within a second. Surplus workers finish their running jobs first.

    Args:
        workers: At least 1, at most ``MAX_WORKERS``; None = as many as it was started with.

    Returns:
        The number that was requested before; None = none was.

    Raises:
        ClusterNotFound: There is no cluster with this id, or there is none any more.
        ValueError: The number is out of bounds, or the cluster is stopping or of an older version.
    """
    cluster, database = _changeable(cluster_id, backend), settings_for(backend).database
    if workers is not None and not 1 <= workers <= cluster.most_workers:
        raise ValueError(
            f"This cluster can have 1 to {cluster.most_workers} workers, not {workers}. "
            "A cluster reads this maximum from MAX_WORKERS when it starts."
        )
    with explained(database):
        if not Cluster.objects.using(database).resize(UUID(cluster.id), workers):
            raise ClusterNotFound(GONE.format(cluster_id))
    return cluster.wanted_workers


def recycle(cluster_id: UUID | str, worker: int | None = None, *, backend: str = "default") -> int:
    """Ask a cluster to replace a worker by a new process, once its running jobs have ended.

    Args:
        worker: Its number, from 0; None = all workers of the cluster.

    Returns:
        How many workers were asked.

    Raises:
        ClusterNotFound: There is no cluster with this id, or there is none any more.
        ValueError: It has no worker with this number, too many requests are open, or the cluster
            is stopping or of an older version.
    """
    cluster, database = _changeable(cluster_id, backend), settings_for(backend).database
    wanted = [one for one in cluster.workers if worker in (None, one.number) and one.name]
    names = [one.name for one in wanted if one.is_recycled or not one.is_leaving]
    if not names:
        raise ValueError(_no_worker(cluster, worker))
    with explained(database):
        if not Cluster.objects.using(database).recycle(UUID(cluster.id), names):
            raise ValueError("Too many workers are waiting to be replaced. Try again later.")
    return len(names)


def health_of(
    settings: Settings, host: str | None, max_silence_seconds: float
) -> tuple[Health, Sequence[ClusterState]]:
    """Judge the clusters of a host, or of all hosts. Return these clusters, too."""
    known = [one for one in known_clusters(settings) if host in (None, one.host)]
    if known:
        return judge(known, max_silence_seconds), known
    where = "on any host" if host is None else f"on {host}"
    sentence = f"No cluster of the backend {settings.alias!r} runs {where}"
    return Health(False, f"{sentence}: start one with `stoker run{settings.backend_option}`."), ()


def judge(known: Sequence[ClusterState], max_silence_seconds: float) -> Health:
    """Return whether at least one of the clusters works, and the reason. ``known`` must not be
    empty."""
    best = min(known, key=lambda one: (one.state == Cluster.State.STOPPING, _monitor_silence(one)))
    name = f"Cluster {best.name} on {best.host} (process {best.pid})"
    if best.silent_seconds > max_silence_seconds:
        sentence = (
            f"{name} has sent no heartbeat for {best.silent_seconds:.1f} s: "
            f"more than {max_silence_seconds:g} s."
        )
        return Health(False, sentence)
    stuck = _monitor_silence(best)
    if stuck > max_silence_seconds:
        return Health(
            False, f"{name} records nothing: its monitor has not responded for {stuck:.1f} s."
        )
    if best.state == Cluster.State.STOPPING:
        return Health(False, f"{name} is {best.state}: it takes no more jobs.")
    if best.state == Cluster.State.QUIET:
        name += ", which was asked to take no more jobs,"
    sentence = f"{name} is alive: its last heartbeat is {best.silent_seconds:.1f} s old."
    return Health(True, sentence)


def _monitor_silence(cluster: ClusterState) -> float:
    """Return the seconds since the last known turn of the monitor. If none is known, return those
    since the last heartbeat."""
    return cluster.loops.get("monitor", 0.0) + cluster.silent_seconds


def memory_in_words(cluster: ClusterState) -> str:
    """Return the memory of the processes that are no workers, as ``pusher 40 MiB, ...``."""
    known = [one for one in cluster.processes if one.resident_bytes]
    return ", ".join(f"{one.role} {mebibytes(one.resident_bytes)}" for one in known)


def _changeable(cluster_id: UUID | str, backend: str) -> ClusterState:
    """Return a cluster that can be resized and recycled: it is not stopping, and its version reads
    such requests."""
    cluster = get(cluster_id, backend=backend)
    if not cluster.most_workers:
        raise ValueError(
            "This cluster cannot be changed: it runs another version of Stoker, or has sent no "
            "heartbeat yet."
        )
    if cluster.state == Cluster.State.STOPPING or cluster.request == Cluster.Request.STOP:
        raise ValueError("This cluster is stopping, so it starts no more workers.")
    return cluster


def _no_worker(cluster: ClusterState, worker: int | None) -> str:
    """Return why no worker can be recycled, and what to do."""
    if any(worker in (None, one.number) for one in cluster.workers):
        which = "All its workers are" if worker is None else f"Worker {worker} is"
        return f"{which} already leaving, and will exit when running jobs have ended."
    heartbeat = f"Its last heartbeat, {in_words(cluster.silent_seconds)} ago, names"
    if not cluster.workers:
        return (
            f"This cluster has no workers to recycle. {heartbeat} none, which is normal just after "
            "a start. Try again after the next heartbeat."
        )
    numbers = ", ".join(str(one.number) for one in cluster.workers)
    return f"This cluster has no worker {worker}. {heartbeat} {numbers}."


def _ask(cluster_id: UUID | str, request: Cluster.Request, backend: str) -> bool:
    database = settings_for(backend).database
    cluster = get(cluster_id, backend=backend)
    with explained(database):
        return Cluster.objects.using(database).ask(UUID(cluster.id), request)


def _asking(ask: Callable[..., bool], request: str, result: str) -> Callable[..., Done]:
    def act(operator: Operator, cluster_id: UUID | str) -> Done:
        if not ask(cluster_id, backend=operator.alias):
            return Done("The cluster is stopping already.", is_good=False)
        tell("cluster_asked", by=operator.by, cluster_id=cluster_id, what=ask.__name__)
        undo = {"cluster": str(cluster_id)} if ask is quiet else {}
        return Done(f"The cluster is asked to {request}: {result}.", undo=undo)

    return act


def _ask_with_number(
    operator: Operator, cluster_id: UUID | str, ask: Callable[..., T], text: str
) -> tuple[int | None, T]:
    """Make a request with the number that an operator typed.

    Returns:
        The number, or None if none was typed, and the answer of ``ask``.

    Raises:
        ValueError: The number cannot be used, or the request is refused.
    """
    number = _whole_or_none(text)
    answer = ask(cluster_id, number, backend=operator.alias)
    tell("cluster_asked", by=operator.by, cluster_id=cluster_id, what=ask.__name__)
    return number, answer


def _resize(operator: Operator, cluster_id: UUID | str, workers: str = "") -> Done:
    try:
        wanted, before = _ask_with_number(operator, cluster_id, resize, workers)
    except ValueError as error:
        return Done(str(error), is_good=False)
    undo = {"cluster": str(cluster_id), "workers": "" if before is None else str(before)}
    number = "as many workers as at its start" if wanted is None else plural(wanted, "worker")
    return Done(
        f"The cluster is asked to have {number}. Surplus workers finish their running jobs first.",
        undo=undo,
    )


def _whole_or_none(text: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER):
        raise ValueError(f"{text[:20]!r} is not a whole number of 0 or more.")
    return int(text)


def _recycle(operator: Operator, cluster_id: UUID | str, worker: str = "") -> Done:
    try:
        number, count = _ask_with_number(operator, cluster_id, recycle, worker)
    except ValueError as error:
        return Done(str(error), is_good=False)
    which = plural(count, "worker") if number is None else f"worker {number}"
    return Done(
        f"The cluster is asked to recycle {which}: a new process takes over as soon as the running "
        "jobs have ended.",
        count=count,
    )


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
    _asking(resume, "take jobs again", "this takes effect within a second"),
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
RESIZE = Operation(
    "resize",
    "cluster",
    "stoker.change_cluster",
    _resize,
    label="Resize",
    question="How many workers should this cluster have? New ones start within a second. Surplus "
    "workers finish their running jobs first. The change lasts until the cluster stops.",
    undo="resize",
    takes=("workers",),
)
RECYCLE = Operation(
    "recycle", "cluster", "stoker.change_cluster", _recycle, label="Recycle", takes=("worker",)
)
OPERATIONS = (QUIET, RESUME, STOP, RESIZE, RECYCLE)
