"""The database's clock is set ahead by more than a lease while clusters hold leases."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from stoker.brokers.adapters import broker_for
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler import upkeep as module
from stoker.cluster.scheduler.upkeep import Upkeep
from stoker.conf import settings_for
from stoker.models import Claimed

from tests.app.tasks import nothing
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
    assert upkeep.rescue() == 0
    with clock_set_ahead():
        assert upkeep.rescue() == 0
        assert broker_for(settings_for()).extend([delivery.lease], lease_seconds=60) == set()
        assert upkeep.rescue() == 0


def test_lease_of_dead_cluster_is_taken_over_a_lease_later(
    upkeep: Upkeep, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing.enqueue()
    claim()
    assert upkeep.rescue() == 0
    with clock_set_ahead():
        assert upkeep.rescue() == 0
        later = module.time.monotonic() + settings_for().lease_seconds
        monkeypatch.setattr(module.time, "monotonic", lambda: later)
        assert upkeep.rescue() == 1
    assert not Claimed.objects.exists()
