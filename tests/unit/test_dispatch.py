"""The order in which a claim asks two places where jobs may wait."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.brokers import dispatch as dispatch_module
from stoker.brokers.contract import Capabilities, ClaimRequest, Delivery
from stoker.brokers.dispatch import LONGEST_LOOK_SECONDS, Dispatch
from stoker.brokers.memory import MemoryBroker
from stoker.conf import Settings

from tests.conformance.stands import message

STEP_SECONDS = 0.002


class EmptyStore:
    """Notes when it is asked for jobs."""

    capabilities = Capabilities(transactional=True, guards=True, atomic=True)
    sees_pauses = False

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.asked_at: list[float] = []

    def claim(self, _request: ClaimRequest) -> list[Delivery]:
        self.asked_at.append(self._clock.now)
        return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(dispatch_module, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_empty_store_is_polled_less_often_while_the_broker_has_jobs(clock: Any) -> None:
    settings = Settings(broker="memory://")
    store: Any = EmptyStore(clock)
    dispatch = Dispatch(settings, store, MemoryBroker(settings))

    def claim_for(seconds: float) -> int:
        """Claim one job at each step. Return how often the store was asked."""
        before, end = len(store.asked_at), clock.now + seconds
        while clock.now < end:
            dispatch.enqueue([message()])
            assert len(dispatch.claim(ClaimRequest(1, uuid.uuid4(), 60.0))) == 1
            clock.now += STEP_SECONDS
        return len(store.asked_at) - before

    claim_for(1.0)
    assert claim_for(10.0) <= 10.0 / LONGEST_LOOK_SECONDS
    dispatch.look_at_store()
    assert claim_for(2 * STEP_SECONDS) == 1
    assert claim_for(LONGEST_LOOK_SECONDS) >= 2
