"""The tasks of the jobs in `store.json`. Packages name them, so their names must not change."""

import os
import time
from typing import Any

from stoker import DeadLetters, InSequence, Limit, Lock, Rate, Snooze, Unique, job, task

from tests.app.models import Ledger

FILLING = "STOKER_TEST_FILLING"
"""Set while an older version fills a store: then jobs stay unfinished, fail or snooze."""


def run(name: str) -> str:
    """Record that this job has run. While a store is filled, do what the name says."""
    if FILLING in os.environ and name.startswith("fails"):
        raise ConnectionError("the bank does not answer")
    if FILLING in os.environ and name.startswith("snoozed"):
        raise Snooze(3600)
    Ledger.objects.create(job_id=job.id, attempt=job.attempt, started_ns=0, note=name)
    while FILLING in os.environ and name.startswith("runs"):
        time.sleep(1)
    return name


@task
def work(name: str) -> str:
    return run(name)


@task(max_attempts=1)
def work_once(name: str) -> str:
    return run(name)


@task(backoff=3600)
def work_after_an_hour(name: str) -> str:
    return run(name)


@task(max_attempts=1, dead_letters=DeadLetters(requeue_after="1h"))
def work_again(name: str) -> str:
    return run(name)


@task(lock=Lock("door"))
def work_locked(name: str) -> str:
    return run(name)


@task(limit=Limit(2, "gate"))
def work_limited(name: str) -> str:
    return run(name)


@task(rate=Rate("1/h", "bell"))
def work_rated(name: str) -> str:
    return run(name)


@task(sequence="line")
def work_in_order(name: str) -> str:
    return run(name)


@task(max_attempts=1, sequence=InSequence("halted line", after_failure="halt"))
def work_until_halted(name: str) -> str:
    return run(name)


@task(unique=Unique("ticket"))
def work_unique(name: str) -> str:
    return run(name)


@task
def work_from_checkpoint(name: str) -> Any:
    found = job.last_checkpoint
    if found is None:
        job.checkpoint({"rows": 500})
    run(name)
    return found


@task
def follow(result: Any, name: str) -> str:
    return run(name)
