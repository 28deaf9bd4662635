"""The brokers under test that are on servers, and the list of all brokers under test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from redis import Redis

from stoker.brokers.arrivals import Arrivals
from stoker.brokers.contract import Broker, Capabilities
from stoker.brokers.dispatch import Dispatch
from stoker.brokers.disque.transport import DisqueTransport
from stoker.brokers.ironmq import IronmqTransport
from stoker.brokers.mongodb.broker import MongodbBroker
from stoker.brokers.mongodb.documents import connect as connect_to_mongodb
from stoker.brokers.orm.broker import OrmBroker
from stoker.brokers.redis.broker import RedisBroker
from stoker.brokers.redis.slots import SlottedRedisBroker
from stoker.brokers.sqs.transport import SqsTransport
from stoker.brokers.transport import Parcel
from stoker.conf import Settings
from stoker.models.job import Message
from stoker.store.written import MICROSECONDS, microseconds

from tests.conformance.memory_transport import MemoryTransport
from tests.conformance.stands import MemoryStand, OrmStand, Stand
from tests.servers.sqs import CREDENTIALS
from tests.servers.sqs import sqs_url as private_sqs_url

HTTP = httpx.Client(trust_env=False)
"""Shared by all tests, because each new client reads the certificates of the system again."""


class ArrivalsStand(OrmStand):
    """Jobs that a server without leases delivers into the store."""

    capabilities = replace(Capabilities(), look_up=False, priority=False)
    url = ""

    def __init__(self) -> None:
        super().__init__()
        self._lead = 0.0
        self.transport = self.make_transport()
        self._receive = self.transport.receive
        self.transport.receive = self._receive_earlier
        self.broker = self.another()

    def make_transport(self) -> Any:
        return MemoryTransport(self.settings)

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self.transport.advance(seconds)
        self._lead += seconds

    def needs_leases_of_its_own(self) -> None:
        pytest.skip("the store keeps its leases: tested with the ORM broker")

    needs_long_packages = needs_leases_of_its_own

    def _receive_earlier(self, *args: Any, **options: Any) -> list[Parcel]:
        """Receive messages with their run_after moved back by ``advance``."""
        return [
            parcel._replace(message=self._earlier(parcel.message))
            for parcel in self._receive(*args, **options)
        ]

    def _earlier(self, one: Message) -> Message:
        return replace(one, run_after=one.run_after - self._lead) if one.run_after else one

    def another(self) -> Dispatch:
        store = OrmBroker(self.settings)
        return Dispatch(self.settings, store, Arrivals(self.transport, store))


class DisqueStand(ArrivalsStand):
    """Its own jobs on the stand-in server can be made older: other tests use the server, too."""

    url = "disque://"

    def make_transport(self) -> Any:
        self.settings = Settings(broker=disque_url(), cluster=f"test-{uuid.uuid4().hex}")
        return DisqueTransport(self.settings)

    @property
    def place(self) -> tuple[str, str]:
        return self.settings.broker, self.settings.cluster

    def advance(self, seconds: float) -> None:
        OrmStand.advance(self, seconds)
        parts = urlsplit(self.settings.broker)
        with Redis(parts.hostname or "", parts.port or 7711, protocol=2) as client:
            client.execute_command("STANDIN", "ADVANCE", seconds, self.transport._prefix)
        self._lead += seconds

    def clear(self) -> None:
        for queue in self.transport.counts():
            self.transport.purge(queue)
        self.transport.close()


class IronmqStand(ArrivalsStand):
    """Its own messages on the stand-in server can be made older: other tests use it, too."""

    url = "ironmq://"

    def make_transport(self) -> Any:
        self.settings = Settings(broker=ironmq_url(), cluster=f"test-{uuid.uuid4().hex}")
        return IronmqTransport(self.settings)

    @property
    def place(self) -> tuple[str, str]:
        return self.settings.broker, self.settings.cluster

    def advance(self, seconds: float) -> None:
        OrmStand.advance(self, seconds)
        host = urlsplit(self.settings.broker).netloc.rpartition("@")[2]
        wish = {"seconds": seconds, "prefix": self.transport._prefix}
        HTTP.post(f"http://{host}/standin/advance", json=wish).raise_for_status()
        self._lead += seconds

    def clear(self) -> None:
        for queue in self.transport.counts():
            self.transport.purge(queue)
        self.transport.close()


class SqsStand(ArrivalsStand):
    """Moto's messages can be made older."""

    url = "sqs://"
    purges_deferred = False

    def make_transport(self) -> Any:
        self._prefix = f"test-{uuid.uuid4().hex[:12]}"
        broker = sqs_url().replace("/test?", f"/{self._prefix}?")
        self.settings = Settings(broker=broker, cluster=f"test-{uuid.uuid4().hex}")
        return SqsTransport(self.settings)

    @property
    def place(self) -> tuple[str, str]:
        return self.settings.broker, self.settings.cluster

    def advance(self, seconds: float) -> None:
        OrmStand.advance(self, seconds)
        endpoint = self.transport.address.endpoint
        wish = {"prefix": f"{self._prefix}-", "seconds": seconds}
        HTTP.get(f"{endpoint}/stoker-test/", params=wish).raise_for_status()
        self._lead += seconds

    def many(self, count: int) -> int:
        """Return fewer: Moto reads all its messages with each request."""
        return count // 20

    def clear(self) -> None:
        self.transport.close()


class RedisStand(Stand):
    """The server's clock cannot be advanced, so the stored times are moved back."""

    capabilities = RedisBroker.capabilities

    url = "redis://"

    def __init__(self) -> None:
        self.settings = Settings(broker=redis_url(), cluster=f"test-{uuid.uuid4().hex}")
        super().__init__(RedisBroker(self.settings))
        self._client = self.broker.client  # type: ignore[attr-defined] # of this broker

    @property
    def place(self) -> tuple[str, str]:
        return self.settings.broker, self.settings.cluster

    def now(self) -> float:
        seconds, micro = self._client.time()
        return float(seconds + micro / MICROSECONDS)

    def advance(self, seconds: float) -> None:
        self._make_older(self.broker.prefix, seconds)  # type: ignore[union-attr] # of this broker

    def _make_older(self, prefix: str, seconds: float) -> None:
        for place in ("leases", "deferred"):
            for job_id in self._client.zrange(f"{prefix}:{place}", 0, -1):
                self._client.zincrby(f"{prefix}:{place}", -microseconds(seconds), job_id)

    def another(self) -> Broker | Dispatch:
        return RedisBroker(self.settings)

    def hang_up(self) -> None:
        self._client.connection_pool.disconnect(inuse_connections=False)

    def clear(self) -> None:
        self._delete(self.broker.prefix)  # type: ignore[union-attr] # of this broker
        self.broker.close()

    def _delete(self, prefix: str) -> None:
        for key in self._client.scan_iter(f"{prefix}:*"):
            self._client.delete(key)


class SlottedRedisStand(RedisStand):
    """The slots of a Redis cluster, on one server: Redis itself sees only the names of keys."""

    url = ""
    orders_queues = False

    def __init__(self) -> None:
        super().__init__()
        self.broker = self.another()
        self._slots = self.broker.slots  # type: ignore[union-attr] # of this broker

    def advance(self, seconds: float) -> None:
        for slot in self._slots:
            self._make_older(slot.prefix, seconds)

    def another(self) -> Broker | Dispatch:
        return SlottedRedisBroker(self.settings, slots=3)

    def clear(self) -> None:
        for slot in self._slots:
            self._delete(slot.prefix)
        self.broker.close()


class MongodbStand(Stand):
    """The server's clock cannot be advanced, so the stored times are moved back."""

    capabilities = MongodbBroker.capabilities

    url = "mongodb://"

    def __init__(self) -> None:
        self.settings = Settings(broker=mongodb_url(), cluster=f"test-{uuid.uuid4().hex}")
        super().__init__(MongodbBroker(self.settings))
        self._client, self._jobs = connect_to_mongodb(self.settings)
        self._others: list[Broker] = []

    @property
    def place(self) -> tuple[str, str]:
        return self.settings.broker, self.settings.cluster

    def now(self) -> float:
        moment = self._jobs.database.command("hello")["localTime"]
        return float(moment.replace(tzinfo=UTC).timestamp())

    def advance(self, seconds: float) -> None:
        for field_name, state in (("until", "running"), ("due", "deferred")):
            earlier = {"$add": [f"${field_name}", -round(seconds * 1000)]}
            self._jobs.update_many({"state": state}, [{"$set": {field_name: earlier}}])

    def another(self) -> Broker | Dispatch:
        broker = MongodbBroker(self.settings)
        self._others.append(broker)
        return broker

    def clear(self) -> None:
        self._jobs.drop()
        self._client.close()
        for broker in (self.broker, *self._others):
            broker.close()


def disque_url() -> str:
    return os.environ.get("STOKER_TEST_DISQUE_URL", "disque://127.0.0.1:7711")


def ironmq_url() -> str:
    return os.environ.get("STOKER_TEST_IRONMQ_URL", "ironmq://project:token@127.0.0.1:8080")


def sqs_url() -> str:
    os.environ.update(CREDENTIALS)
    return os.environ.get("STOKER_TEST_SQS_URL", private_sqs_url(5000))


def redis_url() -> str:
    return os.environ.get("STOKER_TEST_REDIS_URL", "redis://127.0.0.1:6379/0")


def mongodb_url() -> str:
    return os.environ.get("STOKER_TEST_MONGODB_URL", "mongodb://127.0.0.1:27017/stoker_test")


COMMITTING = pytest.mark.django_db(transaction=True)
ONCE = pytest.mark.postgres
WITHOUT_DATABASE = pytest.mark.sqlite  # one database is enough

STANDS: dict[str, tuple[Callable[[], Stand], list[pytest.MarkDecorator]]] = {
    "memory": (MemoryStand, [WITHOUT_DATABASE]),
    "orm": (OrmStand, [COMMITTING]),
    "arrivals": (ArrivalsStand, [COMMITTING, pytest.mark.sqlite]),
    "disque": (DisqueStand, [COMMITTING, ONCE, pytest.mark.disque]),
    "ironmq": (IronmqStand, [COMMITTING, ONCE, pytest.mark.ironmq]),
    "sqs": (SqsStand, [COMMITTING, ONCE, pytest.mark.sqs]),
    "redis": (RedisStand, [WITHOUT_DATABASE, pytest.mark.redis]),
    "redis-slots": (SlottedRedisStand, [WITHOUT_DATABASE, pytest.mark.redis]),
    "mongodb": (MongodbStand, [WITHOUT_DATABASE, pytest.mark.mongodb]),
}
"""Name -> the stand and the marks of its tests, for example of a service that may be missing."""


def stands(fits: Callable[[Any], bool] = lambda _: True) -> list[Any]:
    """Return the parameters of a fixture that makes these stands."""
    return [
        pytest.param(kind, id=name, marks=marks)
        for name, (kind, marks) in STANDS.items()
        if fits(kind)
    ]
