"""The monitor when a broker outside the store settles jobs, does not answer, or refuses."""

import socket
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError

from stoker.cluster.channel import Stream, socket_pair
from stoker.cluster.monitor import monitor as monitor_module
from stoker.cluster.monitor.monitor import Monitor
from stoker.cluster.wire import (
    open_batch,
    open_report,
)
from stoker.jobs.outcomes import Failed, Succeeded
from stoker.store.engines import LARGE_BYTES

from tests.unit.cluster.monitoring import Store, confirmed, outcome_of, record, reported
from tests.unit.cluster.parts import Clock

pytestmark = pytest.mark.unit


def test_recorded_jobs_are_acked_together_and_then_confirmed(
    monitor: Monitor, store: Store, batch: list[Any], pusher: tuple[Stream, Stream]
) -> None:
    leases = open_batch(batch).leases
    for part in (batch[:4], batch[4:]):
        monitor.unsettled.put(open_batch(part).leases, [], set())
        record(monitor, part)
    monitor._settle(at_least=9)
    assert (store.settled, confirmed(pusher)) == ([], []), "more outcomes may follow"
    monitor._settle()
    assert store.settled == [leases.job_ids]
    assert confirmed(pusher) == list(range(1, 9))


def test_outcomes_are_recorded_while_the_broker_settles_others(
    monitor: Monitor, store: Store, batch: list[Any], pusher: tuple[Stream, Stream]
) -> None:
    leases = [open_batch(part).leases for part in (batch[:4], batch[4:])]
    monitor.unsettled.put(leases[0], [], set())
    record(monitor, batch[:4])
    monitor._settle(at_least=4)
    assert (store.sent, store.settled) == ([leases[0].job_ids], [])
    monitor.unsettled.put(leases[1], [], set())
    record(monitor, batch[4:])
    assert len(store.taken) == 8
    assert confirmed(pusher) == []
    monitor._settle(at_least=4)
    assert store.settled == [leases[0].job_ids]
    assert confirmed(pusher) == [1, 2, 3, 4]
    monitor._settle()
    assert store.settled == store.sent == [one.job_ids for one in leases]
    assert confirmed(pusher) == [5, 6, 7, 8]


def test_settlement_without_an_answer_is_ended_before_the_next_begins(
    monitor: Monitor, store: Store, batch: list[Any], pusher: tuple[Stream, Stream]
) -> None:
    leases = [open_batch(part).leases for part in (batch[:4], batch[4:])]
    monitor.unsettled.put(leases[0], [], set())
    record(monitor, batch[:4])
    monitor._settle(at_least=4)
    monitor.unsettled.put(leases[1], [], set())
    record(monitor, batch[4:])
    store.is_away = True
    monitor._settle(at_least=4)
    assert (len(store.sent), confirmed(pusher)) == (1, [])
    store.is_away = False
    monitor.of_broker.try_at = 0.0
    monitor._settle()
    assert store.settled == store.sent == [one.job_ids for one in leases]
    assert confirmed(pusher) == list(range(1, 9))


def test_new_pusher_is_not_told_of_settlements_for_the_old(
    monitor: Monitor, batch: list[Any], ends: list[socket.socket]
) -> None:
    for part in (batch[:4], batch[4:]):
        monitor.unsettled.put(open_batch(part).leases, [], set())
        record(monitor, part)
        monitor._settle(at_least=4)
    monitor._drop_pusher = lambda: None  # type: ignore[method-assign] # it is not registered
    first, second = socket_pair()
    ends += [first, second]
    new = Stream(first), Stream(second)
    monitor._meet_pusher(new[0])
    monitor._settle()
    assert confirmed(new) == []


def test_nothing_is_confirmed_before_the_broker_acked(
    monitor: Monitor, store: Store, batch: list[Any], pusher: tuple[Stream, Stream], clock: Clock
) -> None:
    monitor.unsettled.put(open_batch(batch).leases, [], set())
    record(monitor, batch)
    store.is_away = True
    monitor._settle()
    assert confirmed(pusher) == []
    store.is_away = False
    monitor.of_broker.try_at = 0.0
    monitor._settle()
    assert (len(store.settled), confirmed(pusher)) == (1, list(range(1, 9)))


def test_outcomes_that_need_an_unreachable_broker_are_put_aside_and_retried_together(
    monitor: Monitor,
    store: Store,
    batch: list[Any],
    pusher: tuple[Stream, Stream],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitor_module, "locked_jobs", lambda *_: set())
    needing = [open_report(*one) for one in (batch[2], batch[5])]
    store.is_broker_away, store.needs_broker = True, needing.__contains__
    record(monitor, batch)
    assert confirmed(pusher) == [1, 2, 4, 5, 7, 8]
    assert (store.calls, len(store.taken)) == (1, 6)
    for seconds in (1.1, 2.1, 4.1, 5.1, 5.1):
        monitor._record_aside()
        clock.turn(seconds)
    store.is_broker_away, store.needs_broker = False, lambda _: False
    monitor._record_aside()
    assert confirmed(pusher) == [3, 6]
    assert (store.calls, len(store.taken), monitor.aside) == (6, 8, [])


@pytest.mark.parametrize("is_large", [True, False])
def test_broker_that_answers_but_refuses_a_large_value_holds_up_no_other_outcome(
    is_large: bool,
    monitor: Monitor,
    store: Store,
    batch: list[Any],
    pusher: tuple[Stream, Stream],
) -> None:
    value = b"x" * (LARGE_BYTES if is_large else 10)
    bad = replace(open_report(*batch[3]), outcome=Succeeded(value))
    batch[3] = reported(4, bad)
    needing = open_report(*batch[5])
    store.needs_broker = lambda one: one in (bad, needing)
    record(monitor, batch)
    assert [one.reported for one in monitor.aside] == batch[3:6:2][is_large:]
    if is_large:
        assert confirmed(pusher) == [1, 2, 3, 4, 5, 7, 8]
        outcome = outcome_of(store, batch[3])
        assert isinstance(outcome, Failed)
        assert outcome.fault.message == "Redis is away"
    else:
        assert (confirmed(pusher), store.calls) == ([1, 2, 3, 5, 7, 8], 1)


def test_outcome_that_breaks_the_connection_is_put_aside_while_the_broker_is_unreachable(
    monitor: Monitor,
    store: Store,
    batch: list[Any],
    pusher: tuple[Stream, Stream],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad, ends_at = open_report(*batch[3]), clock.now + 600
    store.is_broker_away = True
    store.minds = lambda one: OperationalError("server has gone away") if one == bad else None
    sleep = clock.sleep

    def sleep_for_a_while(seconds: float) -> None:
        assert clock.now < ends_at, "the monitor waits for the broker"
        sleep(seconds)

    monkeypatch.setattr(clock, "sleep", sleep_for_a_while)
    record(monitor, batch)
    assert confirmed(pusher) == [1, 2, 3, 5, 6, 7, 8]
    assert [one.reported for one in monitor.aside] == [batch[3]]


def test_outcomes_of_leases_in_the_store_are_confirmed_while_the_broker_is_unreachable(
    monitor: Monitor, store: Store, batch: list[Any], pusher: tuple[Stream, Stream]
) -> None:
    leases = open_batch(batch).leases
    store.inside.update(leases.lease_ids[:4])
    store.is_broker_away = True
    monitor.unsettled.put(leases[4:], [], set())
    record(monitor, batch)
    monitor._settle()
    assert confirmed(pusher) == [1, 2, 3, 4]
    assert not monitor.patience.is_waiting, "the store can be used at once"
    store.is_broker_away = False
    monitor.of_broker.try_at = 0.0
    monitor._settle()
    assert confirmed(pusher) == [5, 6, 7, 8]


def test_server_that_is_down_holds_up_only_its_own_settlements(
    monitor: Monitor,
    store: Store,
    batch: list[Any],
    pusher: tuple[Stream, Stream],
    clock: Clock,
    events: list[tuple[str, dict[str, Any]]],
) -> None:
    leases = open_batch(batch).leases
    store.down = {leases[1].lease_id}
    for part in (batch[:4], batch[4:]):
        monitor.unsettled.put(open_batch(part).leases, [], set())
        record(monitor, part)
        monitor._settle()
    assert confirmed(pusher) == [1, 3, 4, 5, 6, 7, 8]
    assert not monitor.of_broker.is_waiting
    assert store.sent[1] == [leases.job_ids[1], *leases.job_ids[4:]]
    for _ in range(3):
        monitor._settle()
    assert len(store.sent) == 2, "it is tried again after a pause"
    clock.turn(1.1)
    monitor._settle()
    assert (store.sent[2:], confirmed(pusher)) == ([[leases.job_ids[1]]], [])
    store.down.clear()
    clock.turn(2.1)
    monitor._settle()
    assert (store.settled[-1], confirmed(pusher)) == ([leases.job_ids[1]], [2])
    assert [told["seconds"] for name, told in events if name == "broker_unreachable"] == [1.0, 2.0]


def test_large_success_waits_for_its_server_while_others_answer(
    monitor: Monitor, store: Store, batch: list[Any], pusher: tuple[Stream, Stream]
) -> None:
    bad = replace(open_report(*batch[3]), outcome=Succeeded(b"x" * LARGE_BYTES))
    batch[3] = reported(4, bad)
    store.needs_broker, store.down = (lambda one: one == bad), {bad.delivery.lease_id}
    record(monitor, batch)
    assert confirmed(pusher) == [1, 2, 3, 5, 6, 7, 8]
    assert [one.reported for one in monitor.aside] == [batch[3]]
    assert bad not in store.taken


def test_outcomes_that_the_broker_refuses_are_logged_after_growing_pauses(
    monitor: Monitor,
    store: Store,
    batch: list[Any],
    clock: Clock,
    events: list[tuple[str, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitor_module, "locked_jobs", lambda *_: set())
    store.needs_broker = lambda _: True
    for part in (batch[:4], batch[4:]):
        record(monitor, part)
    for _ in range(3):
        clock.turn(monitor.aside[0].due - clock.now)
        monitor._record_aside()
    told = [told for name, told in events if name == "broker_unreachable"]
    assert [one["seconds"] for one in told] == [1.0, 2.0, 4.0, 5.0]
    assert {one["error"] for one in told} == {"Redis is away"}
