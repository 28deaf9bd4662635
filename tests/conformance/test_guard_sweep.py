"""The part of upkeep that repairs guards: how often it looks at what, and what it reports."""

import math
from typing import Any

import pytest

from stoker.brokers.memory import MemoryBroker
from stoker.conf import Settings
from stoker.guards import sweep as guard_upkeep
from stoker.guards.sweep import GuardSweep
from stoker.models import Claimed, GuardKey, Job, Need
from stoker.signals import event

from tests.conformance.stands import OrmStand
from tests.conformance.test_guards import claim_ids, need, put

pytestmark = pytest.mark.django_db


@pytest.fixture
def stand() -> OrmStand:
    return OrmStand()


def lose_leases() -> None:
    """Delete the claimed rows, as a user may do by hand."""
    Claimed.objects.all().delete()


def test_places_without_a_lease_are_freed_page_by_page(
    stand: OrmStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_upkeep, "KEYS_AT_ONCE", 2)
    for number in range(4):
        put(stand, need(f"{number}"), count=2)
    assert len(stand.claim()) == 4
    assert claim_ids(stand) == []
    lose_leases()
    beats: list[None] = []
    told: list[tuple[str, dict[str, Any]]] = []

    def hear(name: str, facts: dict[str, Any], **_: Any) -> None:
        told.append((name, facts))

    sweep = GuardSweep(stand.settings, stand.broker, lambda: beats.append(None))
    sweep._all_at = math.inf
    event.connect(hear)
    try:
        assert (sweep.sweep(), sweep.sweep()) == (4, 0)
    finally:
        event.disconnect(hear)
    assert told == [("places_freed", {"count": 4})]
    assert len(beats) == 4, "after each full page of two keys, in two sweeps"


def test_keys_without_waiting_jobs_are_checked_once_an_hour(
    stand: OrmStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = GuardSweep(stand.settings, stand.broker, lambda: None)
    freed = []
    for hours in (0.0, 0.9, 1.1):
        now = guard_upkeep.time.monotonic() + hours * guard_upkeep.ALL_SECONDS
        put(stand, need(f"{hours}"))
        assert len(stand.claim()) == 1
        lose_leases()
        with monkeypatch.context() as patch:
            patch.setattr(guard_upkeep.time, "monotonic", lambda now=now: now)
            freed.append(sweep.sweep())
    assert freed == [1, 0, 2]


def test_needs_and_keys_of_past_jobs_are_deleted(stand: OrmStand) -> None:
    put(stand, need("smtp"))
    assert len(stand.claim()) == 1
    lose_leases()
    Job.objects.all().delete()
    GuardSweep(stand.settings, stand.broker, lambda: None).sweep()
    assert not Need.objects.exists()
    assert not GuardKey.objects.exists()


def test_broker_without_guards_is_not_asked(django_assert_num_queries: Any) -> None:
    settings = Settings(broker="memory://")
    sweep = GuardSweep(settings, MemoryBroker(settings), lambda: None)
    with django_assert_num_queries(0):
        assert sweep.sweep() == 0
