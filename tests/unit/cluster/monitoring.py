"""A stand-in for the recorder and the broker of a monitor, and what its tests have in common."""

from collections.abc import Callable
from typing import Any

from stoker.brokers.contract import Lease, LeaseId, Leases, PartlyUnavailable
from stoker.cluster.channel import Stream
from stoker.cluster.monitor.monitor import Monitor
from stoker.cluster.wire import (
    Reported,
    open_report,
    pack_for_monitor,
    pack_report,
)
from stoker.exceptions import BrokerUnavailable
from stoker.jobs.outcomes import Attempted, Batch, Outcome
from stoker.jobs.record import LeftOut


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
        self.down: set[LeaseId] = set()
        """Leases on one of the broker's servers, which is down."""
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
        if left := [one for one in over if one.lease_id in self.down]:
            self.settled.append([one.job_id.hex for one in over if one not in left])
            raise PartlyUnavailable(BrokerUnavailable("One is away"), left)

        def end() -> None:
            self.ping_both()
            self.settled.append(list(over.job_ids))

        return end

    def ping_both(self) -> None:
        self.ping()
        if self.is_broker_away:
            raise BrokerUnavailable("Redis is away")

    def answers_for(self, leases: list[Lease]) -> bool:
        return not any(one.lease_id in self.down for one in leases)

    def ping(self) -> None:
        if self.is_away:
            raise BrokerUnavailable("away")


def reported(number: int, attempted: Attempted) -> Reported:
    return pack_report(number, attempted), pack_for_monitor(number, attempted.delivery)


def record(monitor: Monitor, batch: list[Reported]) -> None:
    monitor.pending = batch
    monitor._record()


def confirmed(pusher: tuple[Stream, Stream]) -> list[int]:
    frames = pusher[1].receive(block=False)
    return sorted(number for _, numbers in frames for number in numbers)


def outcome_of(store: Store, reported: Reported) -> Outcome:
    job_id = open_report(*reported).delivery.job_id
    (taken,) = [one for one in store.taken if one.delivery.job_id == job_id]
    return taken.outcome
