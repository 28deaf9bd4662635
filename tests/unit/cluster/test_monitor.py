"""The monitor when the store refuses outcomes or is unreachable."""

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DataError, OperationalError

from stoker.brokers.contract import Delivery, Lease, LeaseId, Leases
from stoker.cluster import monitor as monitor_module
from stoker.cluster.board import Board
from stoker.cluster.channel import Control, Stream, socket_pair
from stoker.cluster.monitor import BUSY_BATCH, Monitor
from stoker.cluster.plan import Plan
from stoker.cluster.wire import (
    Reported,
    open_batch,
    open_report,
    pack_for_monitor,
    pack_report,
)
from stoker.exceptions import BrokerUnavailable
from stoker.jobs.faults import Fault
from stoker.jobs.outcomes import Attempted, Batch, Failed, Outcome, Succeeded
from stoker.jobs.record import LeftOut
from stoker.store.engines import LARGE_BYTES

from tests.unit.cluster.parts import Clock

pytestmark = pytest.mark.unit


class Store:
    """Replaces the recorder; raises the errors that a test sets."""

    def __init__(self) -> None:
        self.taken: list[Attempted] = []
        self.sent: list[list[str]] = []
        self.settled: list[list[str]] = []
        self.minds: Callable[[Attempted], Exception | None] = lambda _: None
        self.is_away = False
        self.is_broker_away = False
        self.needs_broker: Callable[[Attempted], bool] = lambda _: False
        self.calls = 0
        self.inside: set[LeaseId] = set()
        """Leases that the store has granted."""

    def record(self, batch: Batch, **_: Any) -> set[Lease]:
        self.calls += 1
        attempted = [batch.attempted(place) for place in range(len(batch))]
        if self.is_away:
            raise BrokerUnavailable("away")
        for error in filter(None, map(self.minds, attempted)):
            raise error
        left = [one for one in attempted if self.needs_broker(one)]
        self.taken += [one for one in attempted if one not in left]
        if left:
            error = BrokerUnavailable("Redis is away")
            raise LeftOut({one.delivery.lease: error for one in left}, set()) from error
        return set()

    def begin_settle(self, over: Leases, *_: Any) -> Callable[[], None]:
        self.ping_both()
        self.sent.append(list(over.job_ids))

        def end() -> None:
            self.ping_both()
            self.settled.append(list(over.job_ids))

        return end

    def ping_both(self) -> None:
        self.ping()
        if self.is_broker_away:
            raise BrokerUnavailable("Redis is away")

    def ping(self) -> None:
        if self.is_away:
            raise BrokerUnavailable("away")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(monitor_module, "Recorder", lambda *_: store)
    return store


@pytest.fixture
def ends() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for end in opened:
        end.close()


@pytest.fixture
def pusher(ends: list[socket.socket]) -> tuple[Stream, Stream]:
    """Return the monitor's and the pusher's end of the connection."""
    first, second = socket_pair()
    ends += [first, second]
    return Stream(first), Stream(second)


@pytest.fixture
def monitor(
    store: Store,
    plan: Plan,
    board: Board,
    clock: Clock,
    pusher: tuple[Stream, Stream],
    ends: list[socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> Monitor:
    monkeypatch.setattr(monitor_module, "time", clock)
    monkeypatch.setattr(monitor_module, "set_deadlines", lambda _, **__: None)
    monkeypatch.setattr(monitor_module, "broker_for", lambda _: SimpleNamespace(
        ping=store.ping_both, close=lambda: None, begin_settle=store.begin_settle,
        broker=SimpleNamespace(ping=store.ping_both), store=SimpleNamespace(ping=store.ping),
        is_inside=store.inside.__contains__,
    ))  # fmt: skip
    ours, theirs = socket.socketpair()
    ends += [ours, theirs]
    monitor = Monitor(SimpleNamespace(plan=plan, board=board, control=Control(ours)))  # type: ignore[arg-type] # only this of it is used
    monitor.pusher = pusher[0]
    return monitor


@pytest.fixture
def batch(deliveries: Callable[[int], list[Delivery]]) -> list[Reported]:
    return [
        reported(number, Attempted(delivery, Succeeded(b"value"), "worker", 1.0, 2.0))
        for number, delivery in enumerate(deliveries(8), 1)
    ]


def reported(number: int, attempted: Attempted) -> Reported:
    return pack_report(number, attempted), pack_for_monitor(number, attempted.delivery)


def record(monitor: Monitor, batch: list[Reported]) -> None:
    monitor.pending = batch
    monitor._record()


@pytest.mark.parametrize(("word", "is_due"), [("reports", False), ("last_reports", True)])
def test_busy_monitor_waits_for_more_outcomes_only_while_workers_have_jobs(
    monitor: Monitor,
    batch: list[Reported],
    pusher: tuple[Stream, Stream],
    *,
    word: str,
    is_due: bool,
) -> None:
    monitor._last_batch = BUSY_BATCH
    pusher[1].send(("reports", batch[:4]))
    monitor._read_pusher()
    assert not monitor._is_due()
    pusher[1].send((word, batch[4:]))
    monitor._read_pusher()
    assert (len(monitor.pending), monitor._is_due()) == (8, is_due)


def confirmed(pusher: tuple[Stream, Stream]) -> list[int]:
    frames = pusher[1].receive(block=False)
    return sorted(number for _, numbers in frames for number in numbers)


def outcome_of(store: Store, reported: Reported) -> Outcome:
    job_id = open_report(*reported).delivery.job_id
    (taken,) = [one for one in store.taken if one.delivery.job_id == job_id]
    return taken.outcome


def test_refused_outcome_becomes_a_failure_with_the_error(
    monitor: Monitor, store: Store, batch: list[Any], pusher: tuple[Stream, Stream]
) -> None:
    bad = open_report(*batch[5])
    store.minds = lambda one: DataError("a NUL") if one == bad else None
    record(monitor, batch)
    assert confirmed(pusher) == list(range(1, 9))
    outcome = outcome_of(store, batch[5])
    assert isinstance(outcome, Failed)
    assert outcome.fault.message == "a NUL"
    assert len(store.taken) == 8


def test_outcome_with_a_refused_text_is_recorded_in_ascii(
    monitor: Monitor,
    store: Store,
    deliveries: Callable[[int], list[Delivery]],
    pusher: tuple[Stream, Stream],
) -> None:
    (delivery,) = deliveries(1)
    failed = Failed(Fault("ValueError", "no \N{FIRE}", ""))
    store.minds = lambda one: (
        None if str(one.outcome).isascii() else OperationalError(1366, "Incorrect string value")
    )
    record(monitor, [reported(1, Attempted(delivery, failed, "worker", 1.0, 2.0))])
    assert confirmed(pusher) == [1]
    assert [one.outcome for one in store.taken] == [
        Failed(Fault("ValueError", r"no \U0001f525", ""))
    ]


def test_outcome_refused_even_as_a_failure_is_retried_and_not_confirmed_before(
    monitor: Monitor,
    store: Store,
    batch: list[Any],
    pusher: tuple[Stream, Stream],
    clock: Clock,
) -> None:
    bad = open_report(*batch[0]).delivery
    store.minds = lambda one: DataError("no") if one.delivery == bad else None
    record(monitor, batch)
    assert confirmed(pusher) == list(range(2, 9))
    monitor._record_aside()
    assert confirmed(pusher) == [], "not at once"
    store.minds = lambda _: None
    clock.turn(1.1)
    monitor._record_aside()
    assert confirmed(pusher) == [1]
    assert isinstance(outcome_of(store, batch[0]), Succeeded)
    assert monitor.aside == []


def test_outcome_refused_again_is_retried_with_growing_pauses(
    monitor: Monitor, store: Store, batch: list[Any], clock: Clock
) -> None:
    store.minds = lambda _: DataError("no")
    record(monitor, batch[:1])
    pauses = []
    for _ in range(10):
        pauses.append(monitor.aside[0].due - clock.now)
        clock.turn(pauses[-1])
        monitor._record_aside()
    assert pauses[:3] == [1.0, 2.0, 4.0]
    assert pauses[-1] == 60.0


def test_unreachable_store_is_waited_for(
    monitor: Monitor,
    store: Store,
    batch: list[Any],
    pusher: tuple[Stream, Stream],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store.is_away = True
    comes_back_at = clock.now + 600
    sleep = clock.sleep

    def sleep_until_it_is_back(seconds: float) -> None:
        sleep(seconds)
        store.is_away = clock.now < comes_back_at

    monkeypatch.setattr(clock, "sleep", sleep_until_it_is_back)
    record(monitor, batch)
    assert confirmed(pusher) == list(range(1, 9))
    assert all(isinstance(one.outcome, Succeeded) for one in store.taken)


def test_transient_error_changes_no_outcome(
    monitor: Monitor, store: Store, batch: list[Any], pusher: tuple[Stream, Stream]
) -> None:
    """For example a deadlock that the database has resolved."""
    left = [OperationalError("deadlock found")] * 3
    store.minds = lambda _: left.pop() if left else None
    record(monitor, batch)
    assert confirmed(pusher) == list(range(1, 9))
    assert all(isinstance(one.outcome, Succeeded) for one in store.taken)


@pytest.mark.parametrize("error", [KeyError("a defect"), type("DriverError", (Exception,), {})()])
def test_unknown_error_changes_no_outcome(
    error: Exception,
    monitor: Monitor,
    store: Store,
    batch: list[Any],
    pusher: tuple[Stream, Stream],
    clock: Clock,
) -> None:
    raises = [error]
    store.minds = lambda _: raises.pop() if raises else None
    record(monitor, batch[:1])
    assert (confirmed(pusher), store.taken) == ([], [])
    clock.turn(1.1)
    monitor._record_aside()
    assert confirmed(pusher) == [1]
    assert isinstance(outcome_of(store, batch[0]), Succeeded)


@pytest.mark.parametrize(
    ("is_large", "error", "is_failure"),
    [
        (True, OperationalError(2006, "Server has gone away"), True),
        (False, OperationalError(2006, "Server has gone away"), False),
        (True, OperationalError("could not extend file: No space left on device"), False),
    ],
)
def test_large_value_fails_only_by_an_error_that_its_size_may_have_caused(
    monitor: Monitor,
    store: Store,
    batch: list[Any],
    pusher: tuple[Stream, Stream],
    *,
    is_large: bool,
    error: OperationalError,
    is_failure: bool,
) -> None:
    """MariaDB and MySQL close the connection each time, because the packet is too large."""
    value = b"x" * (LARGE_BYTES if is_large else 10)
    bad = replace(open_report(*batch[3]), outcome=Succeeded(value))
    batch[3] = reported(4, bad)
    store.minds = lambda one: (
        error if one.delivery == bad.delivery and isinstance(one.outcome, Succeeded) else None
    )
    record(monitor, batch)
    if is_failure:
        assert confirmed(pusher) == list(range(1, 9))
        assert isinstance(outcome_of(store, batch[3]), Failed)
    else:
        assert confirmed(pusher) == [1, 2, 3, 5, 6, 7, 8]
        assert [one.reported for one in monitor.aside] == [batch[3]]


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
