"""Whose turn it is, while others' transactions are open: nobody waits for them, and nobody's turn
is lost, whether they are committed or not."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from functools import partial

import pytest

from stoker.brokers.contract import Return
from stoker.brokers.orm import broker as orm
from stoker.guards import admission
from stoker.guards import sweep as guard_upkeep
from stoker.models import Blocked, GuardKey, Need
from stoker.models.guard_key import GuardKeyQuerySet
from stoker.store import turns

from tests.conformance.stands import OrmStand
from tests.conformance.test_guards import claim_ids, ids, need, put
from tests.guards.sessions import Session, session, wait_until_waiting

pytestmark = pytest.mark.django_db(transaction=True)

LONG_SECONDS = 600


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> OrmStand:
    monkeypatch.setattr(orm, "PROMOTE_SECONDS", 0)  # no pause between two looks at what is due
    for module in (admission, guard_upkeep, turns):  # before a test says so, nobody looks again
        monkeypatch.setattr(module, "LOOK_AGAIN_US", LONG_SECONDS * 1_000_000)
    return OrmStand()


@pytest.fixture
def other() -> Iterator[Session]:
    with session() as opened:
        yield opened


def let_keys_fall_due() -> None:
    """The moments at which to look again are stored with the keys."""
    GuardKey.objects.exclude(due_us=None).update(due_us=1)


@pytest.mark.parametrize("kind", ["lock", "sequence"])
@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "rolled back"])
@pytest.mark.postgres
@pytest.mark.mariadb
def test_a_turn_that_comes_while_somebody_withdraws(
    kind: str, is_committed: bool, stand: OrmStand, other: Session
) -> None:
    put(stand, need("key", kind))
    (running,) = stand.claim()
    first, second = put(stand, need("key", kind), count=2)
    assert claim_ids(stand) == []
    other.begin()
    assert other.do(partial(stand.broker.withdraw, [first])) == {first}
    assert stand.broker.ack([running.lease]) == set()
    assert claim_ids(stand) == []
    if is_committed:
        other.commit()
    else:
        other.roll_back()
    let_keys_fall_due()
    order = []
    while claimed := stand.claim():
        order += ids(claimed)
        stand.broker.ack([one.lease for one in claimed])
    assert order == ([second] if is_committed else [first, second])


@pytest.mark.postgres
@pytest.mark.mariadb
def test_the_only_one_that_waits_is_called_when_his_withdrawal_comes_to_nothing(
    stand: OrmStand, other: Session
) -> None:
    put(stand, need("key"))
    (running,) = stand.claim()
    (only,) = put(stand, need("key"))
    assert claim_ids(stand) == []
    other.begin()
    other.do(partial(stand.broker.withdraw, [only]))
    stand.broker.ack([running.lease])
    other.roll_back()
    assert claim_ids(stand) == []
    seconds = stand.broker.next_due_seconds(rated=False)
    assert seconds is not None
    assert 0 < seconds <= LONG_SECONDS
    let_keys_fall_due()
    assert claim_ids(stand) == [only]
    assert GuardKey.objects.get().due_us is None


@pytest.mark.postgres
@pytest.mark.mariadb
def test_nobody_waits_for_a_transaction_in_which_jobs_are_withdrawn(
    stand: OrmStand, other: Session
) -> None:
    ready, waiting = put(stand, need("key", "limit", 2), count=2)
    (running,) = stand.claim(1)
    assert running.job_id == ready
    other.begin()
    other.do(partial(stand.broker.withdraw, [waiting]))
    (third,) = put(stand, need("key", "limit", 2))
    assert claim_ids(stand) == [third]
    stand.broker.release([Return(running.lease, attempts=0)])
    assert claim_ids(stand) == [ready]
    other.commit()
    assert set(Need.objects.values_list("job_id", flat=True)) == {ready, third}


@pytest.mark.postgres
@pytest.mark.mariadb
def test_a_job_that_moves_meanwhile_is_withdrawn_all_the_same(
    stand: OrmStand, other: Session
) -> None:
    put(stand, need("key"))
    (running,) = stand.claim()
    (moving,) = put(stand, need("key"))
    assert claim_ids(stand) == []
    other.begin()
    other.do(partial(stand.broker.ack, [running.lease]))  # which calls it
    with session() as third:
        withdrawn = third.start(partial(stand.broker.withdraw, [moving]))
        wait_until_waiting()
        other.commit()
        assert withdrawn.result(60) == {moving}
    assert not Blocked.objects.exists()
    assert claim_ids(stand) == []


def test_purging_takes_more_than_one_batch_that_waits_in_line(
    stand: OrmStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orm, "PURGE_AT_ONCE", 3)
    put(stand, need("key"), need("steps", "sequence"), count=10)
    (running,) = stand.claim()
    assert claim_ids(stand) == []
    stand.broker.ack([running.lease])
    assert stand.broker.purge("default") == 9
    assert stand.broker.sizes() == {}
    assert not Need.objects.exists()


def test_acks_and_releases_give_up_their_places_together(
    stand: OrmStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that lock keys twice could wait for one another in a circle."""
    first, second = put(stand, need("a")) + put(stand, need("b"))
    running = {one.job_id: one for one in stand.claim()}
    waiting = put(stand, need("a")) + put(stand, need("b"))
    assert claim_ids(stand) == []
    locked: list[int] = []
    lock = GuardKeyQuerySet.lock

    def counted(
        keys: GuardKeyQuerySet, key_ids: Collection[uuid.UUID]
    ) -> dict[uuid.UUID, GuardKey]:
        locked.append(len(key_ids))
        return lock(keys, key_ids)

    monkeypatch.setattr(GuardKeyQuerySet, "lock", counted)
    back = Return(running[second].lease, delay_seconds=60, attempts=1)
    assert stand.broker.settle([running[first].lease], [back]) == set()
    monkeypatch.undo()
    assert locked == [2]
    assert set(claim_ids(stand)) == set(waiting)
    stale = stand.broker.settle([running[first].lease], [back])
    assert {lease.job_id for lease in stale} == {first, second}


def test_a_claim_goes_on_behind_those_that_a_guard_turns_away(stand: OrmStand) -> None:
    put(stand, need("key"))
    stand.claim()
    put(stand, need("key"), count=40)
    free = stand.put(3)
    found: list[uuid.UUID] = []
    rounds = 0
    while len(found) < 3:
        found += claim_ids(stand, 1)
        rounds += 1
        assert rounds < 100
    assert found == free
