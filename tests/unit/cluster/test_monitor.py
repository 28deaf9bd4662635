"""The monitor when the store refuses outcomes or is unreachable."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import (
    DataError,
    IntegrityError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)

from stoker.brokers.contract import Delivery
from stoker.cluster import board as place
from stoker.cluster.board import Board
from stoker.cluster.channel import Stream
from stoker.cluster.monitor.monitor import BUSY_BATCH, Monitor
from stoker.cluster.wire import (
    Reported,
    open_report,
)
from stoker.jobs.faults import Fault
from stoker.jobs.outcomes import Attempted, Failed, Succeeded
from stoker.store.engines import LARGE_BYTES

from tests.unit.cluster.monitoring import Store, confirmed, outcome_of, record, reported
from tests.unit.cluster.parts import Clock

pytestmark = pytest.mark.unit


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


@pytest.mark.parametrize(
    "error",
    [
        KeyError("a defect"),
        type("DriverError", (Exception,), {})(),
        IntegrityError("duplicate key"),
        InternalError("invalid page in block 0"),
        ProgrammingError("permission denied for table stoker_job"),
        NotSupportedError("cannot do that"),
    ],
)
def test_unknown_error_or_one_of_the_server_changes_no_outcome(
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


def test_heartbeat_precedes_each_call_to_the_store(
    monitor: Monitor, store: Store, batch: list[Reported], board: Board, clock: Clock
) -> None:
    """A slow database answers each call in time. Several calls in a row are no hang."""
    ages_ns = []

    def answer_slowly(_: Attempted) -> None:
        ages_ns.append(clock.monotonic_ns() - board[place.MONITOR_BEAT_NS])
        clock.turn(10)

    store.minds = answer_slowly
    for one in batch:
        monitor._finish([one])
    assert ages_ns == [0] * len(batch)
