"""Turns under guards while other transactions are open: claims do not wait for them, and no turn is
lost, whether they commit or roll back."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from functools import partial

import pytest
from django.db import transaction

from stoker.brokers.contract import Return
from stoker.brokers.orm import broker as orm
from stoker.brokers.orm import claim as orm_claim
from stoker.guards import admission
from stoker.guards import sweep as guard_upkeep
from stoker.guards.admission import AdmissionTerms
from stoker.models import Blocked, GuardKey, Need, Ready
from stoker.models.claimed import Leasing
from stoker.models.guard_key import GuardKeyQuerySet
from stoker.models.ready import Place
from stoker.store import turns

from tests.conformance.stands import OrmStand
from tests.conformance.test_guards import claim_ids, ids, need, put
from tests.guards.sessions import PATIENCE_SECONDS, Session, session, wait_until_waiting

pytestmark = pytest.mark.django_db(transaction=True)

LONG_SECONDS = 600


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> OrmStand:
    monkeypatch.setattr(orm_claim, "PROMOTE_SECONDS", 0)  # promote due jobs with every claim
    for module in (
        admission,
        guard_upkeep,
        turns,
    ):  # keys are checked again only when a test says so
        monkeypatch.setattr(module, "LOOK_AGAIN_US", LONG_SECONDS * 1_000_000)
    return OrmStand()


@pytest.fixture
def other() -> Iterator[Session]:
    with session() as opened:
        yield opened


def let_keys_fall_due() -> None:
    """Make the stored times at which keys are checked again due."""
    GuardKey.objects.exclude(due_us=None).update(due_us=1)


@pytest.mark.parametrize("kind", ["lock", "sequence"])
@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "rolled back"])
@pytest.mark.postgres
@pytest.mark.mariadb
def test_turn_of_a_job_being_withdrawn_depends_on_the_commit(
    kind: str, is_committed: bool, stand: OrmStand, other: Session
) -> None:
    put(stand, need("key", kind))
    (running,) = stand.claim()
    first, second = put(stand, need("key", kind), count=2)
    assert claim_ids(stand) == []
    other.begin()
    assert other.do(partial(stand.broker.withdraw, [first])) == {first}
    assert stand.broker.settle([running.lease]) == set()
    assert claim_ids(stand) == []
    if is_committed:
        other.commit()
    else:
        other.roll_back()
    let_keys_fall_due()
    order = []
    while claimed := stand.claim():
        order += ids(claimed)
        stand.broker.settle([one.lease for one in claimed])
    assert order == ([second] if is_committed else [first, second])


@pytest.mark.postgres
@pytest.mark.mariadb
def test_only_waiting_job_gets_its_turn_after_its_withdrawal_rolls_back(
    stand: OrmStand, other: Session
) -> None:
    put(stand, need("key"))
    (running,) = stand.claim()
    (only,) = put(stand, need("key"))
    assert claim_ids(stand) == []
    other.begin()
    other.do(partial(stand.broker.withdraw, [only]))
    stand.broker.settle([running.lease])
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
def test_claims_do_not_wait_for_an_open_withdrawal(stand: OrmStand, other: Session) -> None:
    ready, waiting = put(stand, need("key", "limit", 2), count=2)
    (running,) = stand.claim(1)
    assert running.job_id == ready
    other.begin()
    other.do(partial(stand.broker.withdraw, [waiting]))
    (third,) = put(stand, need("key", "limit", 2))
    assert claim_ids(stand) == [third]
    stand.broker.settle(again=[Return(running.lease, attempts=0)])
    assert claim_ids(stand) == [ready]
    other.commit()
    assert set(Need.objects.values_list("job_id", flat=True)) == {ready, third}


@pytest.mark.postgres
@pytest.mark.mariadb
def test_job_that_becomes_ready_meanwhile_is_withdrawn(stand: OrmStand, other: Session) -> None:
    put(stand, need("key"))
    (running,) = stand.claim()
    (moving,) = put(stand, need("key"))
    assert claim_ids(stand) == []
    other.begin()
    other.do(partial(stand.broker.settle, [running.lease]))  # which gives it its turn
    with session() as third:
        withdrawn = third.start(partial(stand.broker.withdraw, [moving]))
        wait_until_waiting()
        other.commit()
        assert withdrawn.result(60) == {moving}
    assert not Blocked.objects.exists()
    assert claim_ids(stand) == []


@pytest.mark.postgres
@pytest.mark.mariadb
def test_job_that_was_just_blocked_is_called_when_the_running_job_ends(
    stand: OrmStand, other: Session
) -> None:
    """The end of the running job sees the line of its key only after it has waited for the key."""
    put(stand, need("key"))
    (running,) = stand.claim()
    (blocked,) = put(stand, need("key"))
    other.begin()
    assert other.do(partial(claim_ids, stand)) == []
    with session() as third:
        settled = third.start(partial(stand.broker.settle, [running.lease]))
        wait_until_waiting()
        other.commit()
        assert settled.result(PATIENCE_SECONDS) == set()
    assert claim_ids(stand) == [blocked]


def test_purge_removes_several_batches_of_blocked_jobs(
    stand: OrmStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orm, "LISTED_AT_ONCE", 3)
    put(stand, need("key"), need("steps", "sequence"), count=10)
    (running,) = stand.claim()
    assert claim_ids(stand) == []
    stand.broker.settle([running.lease])
    assert stand.broker.purge("default") == 9
    assert stand.broker.sizes() == {}
    assert not Need.objects.exists()


def test_settle_locks_the_keys_of_acks_and_releases_at_once(
    stand: OrmStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two transactions that lock keys in two steps could deadlock."""
    first, second = put(stand, need("a")) + put(stand, need("b"))
    running = {one.job_id: one for one in stand.claim()}
    waiting = put(stand, need("a")) + put(stand, need("b"))
    assert claim_ids(stand) == []
    locked: list[int] = []
    lock = GuardKeyQuerySet.lock_lines

    def counted(
        keys: GuardKeyQuerySet, key_ids: Collection[uuid.UUID]
    ) -> dict[uuid.UUID, GuardKey]:
        locked.append(len(key_ids))
        return lock(keys, key_ids)

    monkeypatch.setattr(GuardKeyQuerySet, "lock_lines", counted)
    back = Return(running[second].lease, delay_seconds=60, attempts=1)
    assert stand.broker.settle([running[first].lease], [back]) == set()
    monkeypatch.undo()
    assert locked == [2]
    assert set(claim_ids(stand)) == set(waiting)
    stale = stand.broker.settle([running[first].lease], [back])
    assert {lease.job_id for lease in stale} == {first, second}


def test_claim_finds_free_jobs_behind_blocked_ones(stand: OrmStand) -> None:
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


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_jobs_beyond_the_room_of_a_claim_stay_ready(room: int, stand: OrmStand) -> None:
    jobs = [put(stand, need(f"{number}"))[0] for number in range(3)]
    rows = Ready.objects.order_by("rank", "job_id").values_list(*Place._fields)
    with transaction.atomic():
        leasing = Leasing(1, uuid.uuid4(), 60_000_000)
        places = [Place(*row) for row in rows]
        decision = admission.admit("default", places, room, leasing, AdmissionTerms(0))
    assert [claim[0] for claim in decision.claims] == jobs[:room]
    assert set(Ready.objects.values_list("job_id", flat=True)) == set(jobs[room:])
