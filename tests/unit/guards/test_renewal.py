"""The renewal thread: which locks are due, and when the next is."""

from __future__ import annotations

import gc
import threading
from uuid import uuid4

import pytest

from stoker.locks import holding as renewal_module
from stoker.locks.holding import Holding, Renewal
from stoker.locks.lock import NamedLock

from tests.unit.guards.stores import Clock, MemoryLocks, terms

pytestmark = pytest.mark.unit


class ByHand(Renewal):
    """A renewal without its thread."""

    def _run(self) -> None:
        return


def held(store: MemoryLocks, clock: Clock, lease_seconds: float = 30) -> Holding:
    owner = uuid4()
    store.owners["import"] = owner
    return Holding(terms(store, lease_seconds), owner, 1, clock.now(), is_renewed=True)


def test_renewal_sleeps_until_the_first_lock_is_due(store: MemoryLocks, clock: Clock) -> None:
    renewal = ByHand()
    assert renewal.seconds_to_next() is None
    slow, quick = held(store, clock), held(store, clock, 6)
    renewal.watch(slow)
    assert renewal.seconds_to_next() == 10
    renewal.watch(quick)
    assert renewal.seconds_to_next() == 2
    clock.turn(5)
    assert renewal.seconds_to_next() == 0
    renewal.forget(quick)
    assert renewal.seconds_to_next() == 5


def test_due_lock_is_renewed_and_the_connection_closed(store: MemoryLocks, clock: Clock) -> None:
    renewal, holding = ByHand(), held(store, clock)
    renewal.watch(holding)
    renewal.renew_due()
    assert store.calls == []
    clock.turn(10)
    renewal.renew_due()
    assert store.calls == ["renew", "rest"]
    assert holding.seconds_left == 30


def test_lost_lock_is_not_watched_any_more(store: MemoryLocks, clock: Clock) -> None:
    renewal, holding = ByHand(), held(store, clock)
    renewal.watch(holding)
    store.owners.clear()
    clock.turn(10)
    renewal.renew_due()
    assert not holding.is_alive
    assert renewal.seconds_to_next() is None


def test_renewal_does_not_wait_for_a_lock_that_is_over(store: MemoryLocks, clock: Clock) -> None:
    """Otherwise the thread would run without a pause while the same object waits for the lock."""
    lock = NamedLock(terms(store))
    assert lock.acquire()
    holding = lock._holding
    assert holding is not None
    renewal = ByHand()
    renewal.watch(holding)
    clock.turn(31)
    lock.acquire()
    assert renewal.seconds_to_next() is None


def test_thread_that_could_not_be_started_is_started_with_the_next_lock(
    store: MemoryLocks, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewal = Renewal()
    lock = NamedLock(terms(store))
    monkeypatch.setattr(renewal_module, "renewal", renewal)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            lock.acquire()
    assert (lock.is_held, store.owners) == (False, {})
    assert renewal.seconds_to_next() is None
    started: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread.name))
    assert lock.acquire()
    assert started == ["stoker lock renewal"]


def test_failed_renewal_does_not_prevent_others(clock: Clock) -> None:
    renewal = ByHand()
    stores = [MemoryLocks() for _ in range(5)]
    holdings = [held(store, clock) for store in stores]
    stores[2].faults = [
        OSError("no route"),
        OSError("still none"),
    ]  # again when it closes its connection
    for holding in holdings:
        renewal.watch(holding)
    clock.turn(10)
    renewal.renew_due()
    assert [holding.seconds_left for holding in holdings] == [30, 30, 20, 30, 30]


def test_renewal_keeps_no_reference_to_locks(store: MemoryLocks, clock: Clock) -> None:
    renewal, holding = ByHand(), held(store, clock)
    renewal.watch(holding)
    clock.turn(10)
    renewal.renew_due()
    del holding
    gc.collect()
    assert renewal.seconds_to_next() is None


def test_renewal_thread_renews_due_locks(store: MemoryLocks) -> None:
    """With the real clock: a lock that is due is renewed at once."""
    renewed = threading.Event()

    class Tells(MemoryLocks):
        def rest(self) -> None:
            renewed.set()

    telling = Tells()
    holding = Holding(terms(telling), uuid4(), 1, 0.0, is_renewed=True)
    holding.renew_at = 0.0
    renewal = Renewal()
    renewal.watch(held(store, Clock(), 10**6))  # the thread sleeps for long now
    renewal.watch(holding)
    assert renewed.wait(120)
