"""Claims: which jobs they take, in which order, when, and what they count."""

from __future__ import annotations

import time
import uuid

import pytest

from stoker.brokers.contract import CLAIM_BYTES, ClaimRequest, Delivery, Return
from stoker.models import PausedQueue

from tests.cluster.clusters import wait_for
from tests.conformance.stands import LEASE_SECONDS, Stand, message


def test_claims_jobs_first_in_first_out(stand: Stand) -> None:
    put = [stand.put()[0] for _ in range(20)]
    assert [delivery.job_id for delivery in stand.claim(8)] == put[:8]
    assert [delivery.job_id for delivery in stand.claim()] == put[8:]


def test_slow_claim_still_finds_a_job(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped for a while must not report an empty queue."""
    monkeypatch.setattr("stoker.brokers.orm.broker.LOOK_BEHIND_SECONDS", -1.0)
    (job_id,) = stand.put()
    assert stand.claim_one().job_id == job_id


def test_claims_highest_priority_first_then_oldest(stand: Stand) -> None:
    stand.needs("priority")
    priorities = [0, -100, 100, 1, -1, 100, 50, 0]
    ids = {stand.put(priority=priority)[0]: priority for priority in priorities}
    wanted = sorted(ids, key=lambda job_id: (-ids[job_id], job_id))
    claimed = [stand.claim_one() for _ in range(4)] + stand.claim()
    assert [delivery.job_id for delivery in claimed] == wanted
    assert [delivery.priority for delivery in claimed] == sorted(priorities, reverse=True)


def test_several_queues_are_claimed_by_priority_and_age(stand: Stand) -> None:
    """Priority and then age decide among all queues of a claim."""
    stand.needs("priority")
    if not stand.orders_queues:
        pytest.skip("its queues are in several slots, and priorities order the jobs of one slot")
    (low,) = stand.put(queue="mail", priority=-1)
    (first,) = stand.put(queue="mail")
    (second,) = stand.put(queue="reports")
    (high,) = stand.put(queue="reports", priority=1)
    claimed = stand.claim(3, "reports", "mail") + stand.claim(3, "reports", "mail")
    assert [delivery.job_id for delivery in claimed] == [high, first, second, low]


def test_claim_takes_only_jobs_of_its_queues(stand: Stand) -> None:
    (mail,) = stand.put(queue="mail")
    (report,) = stand.put(queue="reports")
    assert stand.claim(10, "nobody's") == []
    assert [delivery.job_id for delivery in stand.claim(10, "reports")] == [report]
    assert stand.claim(10, "reports") == []
    assert [delivery.job_id for delivery in stand.claim(10, "reports", "mail")] == [mail]


def test_claim_without_queues_takes_from_every_queue(stand: Stand) -> None:
    put = [stand.put(queue=queue)[0] for queue in ("b", "a", "a", "c")]
    claimed = stand.broker.claim(ClaimRequest(10, holder=stand.holder, lease_seconds=60))
    assert [delivery.job_id for delivery in claimed] == put
    assert [delivery.queue for delivery in claimed] == ["b", "a", "a", "c"]


def test_passed_over_queue_is_not_claimed(stand: Stand) -> None:
    for queue in ("a", "b", "a", "c"):
        stand.put(queue=queue)
    stand.put(queue="a", run_after=stand.now() - 1)
    leased = {"holder": stand.holder, "lease_seconds": 60, "passed_over": {"a"}}
    claimed = [
        stand.broker.claim(ClaimRequest(1, **leased, queues=named))[0]
        for named in ((), ("a", "b", "c"))
    ]
    found = [delivery.queue for delivery in claimed]
    assert (found if stand.capabilities.look_up else sorted(found)) == ["b", "c"]
    assert stand.broker.claim(ClaimRequest(10, **leased)) == []
    assert stand.claim(10, "a", passed_over={"a"}) == []
    assert [one.queue for one in stand.claim(10, "a", passed_over={"b"})] == ["a"] * 3


def test_queue_named_twice_counts_once(stand: Stand) -> None:
    put = stand.put(3)
    claimed = stand.claim(2, "default", "default")
    assert [delivery.job_id for delivery in claimed] == put[:2]


def test_claims_no_more_than_the_limit(stand: Stand) -> None:
    for queue in ("a", "b", "c"):
        stand.put(5, queue=queue)
    assert len(stand.claim(4, "a", "b", "c")) == 4
    assert len(stand.claim(100, "a", "b", "c")) == 11


def test_limit_counts_deferred_jobs_too(stand: Stand) -> None:
    stand.put(3)
    stand.put(5, run_after=stand.now() - 1)
    assert len(stand.claim(4)) == 4
    assert len(stand.claim(100)) == 4


def test_claimed_job_is_not_claimed_again(stand: Stand) -> None:
    stand.put(3)
    assert len(stand.claim()) == 3
    assert stand.claim() == []
    assert stand.claim(holder=uuid.uuid4()) == []


def test_every_claim_makes_a_fresh_lease_id(stand: Stand) -> None:
    stand.put()
    seen = set()
    for _ in range(5):
        delivery = stand.claim_one()
        seen.add(delivery.lease_id)
        stand.broker.settle(again=[Return(delivery.lease)])
    assert len(seen) == 5


def test_deferred_job_is_claimed_only_when_due(stand: Stand) -> None:
    (job_id,) = stand.put(run_after=stand.now() + 600)
    assert stand.claim() == []
    assert stand.where(job_id) == ("deferred" if stand.capabilities.look_up else "ready")
    stand.advance(300)
    assert stand.claim() == []
    stand.advance(300.5)
    assert [delivery.job_id for delivery in stand.claim()] == [job_id]
    assert stand.claim() == []


def test_due_job_does_not_make_a_later_job_ready(stand: Stand) -> None:
    """A broker that moves due jobs in bulk must not move later ones, too."""
    due_at = stand.now() + 0.25
    stand.put(run_after=stand.now() - 1)
    stand.put(run_after=due_at)
    claimed: list[Delivery] = []

    def are_claimed() -> bool:
        claimed.extend(stand.claim())
        return len(claimed) == 2

    wait_for(are_claimed)
    assert stand.now() >= due_at


def test_deferred_job_is_not_claimed_early_on_the_real_clock(stand: Stand) -> None:
    due_at = stand.now() + 0.25
    stand.put(run_after=due_at)
    claimed: list[Delivery] = []

    def is_claimed() -> bool:
        claimed.extend(stand.claim())
        return bool(claimed)

    wait_for(is_claimed)
    assert stand.now() >= due_at
    assert len(claimed) == 1


def test_run_after_in_the_past_is_claimed_at_once(stand: Stand) -> None:
    (job_id,) = stand.put(run_after=stand.now() - 1_000)
    assert [delivery.job_id for delivery in stand.claim()] == [job_id]


def test_next_due_seconds_counts_to_the_next_deferred_job(stand: Stand) -> None:
    stand.needs("look_up")
    stand.put()
    assert stand.broker.next_due_seconds() is None
    stand.put(run_after=stand.now() + 1000)
    stand.put(run_after=stand.now() + 500)
    assert stand.broker.next_due_seconds() == pytest.approx(500, abs=60)
    stand.advance(600)
    assert stand.broker.next_due_seconds() == 0
    stand.claim()
    assert stand.broker.next_due_seconds() == pytest.approx(400, abs=60)


def test_next_due_seconds_after_an_empty_claim_sees_later_jobs(stand: Stand) -> None:
    stand.needs("look_up")
    assert stand.claim() == []
    assert stand.broker.next_due_seconds() is None
    stand.put(run_after=stand.now() + 500)
    assert stand.broker.next_due_seconds() == pytest.approx(500, abs=60)
    assert stand.claim() == []
    assert stand.broker.next_due_seconds() == pytest.approx(500, abs=60)
    stand.put(run_after=stand.now() + 100)
    assert stand.broker.next_due_seconds() == pytest.approx(100, abs=60)
    stand.advance(200)
    assert stand.broker.next_due_seconds() == 0


def test_urgent_due_job_is_claimed_before_the_backlog(stand: Stand) -> None:
    """While claims come back full, a more urgent job may fall due."""
    stand.needs("priority")
    stand.put(stand.many(300))
    stand.claim(1)
    (urgent,) = stand.put(priority=100, run_after=stand.now() + 10)
    stand.advance(11)
    claimed = 0
    while urgent not in {delivery.job_id for delivery in stand.claim(1)}:
        claimed += 1
        assert claimed < 250, "the urgent job waited behind the backlog"
        time.sleep(0.005)


def test_due_jobs_are_claimed_by_priority_and_age(stand: Stand) -> None:
    stand.needs("priority")
    low, high, later = message(run_after=1.0), message(run_after=2.0, priority=1), message()
    stand.broker.enqueue([later])
    stand.broker.enqueue([high, low])
    assert [delivery.job_id for delivery in stand.claim()] == [
        high.job_id,
        low.job_id,
        later.job_id,
    ]


def test_attempts_are_counted_when_claimed(stand: Stand) -> None:
    stand.put()
    for attempt in (1, 2, 3):
        delivery = stand.claim_one()
        assert (delivery.attempt, delivery.crashes) == (attempt, 0)
        stand.broker.settle(again=[Return(delivery.lease, attempts=attempt)])


def test_release_can_give_an_attempt_back(stand: Stand) -> None:
    stand.put()
    for _ in range(3):
        delivery = stand.claim_one()
        assert delivery.attempt == 1
        stand.broker.settle(again=[Return(delivery.lease, attempts=delivery.attempt - 1)])


def test_crashes_are_kept_across_releases(stand: Stand) -> None:
    stand.put()
    delivery = stand.claim_one()
    stand.broker.settle(again=[Return(delivery.lease, 0.0, attempts=1, crashes=1)])
    delivery = stand.claim_one()
    assert (delivery.attempt, delivery.crashes) == (2, 1)
    stand.broker.settle(again=[Return(delivery.lease, 10.0, attempts=2, crashes=2)])
    stand.advance(11)
    delivery = stand.claim_one()
    assert (delivery.attempt, delivery.crashes) == (3, 2)


def test_broker_that_sees_pauses_claims_nothing_from_paused_queues(stand: Stand) -> None:
    if not getattr(stand.broker, "sees_pauses", False):
        pytest.skip(f"{type(stand.broker).__name__} does not read pauses")
    mail, other = stand.put(queue="mail"), stand.put(queue="default", priority=-1)
    PausedQueue.objects.pause("mail", "", "")
    assert [one.job_id for one in stand.claim(1, "mail", "default")] == other
    assert not stand.claim(1, "mail")
    PausedQueue.objects.resume("mail")
    assert [one.job_id for one in stand.claim(1, "mail")] == mail


LONG = b"x" * (3 << 20)


def test_claim_is_bounded_by_bytes(stand: Stand) -> None:
    """Jobs for which a claim has no room wait, and lose no attempt."""
    stand.needs_long_packages()
    put = [stand.put(package=LONG)[0] for _ in range(12)]
    found: list[uuid.UUID] = []
    while claimed := stand.claim(500):
        assert sum(len(one.package) for one in claimed) <= CLAIM_BYTES
        assert {one.attempt for one in claimed} == {1}
        assert {one.package for one in claimed} == {LONG}
        found += [one.job_id for one in claimed]
    assert found == put


def test_package_longer_than_a_claim_is_claimed_alone(stand: Stand) -> None:
    stand.needs_long_packages()
    longer = b"x" * (CLAIM_BYTES * 7 // 8)
    put = [stand.put(package=longer)[0] for _ in range(2)]
    assert [one.job_id for one in stand.claim()] == put[:1]
    assert [one.job_id for one in stand.claim()] == put[1:]


def test_rescue_is_bounded_by_bytes(stand: Stand) -> None:
    stand.needs_long_packages()
    put = {stand.put(package=LONG)[0] for _ in range(7)}
    while stand.claim(500):
        pass
    stand.advance(2 * LEASE_SECONDS)
    found: list[Delivery] = []
    while rescued := stand.rescue(500):
        assert sum(len(one.package) for one in rescued) <= CLAIM_BYTES
        found += rescued
    assert {one.job_id for one in found} == put
    assert len(found) == len(put)
    assert {one.attempt for one in found} == {1}


def test_short_jobs_of_higher_priority_come_with_long_ones(stand: Stand) -> None:
    stand.needs_long_packages()
    long = [stand.put(package=LONG)[0] for _ in range(7)]
    stand.claim(1)
    short = [stand.put(priority=5)[0] for _ in range(3)]
    claimed = [one.job_id for one in stand.claim(500)]
    assert claimed[:3] == short
    assert claimed[3:] == long[1 : len(claimed) - 2]
