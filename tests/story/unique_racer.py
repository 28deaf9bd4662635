"""A process that competes with others for unique keys: python -m tests.story.unique_racer ORDERS

Writes "ready", waits for a line, races, and writes its counts as one line of JSON. Sometimes it
rolls back, and sometimes it works like a cluster: claims, finishes and retries jobs.
"""

from __future__ import annotations

import json
import random
import sys
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import django
from django.db import OperationalError, transaction

from stoker.brokers.contract import ClaimRequest

CLAIMED_QUEUES = 25
MOST_IN_TRANSACTION = 4
BATCH = 30
WANTED = ("jobs", "duplicates", "rolled back")
"""The events that must happen in a race."""
MOST_PATIENCE = 50
"""Maximum ratio of the race's actions to the ordered actions that make these events happen."""


class RolledBack(Exception):
    """Raised on purpose inside a transaction."""


class Racer:
    """One process of the race.

    Args:
        orders: keys: how many there are; mode: on_conflict; seed; deeds: how many to do at least.
    """

    def __init__(self, orders: dict[str, Any]) -> None:
        from stoker import Unique
        from stoker.brokers.adapters import broker_for
        from stoker.conf import settings_for
        from stoker.jobs.execute import Executor

        from tests.app.tasks import echo

        self.orders = orders
        self.chance = random.Random(orders["seed"])
        self.settings = settings_for()
        self.broker = broker_for(self.settings)
        self.executor = Executor(self.settings, worker_id="racer")
        self.task = echo.using(unique=Unique("race {value}", on_conflict=orders["mode"]))
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.done = 0

    def race(self) -> dict[str, Any]:
        deeds: dict[Callable[[], None], int] = {
            self.enqueue: 8,
            self.enqueue_in_a_transaction: 8,
            self.enqueue_many: 2,
            self.work: 6,
            self.cancel: 1,
        }
        while not self._is_over():
            (deed,) = self.chance.choices(list(deeds), list(deeds.values()))
            self.done += 1
            try:
                deed()
                self.counts[deed.__name__] += 1
            except Exception:  # noqa: BLE001 - reported to the test
                self.faults.append(traceback.format_exc())
        return {"counts": self.counts, "faults": self.faults[:3], "failed": len(self.faults)}

    def _is_over(self) -> bool:
        """Return whether all ordered deeds are done and all wanted events have happened.

        If the events never happen, the race ends after a bounded number of deeds: the test fails.
        """
        ordered = self.orders["deeds"]
        has_seen_all = all(self.counts[name] for name in WANTED)
        return self.done >= (ordered if has_seen_all else ordered * MOST_PATIENCE)

    def enqueue(self) -> None:
        """Enqueue outside a transaction, which must never be refused."""
        self._one(self._key())

    def enqueue_many(self) -> None:
        from stoker import DuplicateJob

        key = self._key()
        calls = [((str(key),), {}) for _ in range(BATCH)]
        try:
            self.task.using(queue_name=f"key-{key}").enqueue_many(calls)
        except DuplicateJob:
            self.counts["duplicates"] += 1

    def enqueue_in_a_transaction(self) -> None:
        """Enqueue keys in random order, so that deadlocks happen; retry as callers do."""
        from stoker.exceptions import BrokerUnavailable

        keys = [self._key() for _ in range(self.chance.randint(1, MOST_IN_TRANSACTION))]
        while True:
            try:
                with transaction.atomic():
                    for key in keys:
                        self._one(key)
                    if self.chance.random() < 0.3:
                        time.sleep(self.chance.random() * 0.01)
                    if self.chance.random() < 0.3:
                        raise RolledBack  # noqa: TRY301 - rolls back
                return
            except RolledBack:
                self.counts["rolled back"] += 1
                return
            except BrokerUnavailable:
                self.counts["refused"] += 1

    def work(self) -> None:
        """Work like a cluster, with a pause in between."""
        from stoker.brokers.contract import Return
        from stoker.exceptions import BrokerUnavailable
        from stoker.jobs.record import finish

        queues = [f"key-{self._key()}" for _ in range(CLAIMED_QUEUES)]
        claimed = self.broker.claim(
            ClaimRequest(20, holder=uuid.uuid4(), lease_seconds=600, queues=queues)
        )
        time.sleep(self.chance.random() * 0.01)
        again = [one for one in claimed if self.chance.random() < 0.2]
        over = [self.executor.run(one) for one in claimed if one not in again]
        returns = [Return(one.lease, attempts=one.attempt) for one in again]
        for carry_out in (
            lambda: self.broker.settle(again=returns),
            lambda: finish(self.settings, self.broker, over),
        ):
            while True:
                try:
                    carry_out()
                    break
                except (BrokerUnavailable, OperationalError):
                    self.counts["finished later"] += 1

    def cancel(self) -> None:
        result = self._one(self._key())
        if result is not None:
            result.cancel("raced")

    def _one(self, key: int) -> Any:
        from stoker import DuplicateJob

        try:
            result = self.task.using(queue_name=f"key-{key}").enqueue(str(key))
        except DuplicateJob:
            self.counts["duplicates"] += 1
            return None
        self.counts["duplicates" if result.was_duplicate else "jobs"] += 1
        return result

    def _key(self) -> int:
        """Choose a key; a few keys are chosen most often."""
        keys = self.orders["keys"]
        return int(keys * self.chance.random() ** 3)


def main(orders: str) -> None:
    django.setup()
    racer = Racer(json.loads(orders))
    racer.broker.ping()
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(racer.race()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
