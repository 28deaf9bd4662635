"""Brokers compared with a simple model, over random enqueues, claims, extends, acks, releases,
rescues and passing time.

The seed that hypothesis takes is printed with the run's own: `pytest --seed=N` brings it back.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, ClassVar

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stoker.brokers.contract import ClaimRequest, Delivery, Lease, Return
from stoker.brokers.orm import claim as orm_claim
from stoker.brokers.orm import claim as watermarks
from stoker.brokers.orm.broker import OrmBroker

from tests.conformance.server_stands import MongodbStand
from tests.conformance.stands import MemoryStand, OrmStand, Stand, message

QUEUES = ("a", "b")
HOLDERS = (uuid.UUID(int=1), uuid.UUID(int=2))
LEASE_SECONDS = (1_000.0, 100_000.0)
MOST = 4
SLACK_SECONDS = 300.0
"""Added to the thousands by which time advances, so that no two times of the model are so close
that the duration of the test itself decides which is earlier."""


@dataclass
class Modelled:
    """A job in the model."""

    queue: str
    priority: int
    due_at: float
    place: str
    attempts: int = 0
    crashes: int = 0
    lease: Lease | None = None
    holder: uuid.UUID | None = None
    leased_until: float = 0.0


class BrokerMachine(RuleBasedStateMachine):
    """Calls the broker and the model alike, and compares them."""

    make_stand: ClassVar[Any]
    deliveries: Bundle[Delivery] = Bundle("deliveries")

    def __init__(self) -> None:
        super().__init__()
        self.stand: Stand = self.make_stand()
        self.jobs: dict[uuid.UUID, Modelled] = {}
        self.now = 0.0

    @initialize()
    def begin(self) -> None:
        self.enqueue(QUEUES[0], [0] * MOST, None)

    @rule(
        queue=st.sampled_from(QUEUES),
        priorities=st.lists(st.sampled_from([0, -100, 1, 100]), min_size=1, max_size=MOST),
        delay=st.sampled_from([None, None, -1_000, 1_000, 2_000]),
    )
    def enqueue(self, queue: str, priorities: list[int], delay: int | None) -> None:
        run_after = None if delay is None else self.stand.now() + delay
        messages = [
            message(queue=queue, priority=priority, run_after=run_after) for priority in priorities
        ]
        self.stand.broker.enqueue(messages)
        if isinstance(self.stand.broker, OrmBroker):
            # Claims may skip jobs that are due before the watermark, for a few seconds.
            self.stand.broker._marks.begin_due_at(0)
        for one in messages:
            place = "ready" if delay is None else "deferred"
            due_at = self.now + (delay or 0)
            self.jobs[one.job_id] = Modelled(queue, one.priority, due_at, place)

    @rule(
        target=deliveries,
        queues=st.sampled_from([(), QUEUES, *[(queue,) for queue in QUEUES]]),
        limit=st.sampled_from([MOST, 2, 1, 0]),
        holder=st.sampled_from(HOLDERS),
        lease_seconds=st.sampled_from(LEASE_SECONDS),
    )
    def claim(
        self, queues: tuple[str, ...], limit: int, holder: uuid.UUID, lease_seconds: float
    ) -> Any:
        claimed = self.stand.broker.claim(
            ClaimRequest(limit, holder=holder, lease_seconds=lease_seconds, queues=queues)
        )
        if limit:  # with limit 0, promoting is optional
            self._promote_due()
        wanted = [
            job_id
            for job_id, job in self.jobs.items()
            if job.place == "ready" and (not queues or job.queue in queues)
        ]
        wanted.sort(key=lambda job_id: (-self.jobs[job_id].priority, job_id))
        assert [one.job_id for one in claimed] == wanted[:limit]
        for one in claimed:
            job = self.jobs[one.job_id]
            job.attempts += 1
            self._lease(one, holder, lease_seconds)
            assert (one.queue, one.priority) == (job.queue, job.priority)
            assert (one.attempt, one.crashes) == (job.attempts, job.crashes)
        return multiple(*claimed)

    @rule(
        some=st.lists(deliveries, min_size=1, max_size=MOST),
        lease_seconds=st.sampled_from(LEASE_SECONDS),
    )
    def extend(self, some: list[Delivery], lease_seconds: float) -> None:
        leases = [one.lease for one in some]
        stale = self.stand.broker.extend(leases, lease_seconds=lease_seconds)
        assert stale == self._stale(leases)
        for lease in set(leases) - stale:
            self.jobs[lease.job_id].leased_until = self.now + lease_seconds

    @rule(some=st.lists(deliveries, min_size=1, max_size=MOST))
    def ack(self, some: list[Delivery]) -> None:
        leases = [one.lease for one in some]
        stale = self._stale(leases)
        assert self.stand.broker.settle(leases) == stale
        for lease in set(leases) - stale:
            del self.jobs[lease.job_id]

    @rule(
        some=st.lists(deliveries, min_size=1, max_size=MOST),
        delay=st.sampled_from([0.0, 0.0, 1_000.0]),
        attempts=st.integers(0, 3),
        crashes=st.integers(0, 3),
    )
    def release(self, some: list[Delivery], delay: float, attempts: int, crashes: int) -> None:
        stale = self._stale([one.lease for one in some])
        returns = [Return(one.lease, delay, attempts, crashes) for one in some]
        assert self.stand.broker.settle(again=returns) == stale
        for lease in {one.lease for one in some} - stale:
            job = self.jobs[lease.job_id]
            job.place, job.due_at = ("deferred" if delay else "ready"), self.now + delay
            job.attempts, job.crashes, job.lease, job.holder = attempts, crashes, None, None

    @rule(
        target=deliveries,
        limit=st.sampled_from([MOST, 1, 0]),
        holder=st.sampled_from(HOLDERS),
        lease_seconds=st.sampled_from(LEASE_SECONDS),
    )
    def rescue(self, limit: int, holder: uuid.UUID, lease_seconds: float) -> Any:
        over = {
            job_id
            for job_id, job in self.jobs.items()
            if job.place == "running" and job.leased_until < self.now
        }
        rescued = self.stand.broker.claim_expired(
            ClaimRequest(limit, holder=holder, lease_seconds=lease_seconds)
        )
        assert {one.job_id for one in rescued} <= over
        assert len(rescued) == min(limit, len(over))
        for one in rescued:
            job = self.jobs[one.job_id]
            assert one.lease != job.lease
            assert (one.attempt, one.crashes) == (job.attempts, job.crashes)
            self._lease(one, holder, lease_seconds)
        return multiple(*rescued)

    @rule(holder=st.sampled_from(HOLDERS))
    def expire_holder(self, holder: uuid.UUID) -> None:
        self.stand.broker.expire_holder(holder)
        for job in self.jobs.values():
            if job.holder == holder:
                job.leased_until = -1.0

    @precondition(lambda self: len(self.jobs) > 2 * MOST)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        some = data.draw(
            st.lists(st.sampled_from(sorted(self.jobs) or [uuid.UUID(int=9)]), max_size=2)
        )
        gone = {
            job_id
            for job_id in some
            if job_id in self.jobs and self.jobs[job_id].place != "running"
        }
        assert self.stand.broker.withdraw(some) == gone
        for job_id in gone:
            del self.jobs[job_id]

    @precondition(lambda self: len(self.jobs) > 2 * MOST)
    @rule(queue=st.sampled_from(QUEUES))
    def purge(self, queue: str) -> None:
        gone = [
            job_id
            for job_id, job in self.jobs.items()
            if job.queue == queue and job.place != "running"
        ]
        assert self.stand.broker.purge(queue) == len(gone)
        for job_id in gone:
            del self.jobs[job_id]

    @rule(thousands=st.integers(1, 3))
    def let_time_go_by(self, thousands: int) -> None:
        self.stand.advance(1_000 * thousands + SLACK_SECONDS)
        self.now += 1_000 * thousands + SLACK_SECONDS

    @invariant()
    def agree_on_the_states(self) -> None:
        places = self.stand.broker.states(list(self.jobs))
        assert set(places) == set(self.jobs)
        for job_id, place in places.items():
            job = self.jobs[job_id]
            has_fallen_due = job.place == "deferred" and job.due_at <= self.now
            assert place == job.place or (has_fallen_due and place == "ready")

    @invariant()
    def agree_on_the_holders(self) -> None:
        for holder in HOLDERS:
            held = {one.lease for one in self.stand.broker.held_by(holder)}
            assert held == {job.lease for job in self.jobs.values() if job.holder == holder}

    def teardown(self) -> None:
        """Delete everything, even if this example failed."""
        broker = self.stand.broker
        for holder in HOLDERS:
            broker.settle([one.lease for one in broker.held_by(holder)])
        for queue in QUEUES:
            broker.purge(queue)
        assert broker.sizes() == {}

    def _promote_due(self) -> None:
        for job in self.jobs.values():
            if job.place == "deferred" and job.due_at <= self.now:
                job.place = "ready"

    def _lease(self, one: Delivery, holder: uuid.UUID, lease_seconds: float) -> None:
        job = self.jobs[one.job_id]
        job.place, job.lease, job.holder = "running", one.lease, holder
        job.leased_until = self.now + lease_seconds

    def _stale(self, leases: list[Lease]) -> set[Lease]:
        return {
            lease
            for lease in leases
            if lease.job_id not in self.jobs or self.jobs[lease.job_id].lease != lease
        }


class MemoryMachine(BrokerMachine):
    """The memory broker."""

    make_stand = MemoryStand


class OrmMachine(BrokerMachine):
    """The ORM broker."""

    make_stand = OrmStand


class MongodbMachine(BrokerMachine):
    """The MongoDB broker."""

    make_stand = MongodbStand

    def teardown(self) -> None:
        super().teardown()
        self.stand.clear()


@pytest.mark.sqlite
@pytest.mark.mongodb
def test_mongodb_agrees_with_the_model(seed: int) -> None:
    run(MongodbMachine, seed, examples=3)


@pytest.mark.sqlite
def test_memory_agrees_with_the_model(seed: int) -> None:
    run(MemoryMachine, seed, examples=60)


@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("examples", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_orm_agrees_with_the_model(
    examples: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orm_claim, "PROMOTE_SECONDS", 0)  # promote due jobs with every claim
    run(OrmMachine, seed, examples=examples)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("examples", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_orm_with_watermarks_agrees_with_the_model(
    examples: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the other tests each claim starts at the beginning of the queue. Released and due jobs are
    always behind a watermark of this broker, so it finds them."""
    monkeypatch.setattr(orm_claim, "PROMOTE_SECONDS", 0)
    monkeypatch.setattr(watermarks, "SHARE", 1e12)
    monkeypatch.setattr(watermarks, "DEAR", 0.0001)
    monkeypatch.setattr(watermarks, "NEW_QUEUES_SECONDS", 0.0)
    run(OrmMachine, seed, examples=examples)


def run(machine: type[BrokerMachine], seed: int, *, examples: int) -> None:
    """Run a machine with the examples of the seed; no example is saved."""
    bounded = settings(
        max_examples=examples,
        stateful_step_count=80,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=bounded)
