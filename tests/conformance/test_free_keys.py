"""Jobs whose guard keys are free: PostgreSQL claims them with one statement."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from stoker.brokers.contract import ClaimRequest
from stoker.brokers.orm.claim import leasing_of
from stoker.models import Blocked, Claimed, GuardKey, Job, Need, Ready
from stoker.models.need import NewNeed
from stoker.store.engines import engine_of

from tests.conformance.stands import LEASE_SECONDS, OrmStand
from tests.conformance.test_guards import claim_ids, ids, need, put
from tests.guards.sessions import PATIENCE_SECONDS, session, wait_until_waiting

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def stand() -> OrmStand:
    return OrmStand()


@contextmanager
def decisions() -> Iterator[list[str]]:
    """Collect the statements that carry out the decisions of ``guards.admission``."""
    found: list[str] = []

    def note(execute, sql, *arguments):  # type: ignore[no-untyped-def] # as Django calls it
        if "turned_away AS" in str(sql):
            found.append(str(sql))
        return execute(sql, *arguments)

    with connection.execute_wrapper(note):
        yield found


def test_jobs_with_new_keys_are_leased_at_once(stand: OrmStand) -> None:
    jobs = [put(stand, need(name))[0] for name in "abc"]
    (urgent,) = put(stand, need("d", "limit", 3), priority=9)
    with decisions() as made:
        claimed = stand.claim(turns=4)
    assert made == []
    assert ids(claimed) == [urgent, *jobs]
    assert {one.package for one in claimed} == set(Job.objects.values_list("package", flat=True))
    assert [(one.attempt, one.crashes, one.permit_seconds) for one in claimed] == [(1, 0, 0.0)] * 4
    assert [one.turn for one in claimed] == [None, *(need(name).key_id for name in "abc")]
    keys = GuardKey.objects.in_bulk()
    for delivery in claimed:
        stored = Need.objects.get(job_id=delivery.job_id)
        key = keys[stored.key_id]
        assert stored.holds == key.pk
        assert stored.fence == key.fence == delivery.fence > 0
        assert (key.kind, key.name, key.places) == (stored.kind, stored.name, stored.places)
        assert key.places_by == delivery.job_id
    assert set(Claimed.objects.values_list("guards", "is_kept")) == {(1, True)}
    assert not Ready.objects.exists()
    assert stand.broker.settle([one.lease for one in claimed]) == set()
    assert not Need.objects.exists()


@pytest.mark.parametrize(
    "needs",
    [
        pytest.param((need("a", "sequence"),), id="sequence"),
        pytest.param((need("a", "rate", period_us=10**6),), id="rate"),
        pytest.param((need("a", "limit", 0),), id="limit of 0"),
        pytest.param((need("a"), need("b")), id="two guards"),
    ],
)
def test_jobs_with_other_guards_are_left_to_admission(
    stand: OrmStand, needs: tuple[NewNeed, ...]
) -> None:
    put(stand, *needs)
    assert lease_free_keys(stand) == []
    with decisions() as made:
        stand.claim()
    assert len(made) == 1


def test_new_key_of_several_jobs_is_left_to_admission(stand: OrmStand) -> None:
    """Only admission can lease several jobs of one lock, which then start one after another."""
    several = put(stand, need("a"), count=2)
    (alone,) = put(stand, need("b"))
    assert set(claim_ids(stand, turns=4)) == {*several, alone}
    assert not Blocked.objects.exists()


def test_job_with_a_key_that_is_free_again_is_leased_at_once(stand: OrmStand) -> None:
    for name in "abc":
        put(stand, need(name, "limit", 2))
    put(stand, need("d"))
    before = stand.claim()
    stand.broker.settle([one.lease for one in before])
    used = {key.pk: key.fence for key in GuardKey.objects.all()}
    assert len(used) == 4
    jobs = [put(stand, need(name, "limit", 2))[0] for name in "abc"]
    jobs += [*put(stand, need("d")), *put(stand, need("new"))]
    with decisions() as made:
        claimed = stand.claim(turns=4)
    assert made == []
    assert ids(claimed) == jobs
    assert [one.turn for one in claimed] == [*[None] * 3, need("d").key_id, need("new").key_id]
    for delivery in claimed:
        stored = Need.objects.get(job_id=delivery.job_id)
        assert stored.holds == stored.key_id
        key = GuardKey.objects.get(pk=stored.key_id)
        assert key.fence == stored.fence == delivery.fence > used.get(key.pk, 0)


def test_job_with_a_held_key_waits(stand: OrmStand) -> None:
    put(stand, need("a"))
    (running,) = stand.claim()
    (waiting,) = put(stand, need("a"))
    assert claim_ids(stand) == []
    stand.broker.settle([running.lease])
    assert claim_ids(stand) == [waiting]


def use_once(stand: OrmStand, of: NewNeed) -> None:
    """Let a job with this need begin and end, so that its key exists and is free."""
    put(stand, of)
    stand.broker.settle([one.lease for one in stand.claim()])
    assert GuardKey.objects.filter(pk=of.key_id, has_line=False).exists()


@pytest.mark.parametrize(
    ("change", "places"),
    [
        pytest.param({"has_line": True}, 2, id="others wait for it"),
        pytest.param({"places_set": 0}, 2, id="operator has closed it"),
        pytest.param({"places_set": 5}, 2, id="operator has changed it"),
        pytest.param({}, 3, id="job changes it"),
    ],
)
def test_free_key_with_waiting_jobs_or_another_limit_is_left_to_admission(
    stand: OrmStand, change: dict[str, int], places: int
) -> None:
    use_once(stand, need("a", "limit", 2))
    GuardKey.objects.update(**change)
    put(stand, need("a", "limit", places))
    assert lease_free_keys(stand) == []
    with decisions() as made:
        stand.claim()
    assert len(made) == 1
    assert GuardKey.objects.get().places == places


@pytest.mark.parametrize("is_known", [False, True], ids=["new key", "known key"])
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(need("l", "limit", 5), id="limit"),
        pytest.param(need("s", "sequence"), id="sequence"),
        pytest.param(need("r", "rate", 5, period_us=10**9), id="rate"),
    ],
)
def test_job_with_a_second_guard_is_not_overtaken(
    stand: OrmStand, other: NewNeed, is_known: bool
) -> None:
    if is_known:
        use_once(stand, need("a"))
    (first,) = put(stand, need("a"), other, priority=9)
    (second,) = put(stand, need("a"))
    assert claim_ids(stand, rated_limit=5) == [first]
    assert Blocked.objects.get().job_id == second


def test_urgent_job_with_a_second_guard_is_not_skipped(stand: OrmStand) -> None:
    (first,) = put(stand, need("a", on_busy="skip"), need("l", "limit", 5), priority=9)
    (second,) = put(stand, need("a", on_busy="skip"))
    refused = {one.job_id: one.refused for one in stand.claim()}
    assert (refused[first], refused[second]) == ("", "already running")


def test_new_and_known_keys_are_locked_without_a_deadlock(stand: OrmStand) -> None:
    """One transaction has inserted a key, and waits for one that exists. The other has a job for
    each."""
    new, known = sorted([need("a"), need("b")], key=lambda one: one.key_id)
    use_once(stand, known)
    jobs = [put(stand, one)[0] for one in (new, known)]
    with session() as both, session() as each:
        both.begin()
        both.do(lambda: GuardKey.objects.create(pk=new.key_id, kind=new.kind, name=new.name))
        waiting = each.start(lambda: lease(stand, jobs))
        wait_until_waiting()
        both.do(lambda: GuardKey.objects.select_for_update(nowait=True).get(pk=known.key_id))
        both.commit()
        assert waiting.result(PATIENCE_SECONDS) == [jobs[1]]


def test_key_that_another_transaction_claims_meanwhile_lets_one_job_start(stand: OrmStand) -> None:
    """The statement does not see that claim, because it has begun before."""
    use_once(stand, need("a"))
    first, second = put(stand, need("a"), count=2)
    with session() as gate, session() as slow:
        gate.begin()
        gate.do(lambda: connection.cursor().execute(f"SELECT {WAIT_AT_THE_GATE}"))
        waiting = slow.start(lambda: lease_slowly(stand, [second]))
        wait_until_waiting()
        assert lease(stand, [first]) == [first]
        gate.commit()
        assert waiting.result(PATIENCE_SECONDS) == []
    assert claim_ids(stand) == []
    assert Blocked.objects.get().job_id == second


def test_key_that_another_transaction_has_locked_is_skipped(stand: OrmStand) -> None:
    use_once(stand, need("a"))
    put(stand, need("a"))
    with session() as other:
        other.begin()
        other.do(lambda: GuardKey.objects.select_for_update().get())
        assert lease_free_keys(stand) == []
        other.roll_back()
    assert len(lease_free_keys(stand)) == 1


WAIT_AT_THE_GATE = "pg_advisory_xact_lock(7)"
"""Waits while another transaction is there."""


def lease_slowly(stand: OrmStand, job_ids: list[uuid.UUID]) -> list[uuid.UUID]:
    """Let the statement wait after it has looked at the keys, and before it locks them."""

    def slow(execute, sql, *arguments):  # type: ignore[no-untyped-def] # as Django calls it
        if "candidate AS" in str(sql):
            looked = "FROM known\n"
            assert looked in sql
            sql = sql.replace(looked, f"FROM known, (SELECT {WAIT_AT_THE_GATE}) AS gate\n")
        return execute(sql, *arguments)

    with connection.execute_wrapper(slow):
        return lease(stand, job_ids)


@pytest.mark.parametrize("table", [Ready, Need])
def test_job_that_another_transaction_has_locked_is_skipped(
    stand: OrmStand, table: type[Ready | Need]
) -> None:
    """It may be about to change the job's guards, or to withdraw the job."""
    put(stand, need("a"))
    with session() as other:
        other.begin()
        other.do(lambda: table._default_manager.select_for_update().get())
        assert lease_free_keys(stand) == []
        other.roll_back()
    assert len(lease_free_keys(stand)) == 1


def lease_free_keys(stand: OrmStand) -> list[uuid.UUID]:
    """Claim the ready jobs with free keys alone, and return their ids."""
    return lease(stand, list(Ready.objects.values_list("pk", flat=True)))


def lease(stand: OrmStand, job_ids: list[uuid.UUID]) -> list[uuid.UUID]:
    leasing = leasing_of(ClaimRequest(100, stand.holder, LEASE_SECONDS))
    return [row[0] for row in engine_of("default").claim_free_keys(job_ids, leasing)]


def test_key_that_another_transaction_makes_meanwhile_lets_one_job_start(stand: OrmStand) -> None:
    jobs = put(stand, need("a"), count=2)
    with session() as other:
        other.begin()
        assert other.do(lambda: lease(stand, jobs[:1])) == jobs[:1]
        with session() as third:
            waiting = third.start(lambda: lease(stand, jobs[1:]))
            wait_until_waiting()
            other.commit()
            assert waiting.result(PATIENCE_SECONDS) == []
    assert claim_ids(stand) == []
    assert Blocked.objects.get().job_id == jobs[1]
