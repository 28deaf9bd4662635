"""Waking a sleeping pusher: quick where the broker can, harmless where it can't. Polling is the
path that is always correct."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from django.db import connection, transaction

from stoker.brokers.contract import (
    Broker,
)
from stoker.brokers.fronted import FrontedWake
from stoker.store import wake as orm_wake
from stoker.store.wake import NoWake, Wake

from tests.cluster.clusters import wait_for
from tests.conformance.programs import enqueue
from tests.conformance.stands import Stand, message
from tests.conformance.threads import together
from tests.guards.processes import started

WAIT_SECONDS = 60.0


@pytest.fixture
def wake(stand: Stand) -> Iterator[Wake]:
    """Give what a pusher of this broker sleeps on, with nothing to tell yet."""
    with closing(stand.broker.open_wake()) as made:
        while made.is_due():
            pass
        yield made


def enqueue_and_wake(broker: Broker) -> None:
    broker.enqueue([message()])
    broker.wake_up(["default"])


def is_due_in_time(wake: Wake) -> bool:
    """Whether it becomes due, asked as a pusher asks: asleep on the descriptor, if there is one."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if wake.is_due():
            return True
        sleep_seconds = wake.max_sleep_seconds or 0.1
        descriptor = wake.fileno()
        select.select([descriptor] if descriptor is not None else [], [], [], sleep_seconds)
    return False


def test_another_connection_wakes(stand: Stand, wake: Wake) -> None:
    claimed = []
    for _ in range(3):
        while found := stand.claim():  # who is sent out to look, is so by a claim in vain
            claimed += found
        together(stand, enqueue_and_wake)
        assert isinstance(wake, NoWake) or is_due_in_time(wake)
        while wake.is_due():
            pass
        time.sleep(orm_wake.DEBOUNCE_SECONDS)

    def are_all_claimed() -> bool:
        claimed.extend(stand.claim())
        return len(claimed) >= 3

    wait_for(are_all_claimed)  # the lookout may hold one for a moment, and gives it back
    assert len(claimed) == 3


def test_another_process_wakes(shared_stand: Stand) -> None:
    stand = shared_stand
    with started(enqueue, stand.place) as other, closing(stand.broker.open_wake()) as wake:
        while wake.is_due():
            pass
        assert stand.claim() == []
        other.do("enqueue")
        assert isinstance(wake, NoWake) or is_due_in_time(wake)
        wait_for(lambda: len(stand.claim()) == 1)  # it may have been woken by a word, not a job


def test_nothing_new_is_not_due(stand: Stand, wake: Wake) -> None:
    assert not any(wake.is_due() for _ in range(5))


def test_closes_cleanly_and_twice(stand: Stand) -> None:
    wake = stand.broker.open_wake()
    wake.close()
    wake.close()
    assert not wake.is_due() or isinstance(wake, orm_wake.DataVersion | FrontedWake)
    enqueue_and_wake(stand.broker)
    assert len(stand.claim()) == 1


def test_asking_never_blocks(stand: Stand, wake: Wake) -> None:
    def a_hundred_times() -> float:
        began = time.monotonic()
        for _ in range(100):
            wake.is_due()
        return time.monotonic() - began

    # A process may be stopped for a while; one that blocks does so each time.
    assert any(a_hundred_times() < 2 for _ in range(10))


def test_a_transaction_that_is_rolled_back_wakes_nobody(transactional_stand: Stand) -> None:
    stand = transactional_stand
    with closing(stand.broker.open_wake()) as wake:
        while wake.is_due():
            pass

        def roll_back(broker: Broker) -> None:
            with stand.atomic():
                enqueue_and_wake(broker)
                transaction.set_rollback(True)

        together(stand, roll_back)
        assert not wake.is_due()


@pytest.fixture
def listener(transactional_stand: Stand, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give a listener that is quick to come back."""
    monkeypatch.setattr(orm_wake, "RECONNECT_SECONDS", 0.05)
    with closing(transactional_stand.broker.open_wake()) as made:
        assert isinstance(made, orm_wake.Listener)
        yield made


@pytest.mark.postgres
def test_notified_after_the_commit_and_not_before(
    transactional_stand: Stand, listener: Any
) -> None:
    stand = transactional_stand

    def in_transaction(broker: Broker) -> None:
        with stand.atomic():
            enqueue_and_wake(broker)
            time.sleep(0.05)
            assert not listener.is_due()
        broker.wake_up(["default"])

    together(stand, in_transaction)
    assert is_due_in_time(listener)


@pytest.mark.postgres
def test_notifications_are_debounced(
    transactional_stand: Stand, listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One per process and moment: a NOTIFY in every transaction costs throughput."""
    monkeypatch.setattr(orm_wake, "DEBOUNCE_SECONDS", 3600.0)
    monkeypatch.setattr(orm_wake, "_last_notified", {})

    def wake_often(broker: Broker) -> None:
        for _ in range(50):
            broker.wake_up(["default"])

    together(transactional_stand, wake_often)
    assert is_due_in_time(listener)
    heard = list(listener._wrapper.connection.notifies(timeout=0.1))
    assert not heard, "the first was told of, and no other"


@pytest.mark.postgres
def test_a_killed_listener_comes_back(transactional_stand: Stand, listener: Any) -> None:
    pid = listener._wrapper.connection.info.backend_pid
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert is_due_in_time(listener), "something may have come: better to look"
    assert is_due_in_time(listener), "back again: what came in between was not heard"
    assert listener._wrapper.connection.info.backend_pid != pid
    assert not listener.is_due()
    together(transactional_stand, enqueue_and_wake)
    assert is_due_in_time(listener)


@pytest.mark.postgres
def test_a_half_open_listener_is_found_out(
    transactional_stand: Stand, listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that a firewall forgot hears nothing and says nothing. Closed under its owner's
    feet, it looks just as idle: only asking it something tells."""
    monkeypatch.setattr(orm_wake, "PROBE_SECONDS", 0.05)
    listener._probe_at = 0.0
    assert not listener.is_due()
    wrapper = listener._wrapper
    wrapper.connection.close()
    time.sleep(0.06)
    assert is_due_in_time(listener)
    assert is_due_in_time(listener)
    assert listener._wrapper is not wrapper


@pytest.mark.postgres
def test_without_listen_polling_finds_the_jobs(
    transactional_stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a pooler that gives no connection to listen on: nobody is there at that port."""
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "PORT", "1")
        wake = transactional_stand.broker.open_wake()
        assert wake.fileno() is None
        assert not wake.is_due()
    enqueue_and_wake(transactional_stand.broker)
    assert not wake.is_due()
    assert len(transactional_stand.claim()) == 1
    wake.close()
