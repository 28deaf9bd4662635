"""Concurrent jobs under a few keys: never too many at once, no job is lost or waits for ever, and
claims and acks do not deadlock."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

import pytest
from django.db import connection, transaction
from psycopg import IsolationLevel

from stoker.brokers.contract import Broker, ClaimRequest, Delivery, Return
from stoker.brokers.orm import broker as orm
from stoker.brokers.orm import claim as orm_claim
from stoker.guards.sweep import sweep_keys
from stoker.models import GuardKey
from stoker.models.job import Message
from stoker.models.need import NewNeed
from stoker.store.statements import deciding
from stoker.store.transactions import is_conflict

from tests.conformance.overlaps import Overlaps
from tests.conformance.stands import OrmStand, message
from tests.conformance.threads import PATIENCE_SECONDS, together

pytestmark = pytest.mark.django_db(transaction=True)
T = TypeVar("T")
QUEUES = ("a", "b")
REPEATABLE = "repeatable read"
TRANSACTIONS = {"sqlite": 10, "postgresql": 40, "mysql": 30}
"""Per enqueuing thread."""


def _key(name: str, kind: str, places: int = 1) -> NewNeed:
    return NewNeed(uuid.uuid5(uuid.NAMESPACE_OID, name), kind, name, places)


KEYS = (
    _key("lock 1", "lock"),
    _key("lock 2", "lock"),
    _key("limit 1", "limit", 1),
    _key("limit 2", "limit", 2),
    _key("limit 5", "limit", 5),
    _key("sequence", "sequence"),
)


class Rollback(Exception):
    """Raised to roll a transaction back."""


class Crowd:
    """The concurrent enqueuers, runners, withdrawers and upkeep, and their shared records."""

    def __init__(self, seed: int) -> None:
        self.overlaps = Overlaps()
        self.conflicts: Counter[tuple[str, str]] = Counter()
        """(method, error) -> how often the database ended its transaction."""
        self._seed = seed
        self._jobs: dict[uuid.UUID, Message] = {}
        self._ended: Counter[uuid.UUID] = Counter()
        self._lock = threading.Lock()
        self._enqueuing = 0

    def enqueuer(self, number: int) -> Callable[[Broker], None]:
        self._enqueuing += 1
        return partial(self._enqueue_all, random.Random(f"{self._seed} enqueuer {number}"))

    def runner(self, number: int) -> Callable[[Broker], None]:
        return partial(self._run_all, random.Random(f"{self._seed} runner {number}"))

    def withdrawer(self, number: int) -> Callable[[Broker], None]:
        return partial(self._withdraw_some, random.Random(f"{self._seed} withdrawer {number}"))

    def upkeep(self, look: Callable[[], object]) -> Callable[[Broker], None]:
        return partial(self._keep_up, look)

    @property
    def open_jobs(self) -> list[uuid.UUID]:
        with self._lock:
            return [job_id for job_id in self._jobs if job_id not in self._ended]

    @property
    def is_over(self) -> bool:
        return not self._enqueuing and not self.open_jobs

    def check(self) -> None:
        """Check that no guard was exceeded and each job ended exactly once."""
        assert not self.overlaps.faults
        assert self.open_jobs == []
        assert {job_id for job_id, times in self._ended.items() if times > 1} == set()
        assert set(self._ended) == set(self._jobs)

    # -- what they do -----------------------------------------------------------------------------

    def _enqueue_all(self, choose: random.Random, broker: Broker) -> None:
        try:
            for number in range(TRANSACTIONS[connection.vendor]):
                messages = [self._message(choose) for _ in range(choose.randint(1, 4))]
                is_committed = number % 2 == 0
                enqueue = partial(self._enqueue, broker, messages, is_committed, choose.random())
                self._patiently("enqueue", enqueue)
        finally:
            with self._lock:
                self._enqueuing -= 1

    def _enqueue(
        self, broker: Broker, messages: list[Message], is_committed: bool, dawdling: float
    ) -> None:
        with suppress(Rollback), transaction.atomic():
            broker.enqueue(messages)
            time.sleep(dawdling * 0.01)
            if not is_committed:
                raise Rollback
            # Before the commit, because a runner looks a claimed job up here.
            with self._lock:
                self._jobs |= {one.job_id: one for one in messages}

    def _message(self, choose: random.Random) -> Message:
        needs = choose.sample(KEYS, choose.randint(0, 3))
        if choose.random() < 0.5:
            needs.append(_key(f"once {choose.randint(0, 20)}", "lock"))
        return message(
            queue=choose.choice(QUEUES), priority=choose.choice([0, 0, 5]), needs=tuple(needs)
        )

    def _run_all(self, choose: random.Random, broker: Broker) -> None:
        holder = uuid.uuid4()
        deadline = time.monotonic() + 2 * PATIENCE_SECONDS
        held: list[Delivery] = []
        while not (self.is_over and not held) and time.monotonic() < deadline:
            if held and choose.random() < 0.3:
                extend = partial(broker.extend, [one.lease for one in held], lease_seconds=600)
                assert self._patiently("extend", extend) == set()
            limit = choose.choice([1, 2, 5, 20])
            wanted = ClaimRequest(limit, holder, 600, choose.choice([(), QUEUES]))
            claim = partial(broker.claim, wanted)
            for one in self._patiently("claim", claim):
                self.overlaps.enter(one.job_id, self._jobs[one.job_id].needs)
                held.append(one)
            choose.shuffle(held)
            self._finish_some(choose, broker, [held.pop() for _ in held[: choose.randint(0, 8)]])

    def _finish_some(self, choose: random.Random, broker: Broker, done: list[Delivery]) -> None:
        again = [one for one in done if one.attempt < 3 and choose.random() < 0.3]
        over = [one for one in done if one not in again]
        for one in done:
            self.overlaps.leave(one.job_id, self._jobs[one.job_id].needs)
        if over:
            ack = partial(broker.settle, [one.lease for one in over])
            assert self._patiently("ack", ack) == set()
            with self._lock:
                self._ended.update(one.job_id for one in over)
        if again:
            returns = [Return(one.lease, choose.choice([0.0, 0.01]), one.attempt) for one in again]
            assert self._patiently("release", partial(broker.settle, (), returns)) == set()

    def _withdraw_some(self, choose: random.Random, broker: Broker) -> None:
        while self._enqueuing:
            some = self.open_jobs
            some = choose.sample(some, min(len(some), choose.randint(1, 3)))
            is_committed = choose.random() < 0.5
            withdraw = partial(self._withdraw, broker, some, is_committed, choose.random())
            gone = self._patiently("withdraw", withdraw)
            time.sleep(0.02)  # else no other writer gets a turn on SQLite
            with self._lock:
                self._ended.update(gone)

    def _withdraw(
        self, broker: Broker, some: list[uuid.UUID], is_committed: bool, dawdling: float
    ) -> set[uuid.UUID]:
        gone: set[uuid.UUID] = set()
        with suppress(Rollback), transaction.atomic():
            gone = broker.withdraw(some)
            time.sleep(dawdling * 0.01)
            if not is_committed:
                gone = set()
                raise Rollback
        return gone

    def _keep_up(self, look: Callable[[], object], broker: Broker) -> None:
        while self._enqueuing:
            self._patiently("upkeep", look)
            time.sleep(0.01)

    def _patiently(self, verb: str, call: Callable[[], T]) -> T:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return call()
            except Exception as error:
                if not is_conflict(error) or time.monotonic() > deadline:
                    raise
                with self._lock:
                    self.conflicts[verb, str(error)] += 1


def _forget_keys() -> None:
    """Delete unused keys as the sweep does, but repair nothing."""
    with deciding("default"):
        some = list(GuardKey.objects.order_by("pk").values_list("pk", flat=True)[:200])
        GuardKey.objects.forget(GuardKey.objects.lock(some))


def _sweep() -> None:
    sweep_keys("default", None, 200, only_lines=False)


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(_forget_keys, id="forgetting"),
        pytest.param(_sweep, id="sweeping", marks=pytest.mark.slow),
    ],
)
def test_concurrent_processes_keep_to_guards_without_deadlocks(
    look: Callable[[], object], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A withdrawal skips locked jobs. Only if they stay locked, as on a busy machine, does it wait
    for them at last, and then it may be the victim of a deadlock."""
    monkeypatch.setattr(orm_claim, "PROMOTE_SECONDS", 0)  # promote due jobs with every claim
    # Never wait, but on MariaDB: its locks of gaps may let an ack wait for the withdrawal, which
    # would then go round for as long as the ack waits.
    pauses = 200 if connection.vendor == "mysql" else 10_000
    monkeypatch.setattr(orm, "PAUSES_SECONDS", (0.01,) * pauses + (None, None))
    crowd = go(seed, look)
    crowd.check()
    # InnoDB also locks the gaps between rows, and may choose a victim though all transactions lock
    # rows in one order. The callers repeat such a transaction. In a wrong order there were twenty.
    most = 2 if connection.vendor == "mysql" else 0
    assert crowd.conflicts.total() <= most, crowd.conflicts


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.usefixtures("_repeatable_read")
def test_concurrent_processes_keep_to_guards_under_repeatable_read(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A withdrawal in the caller's transaction may conflict and succeeds on retry. So may upkeep,
    because MariaDB locks the gaps between rows at this level. Claims and acks never conflict."""
    monkeypatch.setattr(orm_claim, "PROMOTE_SECONDS", 0)
    crowd = go(seed, _forget_keys)
    crowd.check()
    assert {verb for verb, _ in crowd.conflicts} <= {"withdraw", "upkeep"}


@pytest.fixture
def _repeatable_read() -> Iterator[None]:
    level = IsolationLevel.REPEATABLE_READ if connection.vendor == "postgresql" else REPEATABLE
    options = connection.settings_dict["OPTIONS"]
    connection.close()
    options["isolation_level"] = level
    yield
    connection.close()
    del options["isolation_level"]


def go(seed: int, look: Callable[[], object]) -> Crowd:
    """Run all of them concurrently."""
    stand = OrmStand()
    crowd = Crowd(seed)
    jobs = [crowd.enqueuer(number) for number in range(2)]
    jobs += [crowd.runner(number) for number in range(4)]
    jobs += [crowd.withdrawer(0), crowd.upkeep(look)]
    together(stand, *jobs)
    return crowd
