"""``django_q.status``: the running clusters."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from django.utils import timezone

from stoker.inspect.stats import ClusterState, clusters

from . import conf


@dataclass(frozen=True, slots=True)
class Stat:
    """One cluster in the form of Django Q's ``Stat``, as of its last heartbeat."""

    cluster_id: str
    host: str
    pid: int
    """Process id of the sentinel."""
    status: str
    """Idle, Working or Stopping."""
    workers: tuple[int, ...]
    """Process ids of the workers."""
    task_q_size: int
    """Number of claimed jobs, running ones included."""
    tob: datetime
    """Time of its start."""
    jobs_done: int
    silent_seconds: float
    """Seconds since its last heartbeat."""

    pusher: int = 0
    """Process id of the pusher; 0 = unknown."""
    monitor: int = 0
    """Process id of the monitor; 0 = unknown."""
    reincarnations: int = 0
    """Always 0: Stoker does not count how often processes were replaced."""
    done_q_size: int = 0
    """Always 0: ended jobs are claimed until they are recorded."""

    @property
    def sentinel(self) -> int:
        """Process id of the sentinel."""
        return self.pid

    @classmethod
    def get_all(cls) -> list[Self]:
        """Return all live clusters."""
        return [cls._of(state) for state in clusters(conf.settings())]

    @classmethod
    def get(cls, pid: int, cluster_id: str | None = None) -> Self | None:
        """Return the cluster with that sentinel's process id. Without a cluster id, search only
        this host."""
        for stat in cls.get_all():
            is_here = stat.host == socket.gethostname()
            if stat.pid == pid and (stat.cluster_id == cluster_id if cluster_id else is_here):
                return stat
        return None

    def uptime(self) -> float:
        """Return the seconds since its start."""
        return (timezone.now() - self.tob).total_seconds()

    def empty_queues(self) -> bool:
        """Return whether the cluster has no claimed jobs."""
        return self.task_q_size == 0

    @classmethod
    def _of(cls, state: ClusterState) -> Self:
        status = "Working" if state.leases else "Idle"
        pids = {one.role: one.pid for one in state.processes}
        core = pids.get("core", 0)
        return cls(
            cluster_id=state.id,
            host=state.host,
            pid=state.pid,
            status="Stopping" if state.state == "stopping" else status,
            workers=tuple(worker.pid for worker in state.workers),
            task_q_size=state.leases,
            tob=state.started_at,
            jobs_done=sum(worker.jobs_done for worker in state.workers),
            silent_seconds=state.silent_seconds,
            pusher=pids.get("pusher", core),
            monitor=pids.get("monitor", core),
        )
