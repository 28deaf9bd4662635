"""Do a cluster's work in the test's process: claim, execute, record."""

import copy
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connections

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery
from stoker.conf import Settings, settings_for
from stoker.jobs.execute import Executor
from stoker.jobs.record import finish

PATIENCE_SECONDS = 120


def claim(settings: Settings | None = None, queues: Sequence[str] = ()) -> list[Delivery]:
    """Lease everything that may run now, in these queues or in all."""
    broker = broker_for(settings or settings_for())
    request = ClaimRequest(5000, holder=uuid.uuid4(), lease_seconds=60, queues=queues)
    return broker.claim(request)


def work_off(settings: Settings | None = None, worker_id: str = "worker 1") -> int:
    """Run everything that may run now, once. Return the number of attempts."""
    settings = settings or settings_for()
    executor = Executor(settings, worker_id=worker_id)
    attempted = [executor.run(delivery) for delivery in claim(settings)]
    if attempted:
        finish(settings, broker_for(settings), attempted)
    return len(attempted)


def work_off_when_due(worker_id: str = "worker 1") -> None:
    """Run the next job that falls due."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not work_off(worker_id=worker_id):
        assert time.monotonic() < deadline, "no job fell due"
        time.sleep(0.02)


def outside_the_database() -> dict[str, Any]:
    """Return the TASKS of a project whose jobs wait in the memory of this process."""
    options = {"BROKER": "memory://", "CLUSTER": uuid.uuid4().hex}
    backend = "stoker.backend.StokerBackend"
    return {"default": {"BACKEND": backend, "QUEUES": [], "OPTIONS": options}}


@contextmanager
def another_database(**changes: Any) -> Iterator[str]:
    """Add an alias that is the default database with these changes."""
    alias = f"another_{uuid.uuid4().hex[:8]}"
    entry = copy.deepcopy(connections.settings["default"])
    connections.settings[alias] = entry | changes
    try:
        yield alias
    finally:
        opened = connections[alias].connection
        connections[alias].close()
        if connections[alias].connection is not None:
            opened.close()  # Django leaves a database in memory open
        del connections[alias]
        del connections.settings[alias]
