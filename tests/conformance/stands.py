"""The brokers under test: how to make one, advance its clock, and reach it from elsewhere.

Those that need no server. See ``server_stands`` for the others, whose clients are slow to import.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from django.db import connections, transaction
from django.db.models import F

from stoker.brokers.contract import Broker, Capabilities, ClaimRequest, Delivery
from stoker.brokers.dispatch import Dispatch
from stoker.brokers.memory import MemoryBroker
from stoker.brokers.orm.broker import OrmBroker
from stoker.conf import Settings
from stoker.models import Claimed, Deferred
from stoker.models.job import Message
from stoker.store.written import MICROSECONDS, database_now_us, microseconds
from stoker.values.ids import new_job_id

QUEUE = "default"
LEASE_SECONDS = 600.0
"""Longer than any test takes, even on a busy machine."""


@dataclass
class Stand(ABC):
    """One broker under test, empty at first, with shortcuts for tests."""

    broker: Broker | Dispatch
    holder: uuid.UUID = field(default_factory=uuid.uuid4)

    capabilities: ClassVar[Capabilities] = Capabilities()
    url: ClassVar[str] = ""
    """The URL by which other processes reach the same jobs; empty if none can."""
    leases_are_rows: ClassVar[bool] = False
    """Whether leases are rows of the store, which keeps packages in another table."""

    orders_queues: ClassVar[bool] = True
    """Whether priority and age decide among all queues of a claim."""
    purges_deferred: ClassVar[bool] = True
    """Whether a purge removes jobs that are not due yet."""

    @property
    def place(self) -> tuple[str, str]:
        """The URL and the cluster's name, by which another process finds the same jobs."""
        return self.url, Settings().cluster

    @abstractmethod
    def now(self) -> float:
        """Return the time of the clock that decides leases and due times."""

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Make everything that the broker has stored that much older."""

    def another(self) -> Broker | Dispatch:
        """Return the broker that another thread or process of the project would have."""
        return self.broker

    def hang_up(self) -> None:
        """Close the connections of this thread."""

    def atomic(self) -> AbstractContextManager[None]:
        """Open a transaction of the store that the broker joins."""
        raise NotImplementedError

    def needs(self, capability: str) -> None:
        """Skip the test if the broker lacks the capability."""
        if not getattr(self.capabilities, capability):
            pytest.skip(f"{type(self.broker).__name__} does not offer {capability}")

    def needs_leases_of_its_own(self) -> None:
        """Skip tests of concurrent leases if the leases are the store's."""

    def needs_long_packages(self) -> None:
        """Skip tests of packages of several MiB if the server takes none of them, or if they are
        in this process anyway."""

    def clear(self) -> None:
        """Delete all jobs and close the broker."""
        self.broker.close()

    def put(self, count: int = 1, **options: Any) -> list[uuid.UUID]:
        """Enqueue that many jobs and return their ids in order."""
        messages = [message(**options) for _ in range(count)]
        self.broker.enqueue(messages)
        return [message.job_id for message in messages]

    def many(self, count: int) -> int:
        """Return that number, or fewer if the server is slow with many."""
        return count

    def claim(self, limit: int = 100, *queues: str, **options: Any) -> list[Delivery]:
        """Claim for this stand's holder."""
        return self.broker.claim(
            ClaimRequest(limit, **self._leased(options), queues=queues or (QUEUE,))
        )

    def claim_one(self) -> Delivery:
        """Claim the one job that must be there."""
        (delivery,) = self.claim(1)
        return delivery

    def rescue(self, limit: int = 100, **options: Any) -> list[Delivery]:
        """Claim the jobs whose leases have ended."""
        return self.broker.claim_expired(ClaimRequest(limit, **self._leased(options)))

    def where(self, job_id: uuid.UUID) -> str | None:
        """Return the state of a job."""
        if isinstance(self.broker, Dispatch) and job_id in self.broker.not_arrived([job_id]):
            return "ready"
        return self.broker.states([job_id]).get(job_id)

    def _leased(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"holder": self.holder, "lease_seconds": LEASE_SECONDS, **options}


def message(**options: Any) -> Message:
    """Make a message with default values for everything that is not given."""
    usual: dict[str, Any] = {
        "job_id": new_job_id(),
        "task": "tests.app.tasks.nothing",
        "queue": QUEUE,
        "priority": 0,
        "package": b"package",
        "enqueued_at": time.time(),
    }
    return Message(**{**usual, **options})


class MemoryStand(Stand):
    """Its clock is advanced by hand."""

    capabilities = MemoryBroker.capabilities

    def __init__(self) -> None:
        self._lead = 0.0
        super().__init__(MemoryBroker(Settings(broker="memory://"), clock=self.now))

    def now(self) -> float:
        return time.time() + self._lead

    def advance(self, seconds: float) -> None:
        self._lead += seconds

    def needs_long_packages(self) -> None:
        pytest.skip("packages in memory are not limited in bytes")


class OrmStand(Stand):
    """The database's clock cannot be advanced, so the stored times are moved back."""

    capabilities = OrmBroker.capabilities
    url = "orm://default"
    leases_are_rows = True

    def __init__(self) -> None:
        self.settings = Settings(broker=self.url)
        super().__init__(OrmBroker(self.settings))

    def now(self) -> float:
        return database_now_us(self.settings.database) / MICROSECONDS

    def advance(self, seconds: float) -> None:
        Claimed.objects.update(leased_until_us=F("leased_until_us") - microseconds(seconds))
        Deferred.objects.update(due_us=F("due_us") - microseconds(seconds))
        store = self.broker.store if isinstance(self.broker, Dispatch) else self.broker
        if isinstance(store, OrmBroker):  # its watermark is such a time, too
            marks = store._marks
            marks.begin_due_at(max(0, marks.due_from_us - microseconds(seconds)))

    def another(self) -> Broker | Dispatch:
        return OrmBroker(self.settings)

    def hang_up(self) -> None:
        connections.close_all()

    def clear(self) -> None:
        """Leave the rows and the connection to the fixture of the database."""

    def atomic(self) -> AbstractContextManager[None]:
        return transaction.atomic(using=self.settings.database)
