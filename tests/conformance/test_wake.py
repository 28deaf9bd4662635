"""Waking a sleeping pusher: at once if the broker can do that, else by polling, which is always
correct."""

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
from stoker.store import prepared
from stoker.store import wake as orm_wake
from stoker.store.wake import NoWake, Wake

from tests.cluster.clusters import wait_for
from tests.conformance.programs import enqueue
from tests.conformance.stands import Stand, message
from tests.conformance.threads import together
from tests.locks.processes import started
from tests.servers.proxy import Proxy

WAIT_SECONDS = 60.0


@pytest.fixture
def wake(stand: Stand) -> Iterator[Wake]:
    """Yield a Wake of this broker that is not due yet."""
    with closing(stand.broker.open_wake()) as made:
        while made.is_due():
            pass
        yield made


def enqueue_and_wake(broker: Broker) -> None:
    broker.enqueue([message()])
    broker.wake_up(["default"])


def is_due_in_time(wake: Wake) -> bool:
    """Wait like a pusher, asleep on the descriptor if there is one. Return whether it was due."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if wake.is_due():
            return True
        sleep_seconds = wake.max_sleep_seconds or 0.1
        descriptor = wake.fileno()
        select.select([descriptor] if descriptor is not None else [], [], [], sleep_seconds)
    return False


def test_enqueue_on_another_connection_wakes(stand: Stand, wake: Wake) -> None:
    claimed = []
    for _ in range(3):
        while found := stand.claim():  # an empty claim starts the poller
            claimed += found
        together(stand, enqueue_and_wake)
        assert isinstance(wake, NoWake) or is_due_in_time(wake)
        while wake.is_due():
            pass
        time.sleep(orm_wake.DEBOUNCE_SECONDS)

    def are_all_claimed() -> bool:
        claimed.extend(stand.claim())
        return len(claimed) >= 3

    wait_for(are_all_claimed)  # the poller may keep one for a moment
    assert len(claimed) == 3


def test_enqueue_in_another_process_wakes(shared_stand: Stand) -> None:
    stand = shared_stand
    with started(enqueue, stand.place) as other, closing(stand.broker.open_wake()) as wake:
        while wake.is_due():
            pass
        assert stand.claim() == []
        other.do("enqueue")
        assert isinstance(wake, NoWake) or is_due_in_time(wake)
        wait_for(lambda: len(stand.claim()) == 1)  # the wake-up may come before the job


def test_wake_without_new_jobs_is_not_due(stand: Stand, wake: Wake) -> None:
    assert not any(wake.is_due() for _ in range(5))


def test_wake_can_be_closed_twice(stand: Stand) -> None:
    wake = stand.broker.open_wake()
    wake.close()
    wake.close()
    assert not wake.is_due() or isinstance(wake, orm_wake.DataVersion | orm_wake.EitherWake)
    enqueue_and_wake(stand.broker)
    assert len(stand.claim()) == 1


def test_is_due_never_blocks(stand: Stand, wake: Wake) -> None:
    def a_hundred_times() -> float:
        began = time.monotonic()
        for _ in range(100):
            wake.is_due()
        return time.monotonic() - began

    # The machine may stop the process once or twice; a blocking call is slow each time.
    assert any(a_hundred_times() < 2 for _ in range(10))


def test_rolled_back_enqueue_does_not_wake(transactional_stand: Stand) -> None:
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
    """Yield a listener that reconnects quickly."""
    monkeypatch.setattr(orm_wake, "RECONNECT_SECONDS", 0.05)
    with closing(transactional_stand.broker.open_wake()) as made:
        assert isinstance(made, orm_wake.Listener)
        yield made


@pytest.mark.postgres
def test_notification_comes_after_the_commit(transactional_stand: Stand, listener: Any) -> None:
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
    """A NOTIFY in every transaction costs throughput, so each process sends one at a time."""
    monkeypatch.setattr(orm_wake, "DEBOUNCE_SECONDS", 3600.0)
    monkeypatch.setattr(orm_wake, "_last_notified", {})

    def wake_often(broker: Broker) -> None:
        for _ in range(50):
            broker.wake_up(["default"])

    together(transactional_stand, wake_often)
    assert is_due_in_time(listener)
    heard = list(listener._wrapper.connection.notifies(timeout=0.1))
    assert not heard, "only the first was sent"


@pytest.mark.postgres
def test_killed_listener_reconnects(transactional_stand: Stand, listener: Any) -> None:
    pid = listener._wrapper.connection.info.backend_pid
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert is_due_in_time(listener), "a job may have come, so the pusher must look"
    assert is_due_in_time(listener), "after reconnecting, a job may have come in between"
    assert listener._wrapper.connection.info.backend_pid != pid
    assert not listener.is_due()
    together(transactional_stand, enqueue_and_wake)
    assert is_due_in_time(listener)


@pytest.mark.postgres
def test_half_open_listener_is_detected(
    transactional_stand: Stand, listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that a firewall dropped receives nothing and reports no error. Here it is closed
    underneath the listener, which looks the same; only a probe detects it."""
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
def test_probe_of_listener_does_not_wait_for_its_answer(
    transactional_stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is away: the pusher must not stand still for the sake of this connection."""
    monkeypatch.setattr(orm_wake, "RECONNECT_SECONDS", 0.05)
    server = connection.settings_dict
    with Proxy(server["HOST"], int(server["PORT"])) as proxy, monkeypatch.context() as patch:
        patch.setitem(server, "HOST", "127.0.0.1")
        patch.setitem(server, "PORT", str(proxy.port))
        patch.setitem(server, prepared.SECONDS_KEY, 2.0)
        with closing(transactional_stand.broker.open_wake()) as listener:
            assert isinstance(listener, orm_wake.Listener)
            wrapper = listener._wrapper
            assert wrapper is not None
            prepared.limit_waits(wrapper)  # without it, a probe that waits would wait for ever
            listener._probe_at = 0.0
            assert not listener.is_due()
            wait_for(lambda: not listener.is_due() and listener._give_up_at is None)
            proxy.silence(proxy.client_ports[-1])
            listener._probe_at = 0.0
            assert not listener.is_due()
            assert listener._wrapper is wrapper, "it waited for the answer, and hung up"
            listener._give_up_at = 0.0
            assert is_due_in_time(listener)
            assert is_due_in_time(listener)
            assert listener._wrapper is not wrapper


@pytest.mark.postgres
def test_jobs_are_found_by_polling_without_listen(
    transactional_stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler may not support LISTEN. Here no server listens on the port."""
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "PORT", "1")
        wake = transactional_stand.broker.open_wake()
        assert wake.fileno() is None
        assert not wake.is_due()
    enqueue_and_wake(transactional_stand.broker)
    assert not wake.is_due()
    assert len(transactional_stand.claim()) == 1
    wake.close()
