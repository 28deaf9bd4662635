"""What blocked jobs cost the others: `python -m benchmarks.blocked [DATABASE ...]`.

Claims and acks of unrelated jobs, a hundred at a time, in turn: while nothing is blocked, while
very many wait for one key, and while a few wait for each of very many keys. Then jobs that have a
lock themselves, next to those without.
"""

import json
import os
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import django

from stoker.brokers.contract import ClaimRequest

from benchmarks.databases import database

ROUNDS = 5
JOBS = 3_000
BATCH = 100
WAITING = 100_000
KEYS = 10_000


def main(names: list[str]) -> None:
    """Measure in a separate process for each database, because Django is set up once per
    process."""
    for name in names:
        with database(name) as one:
            if (pid := os.fork()) == 0:
                os.environ["STOKER_BENCH_DATABASE"] = json.dumps(one.entry)
                os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
                django.setup()
                _measure(name)
                sys.stdout.flush()
                os._exit(0)
            os.waitpid(pid, 0)


def _measure(name: str) -> None:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    found: dict[str, list[float]] = {}
    sceneries: dict[str, Callable[[], None]] = {
        "nothing blocked": lambda: None,
        f"{WAITING:,} blocked on one key": lambda: _block(1, WAITING),
        f"{KEYS:,} keys with ten each": lambda: _block(KEYS, 10),
        "a lock each, of 50 keys": lambda: None,
        "a lock each, of its own": lambda: None,
    }
    kinds = {"a lock each, of 50 keys": 50, "a lock each, of its own": JOBS}
    for _ in range(ROUNDS):
        for scenery, arrange in sceneries.items():
            _empty()
            arrange()
            _vacuum()
            found.setdefault(scenery, []).append(_work(kinds.get(scenery, 0)))
    base = statistics.median(found["nothing blocked"])
    print(f"{name}: jobs/s claimed and acked, {BATCH} at a time; median (spread), ratio")
    for scenery, speeds in found.items():
        middle = statistics.median(speeds)
        spread = f"{min(speeds):,.0f}-{max(speeds):,.0f}"
        print(f"  {scenery:32} {middle:8,.0f} ({spread})  {middle / base:.2f}")


def _work(keys: int) -> float:
    """Enqueue jobs without a guard, or with a lock of that many keys, and time their claims and
    acks."""
    from stoker.brokers.adapters import broker_for
    from stoker.conf import settings_for

    broker, holder = broker_for(settings_for()), uuid.uuid4()
    broker.enqueue([_message(number % keys if keys else None) for number in range(JOBS)])
    done = 0
    began = time.perf_counter()
    while done < JOBS:
        claimed = broker.claim(
            ClaimRequest(BATCH, holder=holder, lease_seconds=60, queues=["default"])
        )
        broker.settle([delivery.lease for delivery in claimed])
        done += len(claimed)
    return JOBS / (time.perf_counter() - began)


def _message(key: int | None) -> Any:
    from stoker.models.job import Message
    from stoker.models.need import NewNeed
    from stoker.values.ids import new_job_id

    needs = () if key is None else (NewNeed(_key(key), "lock", f"lock {key}"),)
    return Message(
        new_job_id(), "benchmarks.tasks.nothing", "default", 0, b"p" * 200, None, time.time(), needs
    )


def _block(keys: int, each: int) -> None:
    """Create the keys, each with a running holder and ``each`` blocked jobs."""
    from stoker.brokers.adapters import broker_for
    from stoker.conf import settings_for
    from stoker.models import Blocked, GuardKey, Need, Ready

    broker = broker_for(settings_for())
    for first in range(0, keys, 500):
        numbers = range(first, min(first + 500, keys))
        broker.enqueue([_message(number) for number in numbers])
        while broker.claim(
            ClaimRequest(500, holder=uuid.uuid4(), lease_seconds=3600, queues=["default"])
        ):
            pass
    for number in range(0, keys * each, 5_000):
        part = range(number, min(number + 5_000, keys * each))
        messages = [_message(one % keys) for one in part]
        broker.enqueue(messages)
        Blocked.objects.bulk_create(
            Blocked(job_id=one.job_id, key_id=one.needs[0].key_id, queue="default", guards=1)
            for one in messages
        )
        Ready.objects.all().delete()
    GuardKey.objects.update(has_line=True)
    assert Need.objects.count() == keys * (each + 1)


def _vacuum() -> None:
    """Vacuum as upkeep does every two seconds, because claims scan the dead rows."""
    from django.db import connection

    from stoker.cluster.scheduler.scheduler import HOT_TABLES

    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            for model in HOT_TABLES:
                cursor.execute(f"VACUUM (INDEX_CLEANUP ON) {model._meta.db_table}")


def _key(number: int) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_OID, str(number))


def _empty() -> None:
    from django.db import connection

    from stoker.models import Attempt, Blocked, Claimed, Deferred, GuardKey, Job, Need, Ready

    models = (Attempt, Blocked, Claimed, Deferred, GuardKey, Need, Ready, Job)
    verb = "TRUNCATE" if connection.vendor == "postgresql" else "DELETE FROM"
    with connection.cursor() as cursor:
        for model in models:
            cursor.execute(f"{verb} {connection.ops.quote_name(model._meta.db_table)}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["postgres", "sqlite"])
