"""Claims while another transaction holds keys of guards: they pass over the jobs that need these
keys, and look at them again later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from uuid import UUID

import pytest
from django.db import connection

from stoker.brokers.orm.broker import OrmBroker
from stoker.guards import admission
from stoker.models import Deferred, GuardKey, Need
from stoker.store.engines.postgresql import PROBES
from stoker.store.written import MICROSECONDS, database_now_us

from tests.conformance.stands import OrmStand
from tests.conformance.test_guards import claim_ids, need, put
from tests.guards.sessions import PATIENCE_SECONDS, Session, session, wait_until_waiting

pytestmark = [pytest.mark.mariadb, pytest.mark.django_db(transaction=True)]

AGAIN_US = 100 * MICROSECONDS
EACH_US = 1000 * MICROSECONDS
LATEST_US = 3000 * MICROSECONDS


SHORT_WAIT = {
    "postgresql": "SET lock_timeout = 50",
    "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
}


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> OrmStand:
    """Jobs whose keys are locked come back when a test makes them due. Claims look behind such jobs
    for as long as a busy machine takes."""
    monkeypatch.setattr("stoker.brokers.orm.broker.LOOK_BEHIND_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(admission, "LOOK_AGAIN_US", AGAIN_US)
    monkeypatch.setattr(admission, "LOOK_AGAIN_EACH_US", EACH_US)
    monkeypatch.setattr(admission, "LOOK_AGAIN_LATEST_US", LATEST_US)
    return OrmStand()


@pytest.fixture
def other() -> Iterator[Session]:
    with session() as opened:
        yield opened


def be_careful(stand: OrmStand) -> None:
    """Let the next claims not wait for locked keys, as after one that had to."""
    assert isinstance(stand.broker, OrmBroker)
    stand.broker._search.be_careful()


def lock_key_of_a_past_job(stand: OrmStand, other: Session) -> None:
    """Lock the key named "held" in an open transaction."""
    put(stand, need("held"))
    (past,) = stand.claim()
    stand.broker.settle([past.lease])
    other.begin()
    other.do(lambda: GuardKey.objects.select_for_update().get())


@pytest.mark.postgres
def test_jobs_of_free_keys_pass_jobs_of_locked_keys(stand: OrmStand, other: Session) -> None:
    lock_key_of_a_past_job(stand, other)
    (held,) = put(stand, need("held"))
    (both,) = put(stand, need("free"), need("held"))
    (free,) = put(stand, need("free"))
    (plain,) = stand.put()
    be_careful(stand)
    assert set(claim_ids(stand)) == {free, plain}
    assert set(Deferred.objects.values_list("job_id", flat=True)) == {held, both}
    other.roll_back()
    stand.advance(LATEST_US / MICROSECONDS + 1)
    assert claim_ids(stand) == [held]


@pytest.mark.postgres
@pytest.mark.parametrize("limit", [1, 2])
def test_claim_looks_behind_jobs_of_locked_keys(
    limit: int, stand: OrmStand, other: Session
) -> None:
    lock_key_of_a_past_job(stand, other)
    put(stand, need("held"), count=3)
    free = put(stand, need("free", "limit", 2), count=2)
    claimed: list[UUID] = []
    while (
        len(claimed) < limit
    ):  # a claim ends after 50 ms with the jobs that it has found, perhaps none
        be_careful(stand)
        claimed += claim_ids(stand, limit)
    assert claimed == free[:limit]


@pytest.mark.postgres
def test_later_claims_do_not_wait_while_claims_meet_locked_keys(
    stand: OrmStand, other: Session
) -> None:
    lock_key_of_a_past_job(stand, other)
    put(stand, need("held"))
    be_careful(stand)
    assert isinstance(stand.broker, OrmBroker)
    before = stand.broker._search._careful_until
    assert claim_ids(stand) == []
    assert stand.broker._search._careful_until > before


@pytest.mark.postgres
def test_log_names_a_locked_key_once(
    stand: OrmStand, other: Session, caplog: pytest.LogCaptureFixture
) -> None:
    lock_key_of_a_past_job(stand, other)
    put(stand, need("held"))
    with closing(connection):  # so that later tests wait as long as usual
        with connection.cursor() as cursor:
            cursor.execute(SHORT_WAIT[connection.vendor])
        assert claim_ids(stand) == []
        for _ in range(2):
            assert claim_ids(stand) == []
            stand.advance(LATEST_US / MICROSECONDS + 1)
    assert caplog.messages == [
        "Jobs with guards wait: another transaction holds the guard key 'lock held'."
    ]


@pytest.mark.postgres
def test_log_says_that_rows_are_locked_that_are_no_keys(
    stand: OrmStand, other: Session, caplog: pytest.LogCaptureFixture
) -> None:
    put(stand, need("free"))
    other.begin()
    other.do(lambda: Need.objects.select_for_update().get())
    with closing(connection):  # so that later tests wait as long as usual
        with connection.cursor() as cursor:
            cursor.execute(SHORT_WAIT[connection.vendor])
        assert claim_ids(stand) == []
        assert caplog.messages == []
        assert claim_ids(stand) == []
    (logged,) = caplog.messages
    assert logged.startswith("Jobs with guards wait: Another transaction holds rows")


@pytest.mark.postgres
def test_claim_that_meets_no_locked_key_waits_again_later(stand: OrmStand) -> None:
    put(stand, need("free"))
    be_careful(stand)
    assert isinstance(stand.broker, OrmBroker)
    before = stand.broker._search._careful_until
    assert len(claim_ids(stand)) == 1
    assert stand.broker._search._careful_until == before


@pytest.mark.postgres
def test_first_claim_waits_for_a_locked_key(stand: OrmStand, other: Session) -> None:
    """Other claims hold keys for a moment only."""
    lock_key_of_a_past_job(stand, other)
    jobs = put(stand, need("held")) + stand.put()
    with session() as third:
        claim = third.start(partial(claim_ids, stand))
        wait_until_waiting()
        other.commit()
        assert set(claim.result(PATIENCE_SECONDS)) == set(jobs)
    assert not Deferred.objects.exists()


@pytest.mark.postgres
def test_jobs_of_a_locked_key_come_back_later_the_more_of_them_wait(
    stand: OrmStand, other: Session
) -> None:
    """Up to a limit. Jobs without guards do not count, nor do those that are due much later."""
    stand.put(3, run_after=stand.now() + 60)
    stand.put(3, needs=[need("later")], run_after=stand.now() + 9000)
    lock_key_of_a_past_job(stand, other)
    be_careful(stand)
    for seconds in (100, 1100, 2100, 3000, 3000):
        (job_id,) = put(stand, need("held"))
        before_us = database_now_us("default")
        assert claim_ids(stand) == []
        after_us = database_now_us("default")
        since_us = Deferred.objects.get(job_id=job_id).due_us - seconds * MICROSECONDS
        searched_us = after_us - before_us  # at most
        assert before_us <= since_us <= after_us + searched_us


@pytest.mark.postgres
def test_jobs_of_a_key_that_another_is_making_are_passed_over(
    stand: OrmStand, other: Session
) -> None:
    """No other transaction sees the key before the commit, but inserting it waits."""
    new = need("new")
    other.begin()
    other.do(lambda: GuardKey.objects.create(pk=new.key_id, kind=new.kind, name=new.name))
    guarded = put(stand, new, need("other"), count=2, priority=9)
    (plain,) = stand.put()
    (free,) = put(stand, need("other"))
    be_careful(stand)
    assert set(claim_ids(stand)) == {plain, free}
    assert set(Deferred.objects.values_list("job_id", flat=True)) == set(guarded)


@pytest.mark.postgres
def test_jobs_of_many_keys_that_another_is_making_are_passed_over(
    stand: OrmStand, other: Session
) -> None:
    """On PostgreSQL the claim stops trying the keys one by one."""
    new = [need(f"new {number}") for number in range(2 * PROBES)]
    other.begin()
    other.do(
        lambda: GuardKey.objects.bulk_create(
            GuardKey(pk=one.key_id, kind=one.kind, name=one.name) for one in new
        )
    )
    guarded = [job_id for one in new for job_id in put(stand, one, priority=9)]
    (plain,) = stand.put()
    be_careful(stand)
    assert claim_ids(stand, 2 * len(new)) == [plain]
    assert set(Deferred.objects.values_list("job_id", flat=True)) == set(guarded)
    other.roll_back()
    stand.advance(LATEST_US / MICROSECONDS + 1)
    assert set(claim_ids(stand, 2 * len(new))) == set(guarded)
