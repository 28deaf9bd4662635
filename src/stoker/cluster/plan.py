"""The options of one ``stoker run``, which every process of the cluster receives."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

from stoker.conf import Settings, settings_for


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of one run.

    ``queues`` empty = those of the backend's ``QUEUES``, and if that is empty, every queue.
    ``overrides`` are settings changed on the command line, by field name.
    """

    alias: str = "default"
    queues: tuple[str, ...] = ()
    drain: bool = False
    reload: bool = False
    console: bool = False
    log_level: str = "INFO"
    logs_json: bool = False
    single: bool = False
    """Run pusher, monitor and scheduler as threads of one process, the core."""
    overrides: tuple[tuple[str, Any], ...] = ()
    cluster_id: UUID = field(default_factory=uuid4)
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    """Process id of the sentinel."""

    @property
    def settings(self) -> Settings:
        return replace(settings_for(self.alias), **dict(self.overrides))

    @property
    def served_queues(self) -> tuple[str, ...]:
        return self.queues or self.settings.queues

    def worker_id(self, worker: int, incarnation: int) -> str:
        """Return the name of a worker in results: host, run, number, incarnation."""
        return f"{self.host[:80]}:{self.cluster_id.hex[-8:]}:{worker}.{incarnation}"
