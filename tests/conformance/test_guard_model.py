"""Guards compared with a simple model of their rules, over random calls: no guard has too many
jobs, sequences keep their order, no job is lost, and all jobs run in the end unless a halted
sequence stops them, without the help of the sweep.

The seed that hypothesis takes is printed with the run's own: `pytest --seed=N` brings it back.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import hypothesis
import pytest
from django.db import connection
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stoker.brokers.contract import ClaimRequest, Delivery, Lease, Return
from stoker.brokers.orm import claim as orm_claim
from stoker.guards.sweep import forget_needs, sweep_keys
from stoker.models import Blocked, Claimed, Deferred, GuardKey, Need, Ready
from stoker.models.job import Message
from stoker.models.need import NewNeed

from tests.conformance.stands import OrmStand, message

QUEUES = ("a", "b")
HOLDER = uuid.UUID(int=1)
LEASE_SECONDS = (1_500.0, 100_000.0)
LONG_SECONDS = 1_000_000.0
"""Longer than any delay here."""
RETRY_SECONDS = 2_000
MOST = 5
EXAMPLES = {"sqlite": 10, "postgresql": 5, "mysql": 3}


class Rollback(Exception):
    """Raised to roll a transaction back."""


def _key(name: str, kind: str, places: int = 1) -> NewNeed:
    return NewNeed(uuid.uuid5(uuid.NAMESPACE_OID, name), kind, name, places)


KEYS = (
    _key("lock 1", "lock"),
    _key("lock 2", "lock"),
    _key("limit 1", "limit", 1),
    _key("limit 2", "limit", 2),
    _key("limit 3", "limit", 3),
    _key("sequence 1", "sequence"),
    _key("sequence 2", "sequence"),
)


def _variant(key: NewNeed, variant: str) -> NewNeed:
    if key.kind == "sequence":
        return key._replace(halts=variant == "skip")
    retry_us = RETRY_SECONDS * 1_000_000 if variant == "retry" else 0
    return key._replace(on_busy=variant, retry_us=retry_us)


NEEDS = st.lists(
    st.builds(_variant, st.sampled_from(KEYS), st.sampled_from(["wait"] * 4 + ["skip", "retry"])),
    max_size=3,
    unique_by=lambda need: need.key_id,
).map(tuple)
PICKS = st.lists(st.integers(0, 100), min_size=1, max_size=MOST)


@dataclass
class Modelled:
    """A job in the model."""

    message: Message
    due_at: float
    attempt: int = 0
    lease: Lease | None = None
    leased_until: float = 0.0
    is_refused: bool = False

    @property
    def needs(self) -> tuple[NewNeed, ...]:
        return tuple(self.message.needs)

    @property
    def turn(self) -> tuple[int, uuid.UUID]:
        return -self.message.priority, self.message.job_id

    def needs_key(self, key: NewNeed) -> bool:
        return any(need.key_id == key.key_id for need in self.needs)

    def has_like(self, other: Modelled) -> bool:
        """Whether two jobs differ only in their turn."""
        return (self.needs, self.message.queue) == (other.needs, other.message.queue)


@dataclass
class Model:
    """The rules of guards, and the expected state of each job."""

    jobs: dict[uuid.UUID, Modelled] = field(default_factory=dict)
    """The jobs that have not ended."""
    halted: dict[uuid.UUID, uuid.UUID] = field(default_factory=dict)
    """Sequence -> the first job that failed in it and halts it."""
    fences: dict[uuid.UUID, int] = field(default_factory=dict)
    now: float = 0.0

    def running(self) -> list[Modelled]:
        return [job for job in self.jobs.values() if job.lease is not None]

    def holders(self, key: NewNeed) -> list[Modelled]:
        return [job for job in self.running() if not job.is_refused and job.needs_key(key)]

    def first(self, sequence: NewNeed) -> uuid.UUID:
        return min(job_id for job_id, job in self.jobs.items() if job.needs_key(sequence))

    def is_busy(self, need: NewNeed, job: Modelled) -> bool:
        if need.kind == "sequence":
            return need.key_id in self.halted or self.first(need) != job.message.job_id
        return len(self.holders(need)) >= need.places

    def behind_halted(self) -> set[uuid.UUID]:
        """Return the jobs that cannot start before a failed job is dealt with: those in halted
        sequences, and those behind them in other sequences."""
        behind: set[uuid.UUID] = set()
        halted = set(self.halted)
        for job_id, job in sorted(self.jobs.items()):
            sequences = {need.key_id for need in job.needs if need.kind == "sequence"}
            if sequences & halted:
                behind.add(job_id)
                halted |= sequences
        return behind

    def end(self, job_id: uuid.UUID, *, is_failed: bool) -> None:
        job = self.jobs.pop(job_id)
        if is_failed:
            for need in job.needs:
                if need.halts:
                    self.halted.setdefault(need.key_id, job_id)


class GuardMachine(RuleBasedStateMachine):
    """Calls the broker and the model alike, and checks the rules."""

    def __init__(self) -> None:
        super().__init__()
        self.stand = OrmStand()
        self.model = Model()
        self.is_swept = False

    @initialize(is_swept=st.booleans())
    def begin(self, is_swept: bool) -> None:
        """Let half of the machines never sweep; they fail if a sweep is needed."""
        self.is_swept = is_swept

    @rule(
        queue=st.sampled_from(QUEUES),
        jobs=st.lists(
            st.tuples(NEEDS, st.sampled_from([0, 0, 0, 10, -10])), min_size=1, max_size=MOST
        ),
        delay=st.sampled_from([None, None, None, 1_000, 2_000]),
        is_committed=st.sampled_from([True, True, True, False]),
    )
    def enqueue(
        self,
        queue: str,
        jobs: list[tuple[tuple[NewNeed, ...], int]],
        delay: int | None,
        is_committed: bool,
    ) -> None:
        run_after = None if delay is None else self.stand.now() + delay
        messages = [
            message(queue=queue, priority=priority, run_after=run_after, needs=needs)
            for needs, priority in jobs
        ]
        with rolled_back_unless(is_committed, self.stand):
            self.stand.broker.enqueue(messages)
        if is_committed:
            due_at = self.model.now + (delay or 0)
            self.model.jobs |= {one.job_id: Modelled(one, due_at) for one in messages}

    @rule(
        queues=st.sampled_from([(), QUEUES, *[(queue,) for queue in QUEUES]]),
        limit=st.sampled_from([1, 1, 2, 3, 100]),
        lease_seconds=st.sampled_from(LEASE_SECONDS),
    )
    def claim(self, queues: tuple[str, ...], limit: int, lease_seconds: float) -> None:
        before = self._places()
        claimed = self.stand.broker.claim(
            ClaimRequest(limit, holder=HOLDER, lease_seconds=lease_seconds, queues=queues)
        )
        assert len(claimed) <= limit
        for one in claimed:
            job = self.model.jobs[one.job_id]
            assert job.lease is None, "it is claimed twice"
            assert not queues or one.queue in queues
            assert job.due_at <= self.model.now, "it is too early"
            job.attempt += 1
            assert one.attempt == job.attempt
            self._start(job, one, lease_seconds)
        self._check_turns(claimed, before)

    def _start(self, job: Modelled, delivery: Delivery, lease_seconds: float) -> None:
        busy = [need for need in job.needs if self.model.is_busy(need, job)]
        job.is_refused = bool(delivery.refused)
        if job.is_refused:
            assert any(need.on_busy == "skip" for need in job.needs)
        else:
            assert not busy, f"{job} runs, though there is no place under {busy}"
            for need in job.needs:
                assert delivery.fence > self.model.fences.get(need.key_id, 0)
                self.model.fences[need.key_id] = delivery.fence
        job.lease, job.leased_until = delivery.lease, self.model.now + lease_seconds

    def _check_turns(self, claimed: list[Delivery], before: dict[uuid.UUID, list[str]]) -> None:
        """Check that of two jobs that differ only in their turn, neither overtakes the other.

        Sequences have their own order, and a job deferred by on_busy=retry loses its place.
        """
        for one in claimed:
            job = self.model.jobs[one.job_id]
            if any(need.kind == "sequence" or need.on_busy == "retry" for need in job.needs):
                continue
            for job_id, other in self.model.jobs.items():
                if other.lease is None and other.has_like(job) and other.turn < job.turn:
                    assert before[job_id] == ["deferred"], f"{job} overtook {other}"

    @precondition(lambda self: self.model.running())
    @rule(picks=PICKS, is_failed=st.sampled_from([False, False, False, True]))
    def ack(self, picks: list[int], is_failed: bool) -> None:
        leases = {job.lease for job in self._pick(picks) if job.lease is not None}
        failed = {lease.job_id for lease in leases} if is_failed else set()
        assert self.stand.broker.settle(sorted(leases), failed=failed) == set()
        for lease in leases:
            self.model.end(lease.job_id, is_failed=is_failed)

    @precondition(lambda self: self.model.running())
    @rule(picks=PICKS, delay=st.sampled_from([0, 0, 1_000]), is_unstarted=st.booleans())
    def release(self, picks: list[int], delay: int, is_unstarted: bool) -> None:
        self._give_back({job.message.job_id: job for job in self._pick(picks)}, delay, is_unstarted)

    def _give_back(self, jobs: dict[uuid.UUID, Modelled], delay: int, is_unstarted: bool) -> None:
        returns = []
        for job in jobs.values():
            assert job.lease is not None
            job.attempt -= is_unstarted
            returns.append(Return(job.lease, float(delay), job.attempt))
            job.lease, job.due_at, job.is_refused = None, self.model.now + delay, False
        assert self.stand.broker.settle(again=returns) == set()

    @rule()
    def rescue(self) -> None:
        """Rescue ended leases as upkeep does, and release them at once or with a delay."""
        over = {
            job.message.job_id: job
            for job in self.model.running()
            if job.leased_until < self.model.now
        }
        rescued = self.stand.rescue()
        assert {one.job_id for one in rescued} == set(over)
        for one in rescued:
            over[one.job_id].lease = one.lease
            over[one.job_id].leased_until = self.model.now + LEASE_SECONDS[1]
        if rescued:
            self._give_back(over, 1_000 * (len(rescued) % 2), is_unstarted=False)

    @precondition(lambda self: self.model.jobs)
    @rule(picks=PICKS, is_committed=st.sampled_from([True, True, False]))
    def withdraw(self, picks: list[int], is_committed: bool) -> None:
        ids = sorted(self.model.jobs)
        some = list(dict.fromkeys(ids[pick % len(ids)] for pick in picks))
        waiting = {job_id for job_id in some if self.model.jobs[job_id].lease is None}
        with rolled_back_unless(is_committed, self.stand):
            assert self.stand.broker.withdraw(some) == waiting
        if is_committed:
            for job_id in waiting:
                del self.model.jobs[job_id]

    @precondition(lambda self: len(self.model.jobs) > 2 * MOST)
    @rule(queue=st.sampled_from(QUEUES))
    def purge(self, queue: str) -> None:
        gone = {
            job_id
            for job_id, job in self.model.jobs.items()
            if job.message.queue == queue and job.lease is None
        }
        assert self.stand.broker.purge(queue) == len(gone)
        for job_id in gone:
            del self.model.jobs[job_id]

    @rule(thousands=st.integers(1, 2))
    def let_time_go_by(self, thousands: int) -> None:
        """Advance by so much that the duration of the test itself does not matter."""
        self._advance(1_000.0 * thousands + 300)

    def _advance(self, seconds: float) -> None:
        self.stand.advance(seconds)
        self.model.now += seconds

    @precondition(lambda self: self.is_swept)
    @rule(only_lines=st.booleans())
    def sweep(self, only_lines: bool) -> None:
        if not self.model.halted:  # a dead letter would keep the needs
            alias = self.stand.settings.database
            assert sweep_keys(alias, None, 9_999, only_lines=only_lines) == (0, None)
            assert forget_needs(alias, None, 9_999) == (0, None)

    @rule()
    def come_to_rest(self) -> None:
        """Claim until no job is ready, and check that each blocked job has a reason to wait."""
        rounds = 0
        while any("ready" in places for places in self._places().values()):
            self.claim((), 2, LEASE_SECONDS[1])
            rounds += 1
            assert rounds <= 5 * len(self.model.jobs), "the claims never come to an end"
        for job_id, (place,) in self._places().items():
            job = self.model.jobs[job_id]
            if place == "blocked":
                assert any(self.model.is_busy(need, job) for need in job.needs), (
                    f"{job} waits for nothing"
                )

    @rule()
    def run_all(self) -> None:
        """Repeated claims and acks finish all jobs that no halted sequence stops."""
        for _ in range(len(self.model.jobs) + 3):
            self.claim((), 100, LEASE_SECONDS[1])
            self.claim((), 100, LEASE_SECONDS[1])
            while self.model.running():
                self.ack(list(range(100)), is_failed=False)
            self._advance(LONG_SECONDS)
        assert set(self.model.jobs) == self.model.behind_halted()

    @invariant()
    def each_job_is_in_one_place(self) -> None:
        for job_id, places in self._places().items():
            job = self.model.jobs[job_id]
            if job.lease is not None:
                assert places == ["running"]
            elif job.due_at > self.model.now:
                assert places == ["deferred"]
            else:
                assert places in (["ready"], ["blocked"], ["deferred"])
        rows = sum(model.objects.count() for model in (Ready, Blocked, Deferred, Claimed))
        assert rows == len(self.model.jobs)

    @invariant()
    def no_guard_has_too_many_jobs(self) -> None:
        holding = Counter(Need.objects.filter(holds__isnull=False).values_list("holds", flat=True))
        for key in KEYS:
            assert holding[key.key_id] <= key.places

    def teardown(self) -> None:
        """Delete everything, even if this example failed."""
        broker = self.stand.broker
        broker.settle([one.lease for one in broker.held_by(HOLDER)])
        broker.settle([one.lease for one in broker.held_by(self.stand.holder)])
        for queue in QUEUES:
            broker.purge(queue)
        for model in (Ready, Blocked, Deferred, Claimed, Need, GuardKey):
            model.objects.all().delete()

    def _pick(self, picks: list[int]) -> list[Modelled]:
        running = sorted(self.model.running(), key=lambda job: job.message.job_id)
        return [running[pick % len(running)] for pick in picks]

    def _places(self) -> dict[uuid.UUID, list[str]]:
        places: dict[uuid.UUID, list[str]] = {job_id: [] for job_id in self.model.jobs}
        tables = {"ready": Ready, "deferred": Deferred, "blocked": Blocked, "running": Claimed}
        for name, table in tables.items():
            for job_id in table.objects.values_list("pk", flat=True):
                places[job_id].append(name)
        return places


@contextmanager
def rolled_back_unless(is_committed: bool, stand: OrmStand) -> Iterator[None]:
    """Run a transaction and roll it back unless it is to be committed."""
    with suppress(Rollback), stand.atomic():
        yield
        if not is_committed:
            raise Rollback


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_guards_agree_with_the_model(
    times: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orm_claim, "PROMOTE_SECONDS", 0)  # promote due jobs with every claim
    bounded = settings(
        max_examples=times * EXAMPLES[connection.vendor],
        stateful_step_count=50,
        deadline=None,
        database=None,
        phases=(Phase.generate,),  # shrinking takes minutes
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(hypothesis.seed(seed)(GuardMachine), settings=bounded)
