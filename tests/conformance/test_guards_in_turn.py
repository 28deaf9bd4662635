"""Jobs with the same lock that one claim leases together, because their cluster starts them one
after another."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from stoker.brokers.contract import Delivery, Return
from stoker.models import Blocked, Claimed, Need

from tests.conformance.stands import OrmStand
from tests.conformance.test_guards import claim_ids, ids, need, put

TURNS = 4
LOCK = need("smtp")


@pytest.fixture
def stand(guarding_stand: OrmStand) -> OrmStand:
    return guarding_stand


def claim(stand: OrmStand, *ahead: Delivery, **options: Any) -> list[Delivery]:
    return stand.claim(turns=TURNS, ahead=[one.job_id for one in ahead], **options)


def test_claim_leases_several_jobs_of_a_lock_in_the_order_of_their_turns(stand: OrmStand) -> None:
    jobs = put(stand, LOCK, count=TURNS + 2)
    claimed = claim(stand)
    assert ids(claimed) == jobs[:TURNS]
    assert {one.turn for one in claimed} == {LOCK.key_id}
    fences = [one.fence for one in claimed]
    assert fences == sorted(set(fences))
    assert Blocked.objects.count() == 2


def test_claim_without_turns_leases_one_job_of_a_lock(stand: OrmStand) -> None:
    jobs = put(stand, LOCK, count=3)
    assert claim_ids(stand) == jobs[:1]


def test_later_claim_leases_jobs_behind_those_that_run(stand: OrmStand) -> None:
    jobs = put(stand, LOCK, count=2)
    running = claim(stand)
    jobs += put(stand, LOCK, count=1)
    following = claim(stand, *running)
    assert ids(running + following) == jobs
    assert following[0].turn == LOCK.key_id


def test_no_job_is_leased_behind_jobs_of_another_cluster(stand: OrmStand) -> None:
    put(stand, LOCK, count=2)
    running = stand.claim(1, turns=TURNS)
    options = {"holder": uuid.uuid4(), "turns": TURNS, "ahead": ids(running)}
    assert claim_ids(stand, **options) == []


def test_no_job_is_leased_behind_a_job_that_is_not_in_ahead(stand: OrmStand) -> None:
    """The job before it may take long, or the cluster may have lost it."""
    put(stand, LOCK, count=2)
    running = stand.claim(1, turns=TURNS)
    assert claim_ids(stand, turns=TURNS, ahead=[uuid.uuid4()]) == []
    assert Claimed.objects.get().job_id == running[0].job_id


def test_new_job_of_a_lock_does_not_overtake_its_blocked_jobs(stand: OrmStand) -> None:
    jobs = put(stand, LOCK, count=2)
    running = stand.claim(1, turns=TURNS)
    assert claim_ids(stand) == []
    jobs += put(stand, LOCK)
    assert claim_ids(stand, turns=TURNS, ahead=ids(running)) == []
    stand.broker.settle([running[0].lease])
    order = [running[0].job_id]
    while claimed := claim(stand):
        order += ids(claimed)
        stand.broker.settle([one.lease for one in claimed])
    assert order == jobs


@pytest.mark.parametrize("needs", [(LOCK,), (LOCK, need("other"))], ids=["one lock", "two locks"])
def test_job_that_cannot_follow_starts_while_jobs_of_its_lock_keep_arriving(
    needs: Any, stand: OrmStand
) -> None:
    """It needs a free key, because another cluster serves its queue or it has a second guard."""
    put(stand, LOCK, count=TURNS)
    held = claim(stand)
    (waiting,) = put(stand, *needs, queue="other")
    holder = stand.holder if len(needs) > 1 else uuid.uuid4()
    for _ in range(3 * TURNS):
        put(stand, LOCK)
        stand.broker.settle([held.pop(0).lease])
        if waiting in ids(stand.claim(1, "other", holder=holder)):
            return
        held += claim(stand, *held)
    pytest.fail("the job did not start")


def test_lock_that_blocks_jobs_of_two_queues_becomes_free(stand: OrmStand) -> None:
    """The cluster that holds it claims first after the end of each job."""
    put(stand, LOCK, count=2 * TURNS)
    held = claim(stand)
    (waiting,) = put(stand, LOCK, queue="other")
    other = {"holder": uuid.uuid4(), "turns": TURNS}
    assert stand.claim(1, "other", **other) == []
    while held:
        put(stand, LOCK)
        assert stand.where(waiting) == "blocked"
        stand.broker.settle([held.pop(0).lease])
        if held:
            assert claim(stand, *held) == []
    assert ids(stand.claim(1, "other", **other)) == [waiting]


def test_blocked_jobs_of_a_lock_are_leased_behind_its_next_job(stand: OrmStand) -> None:
    jobs = put(stand, LOCK, count=2 * TURNS)
    (running,) = stand.claim()
    stand.broker.settle([running.lease])
    (running,) = claim(stand)
    following = claim(stand, running)
    assert ids([running, *following]) == jobs[1 : 1 + TURNS]


def test_blocked_jobs_follow_when_a_job_of_their_lock_ends(stand: OrmStand) -> None:
    jobs = put(stand, LOCK, count=TURNS + 2)
    running = claim(stand)
    stand.broker.settle([one.lease for one in running[:2]])
    assert ids(claim(stand, *running[2:])) == jobs[TURNS:]


@pytest.mark.parametrize(
    "needs",
    [
        (need("smtp"), need("other")),
        (need("smtp", "limit", 1),),
        (need("smtp", "sequence"),),
        (need("smtp", on_busy="retry", retry_us=60_000_000),),
    ],
    ids=["two locks", "limit", "sequence", "retry"],
)
def test_jobs_with_other_guards_are_leased_one_at_a_time(needs: Any, stand: OrmStand) -> None:
    jobs = put(stand, *needs, count=3)
    (claimed,) = claim(stand)
    assert claimed.job_id == jobs[0]
    assert claimed.turn is None


def test_raised_limit_of_a_lock_needs_no_turns(stand: OrmStand) -> None:
    put(stand, need("smtp", places=2), count=3)
    claimed = claim(stand)
    assert [one.turn for one in claimed] == [None, None]


def test_released_followers_wait_for_the_running_job(stand: OrmStand) -> None:
    jobs = put(stand, LOCK, count=3)
    running, *following = claim(stand)
    stand.broker.settle(again=[Return(one.lease) for one in following])
    assert claim_ids(stand) == []
    stand.broker.settle([running.lease])
    assert claim_ids(stand) == jobs[1:2]


def test_jobs_leased_together_by_a_lost_cluster_run_in_order_after_the_rescue(
    stand: OrmStand,
) -> None:
    """Its cluster is gone: all of its leases end, and another cluster takes the jobs over."""
    jobs = put(stand, LOCK, count=3)
    claim(stand)
    stand.broker.expire_holder(stand.holder)
    lost = stand.rescue()
    assert sorted(ids(lost)) == jobs
    stand.broker.settle(again=[Return(one.lease, attempts=1) for one in lost])
    assert claim_ids(stand) == jobs[:1]
    assert Need.objects.exclude(holds=None).count() == 1
