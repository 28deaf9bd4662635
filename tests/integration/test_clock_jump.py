"""A clock that decides about leases is set ahead by more than a lease while clusters hold some."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from stoker import Lock
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.brokers.dispatch import Dispatch
from stoker.brokers.redis.broker import RedisBroker
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler import rescue as module
from stoker.cluster.scheduler.scheduler import Upkeep
from stoker.conf import settings_for
from stoker.models import Claimed

from tests.app.tasks import add, nothing
from tests.integration.fronted import fronted_broker
from tests.integration.work import claim

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def upkeep() -> Upkeep:
    settings = settings_for()
    return Upkeep(Plan(), settings, broker_for(settings), lambda: None)


@contextmanager
def clock_set_ahead() -> Iterator[None]:
    """Set the server's clock an hour ahead, as this session sees it."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA ahead")
        cursor.execute(
            "CREATE FUNCTION ahead.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS"
            " $$SELECT pg_catalog.clock_timestamp() + interval '1 hour'$$"
        )
        cursor.execute("SET search_path = ahead, public, pg_catalog")
        try:
            yield
        finally:
            cursor.execute("RESET search_path")
            cursor.execute("DROP SCHEMA ahead CASCADE")


def test_lease_of_living_cluster_is_not_taken_over(upkeep: Upkeep) -> None:
    nothing.enqueue()
    (delivery,) = claim()
    assert upkeep.rescuing.rescue() == 0
    with clock_set_ahead():
        assert upkeep.rescuing.rescue() == 0
        assert broker_for(settings_for()).extend([delivery.lease], lease_seconds=60) == set()
        assert upkeep.rescuing.rescue() == 0


def test_lease_of_dead_cluster_is_taken_over_a_lease_later(
    upkeep: Upkeep, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing.enqueue()
    claim()
    assert upkeep.rescuing.rescue() == 0
    with clock_set_ahead():
        assert upkeep.rescuing.rescue() == 0
        later = module.time.monotonic() + settings_for().lease_seconds
        monkeypatch.setattr(module.time, "monotonic", lambda: later)
        assert upkeep.rescuing.rescue() == 1
    assert not Claimed.objects.exists()


@contextmanager
def redis_set_ahead(broker: Dispatch) -> Iterator[None]:
    """Set the clock of Redis an hour ahead: move the ends of leases back instead."""
    redis: Any = broker.broker
    leases, run = f"{redis.prefix}:leases", redis._run

    def later(name: str, *arguments: Any) -> Any:
        answer = run(name, *arguments)
        return answer + 3_600_000_000 if name == "now" else answer

    for job_id in redis.client.zrange(leases, 0, -1):
        redis.client.zincrby(leases, -3_600_000_000, job_id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis, "_run", later)
        yield


@pytest.mark.redis
def test_lease_in_redis_is_taken_over_a_lease_after_its_clock_was_set_ahead(
    events: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile, leases in the database are taken over."""
    with fronted_broker() as broker:
        assert isinstance(broker.broker, RedisBroker)
        upkeep = Upkeep(Plan(), settings_for(), broker, lambda: None)
        assert upkeep.rescuing.rescue() == 0
        add.enqueue(1, 2)
        add.using(lock=Lock("one")).enqueue(1, 2)
        holder, found = uuid4(), 0
        while found < 2:
            found += len(broker.claim(ClaimRequest(2, holder=holder, lease_seconds=600)))
        with redis_set_ahead(broker):
            assert upkeep.rescuing.rescue() == 0
            Claimed.objects.update(leased_until_us=0)
            assert upkeep.rescuing.rescue() == 1
            assert len(broker.broker.held_by(holder)) == 1
            told = [facts["what"] for name, facts in events if name == "clock_set_ahead"]
            assert told == ["broker"]
            one_lease_later = module.time.monotonic() + settings_for().lease_seconds
            monkeypatch.setattr(module.time, "monotonic", lambda: one_lease_later)
            assert upkeep.rescuing.rescue() == 1
