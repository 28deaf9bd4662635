"""Leases: which holder may change a job, for how long, and how a job is rescued."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from stoker.brokers.contract import Delivery, Lease, Return
from stoker.brokers.dispatch import Dispatch
from stoker.values.ids import new_job_id, new_lease_id

from tests.conformance.stands import LEASE_SECONDS, MemoryStand, Stand

Use = Callable[[Stand, list[Lease]], set[Lease]]

USES: dict[str, Use] = {
    "extend": lambda stand, leases: stand.broker.extend(leases, lease_seconds=LEASE_SECONDS),
    "ack": lambda stand, leases: stand.broker.settle(leases),
    "release": lambda stand, leases: stand.broker.settle(
        again=[Return(lease, attempts=1) for lease in leases]
    ),
    "release later": lambda stand, leases: stand.broker.settle(
        again=[Return(lease, delay_seconds=10, attempts=1) for lease in leases]
    ),
}


@pytest.fixture(params=USES)
def use(request: pytest.FixtureRequest) -> Use:
    """Return one of the calls that take leases."""
    return USES[request.param]


def test_valid_lease_is_not_stale(stand: Stand, use: Use) -> None:
    stand.put(3)
    assert use(stand, [delivery.lease for delivery in stand.claim()]) == set()


def test_begun_settlement_takes_effect_when_it_is_ended(stand: Stand) -> None:
    stand.put(4)
    broker = stand.broker.store if isinstance(stand.broker, Dispatch) else stand.broker
    assert broker is not None
    acked, over, again, kept = stand.claim()
    ends = [
        broker.begin_settle([acked.lease]),
        broker.begin_settle([over.lease], [Return(again.lease, attempts=1)]),
    ]
    assert stand.where(kept.job_id) == "running"
    for end in ends:
        end()
    jobs = (acked, over, again, kept)
    assert [stand.where(one.job_id) for one in jobs] == [None, None, "ready", "running"]


def test_acked_job_is_gone(stand: Stand) -> None:
    stand.put(2)
    done, other = stand.claim()
    assert stand.broker.settle([done.lease]) == set()
    assert stand.where(done.job_id) is None
    assert stand.where(other.job_id) == "running"
    stand.advance(LEASE_SECONDS + 1)
    assert [delivery.job_id for delivery in stand.rescue()] == [other.job_id]


@pytest.mark.parametrize("is_late_first", [True, False])
def test_ack_with_an_old_and_a_new_lease_accepts_only_the_new(
    stand: Stand, *, is_late_first: bool
) -> None:
    """This happens with two workers of a cluster, the first of which was thought to be dead."""
    stand.put(2)
    late, other = stand.claim()
    stand.advance(LEASE_SECONDS + 1)
    now = next(one for one in stand.rescue() if one.job_id == late.job_id)
    leases = [late.lease, now.lease] if is_late_first else [now.lease, late.lease]
    assert stand.broker.settle([*leases, other.lease]) == {late.lease, other.lease}
    assert (stand.where(late.job_id), stand.where(other.job_id)) == (None, "running")


def test_job_is_kept_from_its_claim_until_it_is_handed_out(stand: Stand) -> None:
    if isinstance(stand, MemoryStand):
        pytest.skip("jobs in memory are lost with their process")
    stand.put(3)
    first, second, third = stand.claim()

    def kept() -> set[uuid.UUID]:
        return stand.broker.kept([first.lease, second.lease, third.lease])

    assert kept() == {first.job_id, second.job_id, third.job_id}
    stand.broker.note_handed_out([first.lease, third.lease])
    assert kept() == {second.job_id}
    stand.broker.settle(again=[Return(third.lease)])
    assert kept() == {second.job_id}
    assert [one.job_id for one in stand.claim()] == [third.job_id]
    assert kept() == {second.job_id, third.job_id}
    stand.advance(LEASE_SECONDS + 1)
    assert {one.job_id for one in stand.rescue()} == {first.job_id, second.job_id, third.job_id}
    assert kept() == {second.job_id, third.job_id}
    stand.broker.note_handed_out([second.lease])
    assert second.job_id in kept(), "the lease is stale"


def test_released_job_waits_again(stand: Stand) -> None:
    stand.put(2)
    now, later = stand.claim()
    stand.broker.settle(
        again=[Return(now.lease, attempts=1), Return(later.lease, 10.0, attempts=1)]
    )
    assert stand.broker.states([now.job_id, later.job_id]) == {
        now.job_id: "ready",
        later.job_id: "deferred",
    }
    assert [delivery.job_id for delivery in stand.claim()] == [now.job_id]
    stand.advance(11)
    (delivery,) = stand.claim()
    assert delivery.job_id == later.job_id
    assert (delivery.package, delivery.queue, delivery.attempt) == (b"package", "default", 2)


def test_released_job_keeps_its_place_in_the_queue(stand: Stand) -> None:
    stand.needs("priority")
    put = stand.put(3) + stand.put(1, priority=-1)
    first = stand.claim_one()
    stand.broker.settle(again=[Return(first.lease)])
    assert [delivery.job_id for delivery in stand.claim()] == put


def test_unknown_lease_is_stale(stand: Stand, use: Use) -> None:
    stand.put()
    delivery = stand.claim_one()
    wrong_id = Lease(delivery.job_id, new_lease_id())
    wrong_job = Lease(new_job_id(), delivery.lease_id)
    assert use(stand, [wrong_id, wrong_job]) == {wrong_id, wrong_job}
    assert_untouched(stand, delivery)


def test_lease_of_a_released_job_is_stale(stand: Stand, use: Use) -> None:
    stand.put()
    delivery = stand.claim_one()
    stand.broker.settle(again=[Return(delivery.lease, attempts=1)])
    assert use(stand, [delivery.lease]) == {delivery.lease}
    assert stand.where(delivery.job_id) == "ready"
    assert stand.claim_one().attempt == 2


def test_lease_of_an_acked_job_is_stale(stand: Stand, use: Use) -> None:
    stand.put()
    delivery = stand.claim_one()
    stand.broker.settle([delivery.lease])
    assert use(stand, [delivery.lease]) == {delivery.lease}
    assert stand.where(delivery.job_id) is None


def test_lease_from_before_a_release_is_stale(stand: Stand, use: Use) -> None:
    stand.put()
    before = stand.claim_one()
    stand.broker.settle(again=[Return(before.lease, attempts=1)])
    now = stand.claim_one()
    assert use(stand, [before.lease]) == {before.lease}
    assert_untouched(stand, now)


def test_late_owner_changes_nothing(stand: Stand, use: Use) -> None:
    """The lease ended and the job was rescued, so calls with the old lease have no effect."""
    stand.put()
    late = stand.claim_one()
    stand.advance(LEASE_SECONDS + 1)
    (rescued,) = stand.rescue(holder=uuid.uuid4())
    assert rescued.lease_id != late.lease_id
    assert use(stand, [late.lease]) == {late.lease}
    assert_untouched(stand, rescued)


def test_ended_lease_is_valid_until_the_job_is_rescued(stand: Stand, use: Use) -> None:
    """An ended lease is not stale: its holder may finish the job until another has it."""
    stand.put()
    delivery = stand.claim_one()
    stand.advance(LEASE_SECONDS + 1)
    assert use(stand, [delivery.lease]) == set()


def test_mixed_batch_returns_only_its_stale_leases(stand: Stand, use: Use) -> None:
    stand.put(4)
    released, acked, valid, also_valid = stand.claim()
    stand.broker.settle(again=[Return(released.lease, attempts=1)])
    stand.broker.settle([acked.lease])
    unknown = Lease(new_job_id(), 1)
    batch = [released.lease, valid.lease, unknown, acked.lease, also_valid.lease]
    assert use(stand, batch) == {released.lease, acked.lease, unknown}
    assert stand.where(released.job_id) == "ready"
    assert stand.where(acked.job_id) is None
    assert stand.where(valid.job_id) == stand.where(also_valid.job_id)


def test_lease_twice_in_a_batch_is_not_stale(stand: Stand, use: Use) -> None:
    stand.put(2)
    first, second = stand.claim()
    assert use(stand, [first.lease, second.lease, first.lease]) == set()


def test_old_lease_next_to_the_new_one_in_a_batch_is_stale(stand: Stand, use: Use) -> None:
    stand.put()
    before = stand.claim_one()
    stand.broker.settle(again=[Return(before.lease, attempts=1)])
    now = stand.claim_one()
    assert use(stand, [before.lease, now.lease]) == {before.lease}


def test_extended_lease_lasts_from_now(stand: Stand) -> None:
    stand.put()
    delivery = stand.claim_one()
    for _ in range(3):
        stand.advance(LEASE_SECONDS / 2)
        assert stand.broker.extend([delivery.lease], lease_seconds=LEASE_SECONDS) == set()
    assert stand.rescue() == []
    stand.advance(LEASE_SECONDS + 1)
    assert [found.job_id for found in stand.rescue()] == [delivery.job_id]


def test_extending_a_lease_does_not_extend_others(stand: Stand) -> None:
    stand.put(2)
    first, second = stand.claim()
    stand.advance(LEASE_SECONDS / 2)
    stand.broker.extend([first.lease], lease_seconds=LEASE_SECONDS)
    stand.advance(LEASE_SECONDS / 2 + 1)
    assert [delivery.job_id for delivery in stand.rescue()] == [second.job_id]


def test_valid_lease_is_not_rescued(stand: Stand) -> None:
    stand.put(2)
    stand.claim()
    stand.advance(LEASE_SECONDS / 2)
    assert stand.rescue() == []


def test_rescued_job_is_complete_and_its_attempt_not_counted_again(stand: Stand) -> None:
    stand.needs("priority")
    stand.put(queue="mail", priority=9)
    (first,) = stand.claim(1, "mail")
    stand.broker.settle(again=[Return(first.lease, attempts=1, crashes=1)])
    (lost,) = stand.claim(1, "mail")
    stand.advance(LEASE_SECONDS + 1)
    rescuer = uuid.uuid4()
    (rescued,) = stand.rescue(holder=rescuer)
    assert rescued.lease_id not in {first.lease_id, lost.lease_id}
    assert (rescued.job_id, rescued.package) == (lost.job_id, b"package")
    assert (rescued.queue, rescued.priority) == ("mail", 9)
    assert (rescued.attempt, rescued.crashes) == (2, 1)
    assert stand.rescue() == []
    assert stand.broker.held_by(stand.holder) == []
    assert [held.job_id for held in stand.broker.held_by(rescuer)] == [lost.job_id]


def test_lease_of_a_rescuer_ends_too(stand: Stand) -> None:
    stand.put()
    stand.claim()
    seen = set()
    for _ in range(3):
        stand.advance(LEASE_SECONDS + 1)
        (rescued,) = stand.rescue()
        seen.add(rescued.lease_id)
        assert rescued.attempt == 1
    assert len(seen) == 3


def test_rescue_takes_no_more_than_its_limit(stand: Stand) -> None:
    put = stand.put(5)
    stand.claim()
    stand.advance(LEASE_SECONDS + 1)
    rescued = [stand.rescue(2) for _ in range(4)]
    assert [len(batch) for batch in rescued] == [2, 2, 1, 0]
    assert sorted(delivery.job_id for batch in rescued for delivery in batch) == put


def test_expire_holder_ends_leases_at_once(stand: Stand) -> None:
    stand.put(5)
    dead = uuid.uuid4()
    theirs = stand.claim(3, holder=dead)
    stand.claim(2)
    assert stand.broker.expire_holder(dead) == 3
    rescued = stand.rescue()
    assert sorted(delivery.job_id for delivery in rescued) == [one.job_id for one in theirs]
    assert stand.broker.expire_holder(dead) == 0


def test_held_by_lists_the_holders_jobs(stand: Stand) -> None:
    stand.put(3, priority=4)
    claimed = stand.claim(2)
    stand.claim(1, holder=uuid.uuid4())
    held = stand.broker.held_by(stand.holder)
    assert {one.lease for one in held} == {one.lease for one in claimed}
    assert {(one.package, one.queue, one.priority, one.attempt) for one in held} == {
        (b"" if stand.leases_are_rows else b"package", "default", 4, 1)
    }
    stand.broker.settle([claimed[0].lease])
    stand.broker.settle(again=[Return(claimed[1].lease)])
    assert stand.broker.held_by(stand.holder) == []


def assert_untouched(stand: Stand, delivery: Delivery) -> None:
    """Assert that the lease is valid and was not shortened."""
    assert stand.where(delivery.job_id) == "running"
    assert stand.claim() == []
    stand.advance(LEASE_SECONDS / 2)
    assert stand.rescue() == []
    assert stand.broker.extend([delivery.lease], lease_seconds=LEASE_SECONDS) == set()
    assert stand.broker.settle([delivery.lease]) == set()
    assert stand.where(delivery.job_id) is None
