"""Processes that use a broker beside the test's own: programs of tests.guards.processes."""

from __future__ import annotations

import time
import uuid
from multiprocessing.connection import Connection

import django

QUIET_SECONDS = 0.5


def claim(place: tuple[str, str], line: Connection) -> None:
    """When told to, claim until nothing is left. Answers with the ids of what it got."""
    django.setup()
    from stoker.conf import Settings

    from tests.conformance.bare import bare_broker
    from tests.conformance.threads import patiently

    url, cluster = place
    broker, holder = bare_broker(Settings(broker=url, cluster=cluster)), uuid.uuid4()
    broker.ping()
    line.send("ready")
    line.recv()
    claimed: list[uuid.UUID] = []
    last = time.monotonic()
    while time.monotonic() - last < QUIET_SECONDS:
        batch = patiently(lambda: broker.claim((), 5, holder=holder, lease_seconds=60))
        if batch:
            claimed += [delivery.job_id for delivery in batch]
            last = time.monotonic()
    line.send(claimed)
    broker.close()


def enqueue(place: tuple[str, str], line: Connection) -> None:
    """When told to, enqueue one job and wake who waits."""
    django.setup()
    from stoker.conf import Settings

    from tests.conformance.bare import bare_broker
    from tests.conformance.stands import message

    url, cluster = place
    broker = bare_broker(Settings(broker=url, cluster=cluster))
    line.send("ready")
    line.recv()
    broker.enqueue([message()])
    broker.wake_up(["default"])
    line.send("enqueued")
    broker.close()
