"""A process that claims until nothing is left: python -m tests.conformance.claimer URL

Says "ready", waits for a line, claims, and writes the ids of what it got as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
import uuid

import django

QUIET_SECONDS = 0.5


def main(url: str) -> None:
    """Claim for a holder of its own."""
    django.setup()
    from stoker.brokers import broker_for
    from stoker.conf import Settings

    from tests.conformance.threads import patiently

    broker, holder = broker_for(Settings(broker=url)), uuid.uuid4()
    broker.ping()
    print("ready", flush=True)
    sys.stdin.readline()
    claimed: list[str] = []
    last = time.monotonic()
    while time.monotonic() - last < QUIET_SECONDS:
        batch = patiently(lambda: broker.claim((), 5, holder=holder, lease_seconds=60))
        if batch:
            claimed += [str(delivery.job_id) for delivery in batch]
            last = time.monotonic()
    print(json.dumps(claimed), flush=True)
    broker.close()


if __name__ == "__main__":
    main(sys.argv[1])
