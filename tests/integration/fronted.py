"""A store in front of a Redis, for tests that claim and record jobs themselves."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from django.test import override_settings
from redis import Redis

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery
from stoker.brokers.dispatch import Dispatch
from stoker.conf import settings_for

from tests.conformance.server_stands import redis_url

BACKEND = "stoker.backend.StokerBackend"


@contextmanager
def fronted_broker(**options: Any) -> Iterator[Dispatch]:
    """Let the project use Redis, with a prefix of its own, and empty it afterwards."""
    options |= {"BROKER": redis_url(), "CLUSTER": f"test-{uuid.uuid4().hex}"}
    default = {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}
    with override_settings(TASKS={"default": default}):
        made = broker_for(settings_for())
        assert isinstance(made, Dispatch)
        yield made
        empty_and_close(made)


def empty_and_close(broker: Dispatch) -> None:
    """Delete all keys of this broker in Redis, and close its connections."""
    with closing(Redis.from_url(redis_url())) as client:
        _empty(client, broker)
    broker.close()


@contextmanager
def restored(broker: Dispatch) -> Iterator[None]:
    """Bring Redis back to its present state at the end, as after a crash without a disk."""
    with closing(Redis.from_url(redis_url())) as client:
        before = {key: client.dump(key) for key in _keys(client, broker)}
        yield
        _empty(client, broker)
        for key, value in before.items():
            client.restore(key, 0, value)


def _keys(client: Any, broker: Dispatch) -> list[bytes]:
    return list(client.scan_iter(f"{broker.broker.prefix}:*"))  # type: ignore[attr-defined] # of Redis


def _empty(client: Any, broker: Dispatch) -> None:
    for key in _keys(client, broker):
        client.delete(key)


def outside(broker: Dispatch) -> int:
    """Return the number of jobs that wait in Redis."""
    sizes = broker.broker.sizes().values()
    return sum(size["ready"] + size["deferred"] for size in sizes)


def holder_of(broker: Dispatch, job_id: uuid.UUID) -> uuid.UUID:
    """Return the cluster to which the job is leased."""
    (known,) = broker.broker._run("look", [job_id.hex])  # type: ignore[attr-defined] # of Redis
    return uuid.UUID(known[5].decode())


def rescue(broker: Dispatch, job_id: uuid.UUID) -> list[Delivery]:
    """End the lease of the job, and claim it again."""
    broker.expire_holder(holder_of(broker, job_id))
    return broker.claim_expired(ClaimRequest(10, holder=uuid.uuid4(), lease_seconds=60))
