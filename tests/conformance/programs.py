"""Programs for tests.locks.processes that use a broker in another process."""

from __future__ import annotations

import time
import uuid
from multiprocessing.connection import Connection

import django

from stoker.brokers.contract import ClaimRequest

LOOKS_IN_VAIN, PAUSE_SECONDS = 10, 0.025
"""Number of empty claims after which little is left."""


def claim(place: tuple[str, str], line: Connection) -> None:
    """When asked, claim until little is left. Answer with the ids of the claimed jobs."""
    django.setup()
    from stoker.conf import Settings

    from tests.conformance.bare import bare_broker
    from tests.conformance.stands import LEASE_SECONDS
    from tests.conformance.threads import patiently

    url, cluster = place
    broker, holder = bare_broker(Settings(broker=url, cluster=cluster)), uuid.uuid4()
    broker.ping()
    line.send("ready")
    line.recv()
    claimed: list[uuid.UUID] = []
    in_vain = 0
    while in_vain < LOOKS_IN_VAIN:
        batch = patiently(
            lambda: broker.claim(ClaimRequest(5, holder=holder, lease_seconds=LEASE_SECONDS))
        )
        claimed += [delivery.job_id for delivery in batch]
        in_vain = 0 if batch else in_vain + 1
        if not batch:
            time.sleep(PAUSE_SECONDS)
    broker.close()  # other holders get the rest
    line.send(claimed)


def enqueue(place: tuple[str, str], line: Connection) -> None:
    """When asked, enqueue one job and wake the waiting pushers."""
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
