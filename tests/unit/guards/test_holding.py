"""One holding of a lock, with a clock set by hand."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from stoker.locks.holding import Holding

from tests.unit.guards.stores import Clock, MemoryLocks, terms

pytestmark = pytest.mark.unit

Told = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def holding(store: MemoryLocks, clock: Clock) -> Holding:
    owner = uuid4()
    store.owners["import"] = owner
    return Holding(terms(store), owner, 7, clock.now(), is_renewed=True)


def test_holding_is_alive_for_a_lease_from_its_request(holding: Holding, clock: Clock) -> None:
    clock.turn(29.9)
    assert holding.is_alive
    clock.turn(0.1)
    assert not holding.is_alive
    assert holding.why_over == "its lease ended before it was renewed"


def test_holding_is_uncertain_in_the_last_third_of_its_lease(
    holding: Holding, clock: Clock
) -> None:
    clock.turn(19.9)
    assert holding.is_certain
    clock.turn(0.1)
    assert not holding.is_certain
    assert holding.is_alive


def test_renewal_starts_a_new_lease(holding: Holding, clock: Clock) -> None:
    assert holding.renew_at == clock.now() + 10
    clock.turn(10)
    holding.renew()
    assert holding.renew_at == clock.now() + 10
    clock.turn(29.9)
    assert holding.is_alive


def test_renewed_lease_counts_from_before_the_call(
    holding: Holding, clock: Clock, store: MemoryLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object) -> bool:
        clock.turn(8)
        return True

    monkeypatch.setattr(store, "renew", slow)
    holding.renew()
    assert holding.seconds_left == pytest.approx(22)


def test_lock_taken_by_another_is_lost(holding: Holding, store: MemoryLocks, told: Told) -> None:
    store.owners["import"] = uuid4()
    holding.renew()
    assert not holding.is_alive
    assert "has another holder" in holding.why_over
    assert [name for name, _ in told] == ["lock_lost"]


def test_late_renewal_does_not_revive_a_lost_lock(
    holding: Holding, clock: Clock, store: MemoryLocks, told: Told
) -> None:
    """The process was paused, and its lease ended meanwhile."""
    clock.turn(30)
    holding.renew()
    assert not holding.is_alive
    assert store.calls == []
    assert [name for name, _ in told] == ["lock_lost"]


def test_failed_renewal_is_retried_and_reported_once(
    holding: Holding, clock: Clock, store: MemoryLocks, told: Told
) -> None:
    store.faults = [OSError("no route"), OSError("no route")]
    clock.turn(10)
    holding.renew()
    assert holding.is_alive
    assert holding.renew_at == clock.now() + 1
    clock.turn(1)
    holding.renew()
    clock.turn(1)
    holding.renew()
    assert holding.seconds_left == 30
    assert [name for name, _ in told] == ["lock_not_renewed"]
    assert told[0][1]["seconds"] == 20


def test_lock_is_lost_if_every_renewal_fails(
    holding: Holding, clock: Clock, store: MemoryLocks, told: Told
) -> None:
    store.faults = [OSError("no route")] * 100
    while holding.is_alive:
        holding.renew()
        clock.turn(1)
    holding.renew()
    assert [name for name, _ in told] == ["lock_not_renewed", "lock_lost"]


def test_missing_store_is_a_failed_renewal(store: MemoryLocks, clock: Clock, told: Told) -> None:
    def nowhere() -> MemoryLocks:
        raise LookupError

    holding = Holding(
        replace(terms(store), find_store=nowhere), uuid4(), 1, clock.now(), is_renewed=True
    )
    holding.renew()
    assert holding.is_alive
    assert [name for name, _ in told] == ["lock_not_renewed"]


def test_end_returns_whether_the_lock_was_held(holding: Holding, clock: Clock) -> None:
    assert holding.end()
    assert not holding.end()
    assert holding.why_over == "it was released"


def test_end_after_the_lease_reports_a_lost_lock(
    holding: Holding, clock: Clock, told: Told
) -> None:
    clock.turn(31)
    assert not holding.end()
    assert [name for name, _ in told] == ["lock_lost"]


def test_lock_released_during_its_renewal_is_not_lost(
    holding: Holding, store: MemoryLocks, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def released_meanwhile(*_: object) -> bool:
        holding.end()
        return False

    monkeypatch.setattr(store, "renew", released_meanwhile)
    holding.renew()
    assert told == []


def test_holding_without_renewal_does_not_end(store: MemoryLocks, clock: Clock) -> None:
    holding = Holding(terms(store), uuid4(), 1, clock.now(), is_renewed=False)
    clock.turn(10**6)
    assert holding.is_alive
    assert holding.is_certain


def test_holding_is_dead_in_another_process(
    holding: Holding, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert not holding.is_alive
    assert "another process took it" in holding.why_over
    assert not holding.end()
    assert told == []
