"""Concurrent calls: a job has at most one valid lease and always has a state."""

from __future__ import annotations

import random
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from stoker.brokers.contract import Broker, ClaimRequest, Delivery, Lease, Return
from stoker.models.job import Message

from tests.cluster.clusters import wait_for
from tests.conformance.ledger import Ledger
from tests.conformance.programs import claim
from tests.conformance.server_stands import MongodbStand
from tests.conformance.stands import LEASE_SECONDS, Stand, message
from tests.conformance.threads import PATIENCE_SECONDS, patiently, together
from tests.locks.processes import started


def test_threads_claim_every_job_once(stand: Stand) -> None:
    put = stand.put(stand.many(600)) + stand.put(stand.many(200), run_after=stand.now() - 1)
    claimed: list[Delivery] = []
    together(stand, *[_claim_all(claimed, len(put))] * 8)
    assert_each_once([delivery.job_id for delivery in claimed], put)
    assert stand.broker.sizes()["default"]["running"] == len(put)


def test_threads_sharing_a_broker_claim_every_job_once(stand: Stand) -> None:
    """The threads of a web process share one broker."""
    put = stand.put(stand.many(600))
    claimed: list[Delivery] = []
    claim_all = _claim_all(claimed, len(put))
    with switching_often():
        together(stand, *[lambda _: claim_all(stand.broker)] * 6)
    assert_each_once([delivery.job_id for delivery in claimed], put)
    assert stand.broker.sizes()["default"]["running"] == len(put)


def test_processes_claim_every_job_once(shared_stand: Stand) -> None:
    stand = shared_stand
    put = stand.put(stand.many(600)) + stand.put(stand.many(200), run_after=stand.now() - 1)
    with ExitStack() as stack:
        others = [stack.enter_context(started(claim, stand.place)) for _ in range(4)]
        for other in others:
            other.say("claim")
        claimed = [job_id for other in others for job_id in other.hear()]

    def are_all_claimed() -> bool:
        claimed.extend(delivery.job_id for delivery in stand.claim())
        return len(claimed) >= len(put)

    wait_for(are_all_claimed)
    assert_each_once(claimed, put)


def test_concurrent_rescues_take_every_job_once(stand: Stand) -> None:
    stand.needs_leases_of_its_own()
    put = stand.put(stand.many(300))
    stand.claim(300)
    stand.advance(LEASE_SECONDS + 1)
    rescued: list[Delivery] = []

    def rescue_all(broker: Broker) -> None:
        holder, deadline = uuid.uuid4(), time.monotonic() + PATIENCE_SECONDS
        while len(rescued) < len(put) and time.monotonic() < deadline:
            rescued.extend(
                patiently(
                    lambda: broker.claim_expired(ClaimRequest(7, holder=holder, lease_seconds=60))
                )
            )

    together(stand, *[rescue_all] * 6)
    assert_each_once([delivery.job_id for delivery in rescued], put)


def test_id_enqueued_by_many_threads_is_added_once(stand: Stand) -> None:
    def enqueue(job: Message, broker: Broker) -> None:
        patiently(lambda: broker.enqueue([job]))

    for _ in range(10):
        job = message()
        together(stand, *[partial(enqueue, job)] * 6)
        assert [delivery.job_id for delivery in stand.claim()] == [job.job_id]


def test_job_is_withdrawn_or_claimed_but_never_both(stand: Stand) -> None:
    stand.needs("look_up")
    put = stand.put(200)

    def withdraw(broker: Broker) -> set[uuid.UUID]:
        gone: set[uuid.UUID] = set()
        for job_id in reversed(put):
            gone |= patiently(partial(broker.withdraw, [job_id]))
        return gone

    def claim(broker: Broker) -> set[uuid.UUID]:
        got: set[uuid.UUID] = set()
        for _ in range(len(put)):
            claimed = patiently(
                lambda: broker.claim(
                    ClaimRequest(1, holder=stand.holder, lease_seconds=60, queues=["default"])
                )
            )
            got |= {delivery.job_id for delivery in claimed}
        return got

    withdrawn, claimed = together(stand, withdraw, claim)
    assert not withdrawn & claimed
    assert withdrawn | claimed == set(put)


def test_moving_job_always_has_a_state(stand: Stand) -> None:
    stand.needs("look_up")
    (job_id,) = stand.put()
    is_over, looks = threading.Event(), 0

    def move(broker: Broker) -> None:
        """Move the job until it was moved and looked up often enough."""
        moves, deadline = 0, time.monotonic() + PATIENCE_SECONDS
        try:
            while moves < 60 or (looks < 30 and time.monotonic() < deadline):
                claimed: list[Delivery] = []
                while not claimed:
                    claimed = patiently(
                        lambda: broker.claim(
                            ClaimRequest(
                                1, holder=stand.holder, lease_seconds=60, queues=["default"]
                            )
                        )
                    )
                back = Return(claimed[0].lease, moves % 2 * 0.001)
                patiently(partial(broker.settle, (), [back]))
                moves += 1
        finally:
            is_over.set()

    def look(broker: Broker) -> set[str | None]:
        nonlocal looks
        seen = set()
        while not is_over.is_set():
            seen.add(patiently(lambda: broker.states([job_id])).get(job_id))
            looks += 1
        return seen

    _, seen = together(stand, move, look)
    assert seen
    assert None not in seen


def test_crossing_batches_do_not_deadlock(stand: Stand, seed: int) -> None:
    """The pusher extends leases while the monitor acks them in another order."""
    stand.needs_leases_of_its_own()
    stand.put(stand.many(1_600))
    leases = [delivery.lease for delivery in stand.claim(1_600)]
    is_over = threading.Event()

    def extend(broker: Broker, choose: random.Random) -> set[Lease]:
        stale: set[Lease] = set()
        while not is_over.is_set():
            batch = choose.sample(leases, len(leases))
            stale |= broker.extend(batch, lease_seconds=60)
        return stale

    def finish(broker: Broker, choose: random.Random) -> set[Lease]:
        stale: set[Lease] = set()
        batch = choose.sample(leases, len(leases))
        try:
            for at in range(0, len(batch), 80):
                stale |= broker.settle(batch[at : at + 40])
                stale |= broker.settle(again=[Return(lease) for lease in batch[at + 40 : at + 80]])
        finally:
            is_over.set()
        return stale

    jobs = [_seeded(extend, seed), _seeded(extend, seed + 1), _seeded(finish, seed + 2)]
    *_, stale = together(stand, *jobs)
    assert stale == set()


def test_random_concurrent_calls_never_make_two_leases_valid(stand: Stand, seed: int) -> None:
    """The calls are enqueue, claim, extend, ack, release and rescue, with leases so short that they
    end in between. The ledger is checked at the end."""
    stand.needs_leases_of_its_own()
    ledger = Ledger()

    def live(broker: Broker, choose: random.Random) -> None:
        holder = uuid.uuid4()
        held: list[Delivery] = []
        for _ in range(120):
            verb = choose.choices(ledger.VERBS, ledger.WEIGHTS)[0]
            held = ledger.do(verb, broker, holder, held, choose)

    together(stand, *[_seeded(live, f"{seed} {number}") for number in range(5)])
    stand.advance(60)
    finish_all(stand, ledger)
    ledger.check(leases_in_two_steps=isinstance(stand, MongodbStand))


def _claim_all(claimed: list[Delivery], total: int) -> Callable[[Broker], None]:
    """Return a function that claims until all threads together have this many jobs."""

    def claim_all(broker: Broker) -> None:
        holder, deadline = uuid.uuid4(), time.monotonic() + PATIENCE_SECONDS
        while len(claimed) < total and time.monotonic() < deadline:
            claimed.extend(
                patiently(
                    lambda: broker.claim(
                        ClaimRequest(7, holder=holder, lease_seconds=60, queues=["default"])
                    )
                )
            )

    return claim_all


@contextmanager
def switching_often() -> Iterator[None]:
    """Make Python switch threads after every few instructions."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def finish_all(stand: Stand, ledger: Ledger) -> None:
    """Rescue, claim and ack until no job is left."""
    while batch := stand.rescue(1_000) + stand.claim(1_000):
        assert stand.broker.settle([delivery.lease for delivery in batch]) == set()
        ledger.acked.extend(delivery.job_id for delivery in batch)


def assert_each_once(claimed: list[uuid.UUID], put: list[uuid.UUID]) -> None:
    """Assert that every job was claimed exactly once."""
    doubled = {job_id: times for job_id, times in Counter(claimed).items() if times > 1}
    assert not doubled
    assert sorted(claimed) == sorted(put)


def _seeded(
    job: Callable[[Broker, random.Random], object], seed: int | str
) -> Callable[[Broker], object]:
    return lambda broker: job(broker, random.Random(seed))
