"""`make soak`: run clusters and faults until something breaks, or for ever.

Options are environment variables, like those of the other targets of the Makefile:

    BROKER    postgres, mariadb, sqlite, redis, mongodb, sqs, disque or ironmq (default postgres)
    FAULTS    the number of faults; 0 = until Ctrl-C (the default)
    SEED      for the faults and the users' actions; the same seed gives the same plan
    CLUSTERS  the number of clusters (default 2)
    SOURCE    a folder with another copy of the package `stoker` (for planted mistakes)
    REPORT    a file to which the report is added as one line of JSON
    KEEP      a folder to which the ledger and the logs of a round with findings are copied

It exits with 1 if a promise was broken.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

from tests.crash.run import Plan, Run
from tests.crash.stage import BROKERS


def main() -> int:
    asked = os.environ
    broker = asked.get("BROKER") or "postgres"
    if broker not in BROKERS:
        sys.exit(f"BROKER={broker}: choose one of {', '.join(BROKERS)}.")
    plan = Plan(
        broker=broker,
        faults=int(asked.get("FAULTS") or 0),
        seed=int(asked.get("SEED") or random.SystemRandom().randrange(10**6)),
        clusters=int(asked.get("CLUSTERS") or 2),
        source=Path(asked["SOURCE"]).resolve() if asked.get("SOURCE") else None,
        report=Path(asked["REPORT"]) if asked.get("REPORT") else None,
        keep=Path(asked["KEEP"]) if asked.get("KEEP") else None,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return 1 if Run(plan).go() else 0


if __name__ == "__main__":
    sys.exit(main())
