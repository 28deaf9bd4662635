"""A broker inside the database: its calls take effect only if the transaction commits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from stoker.brokers.contract import Broker, ClaimRequest, Lease, Return
from stoker.models import Claimed
from stoker.store.transactions import is_locked_out, repeat_if_aborted
from stoker.store.written import MICROSECONDS

from tests.conformance.stands import LEASE_SECONDS, OrmStand, Stand, message
from tests.conformance.threads import together
from tests.guards.sessions import PATIENCE_SECONDS, session


class Rollback(Exception):
    """Raised to roll a transaction back."""


@pytest.fixture
def stand(transactional_stand: Stand) -> Stand:
    """Return a stand whose broker joins transactions."""
    return transactional_stand


@contextmanager
def rolled_back(stand: Stand) -> Iterator[None]:
    """Run a transaction and roll it back at its end."""
    with suppress(Rollback), stand.atomic():
        yield
        raise Rollback


@pytest.mark.parametrize("delay", [None, 100.0], ids=["ready", "deferred"])
def test_rolled_back_enqueue_adds_nothing(stand: Stand, delay: float | None) -> None:
    run_after = None if delay is None else stand.now() + delay
    given_up, kept = message(run_after=run_after), message(run_after=run_after)
    with rolled_back(stand):
        stand.broker.enqueue([given_up])
        assert stand.where(given_up.job_id) is not None
    with stand.atomic():
        stand.broker.enqueue([kept])
    assert stand.where(given_up.job_id) is None
    stand.advance(101)
    assert [delivery.job_id for delivery in stand.claim()] == [kept.job_id]


def test_job_is_invisible_before_the_commit(stand: Stand) -> None:
    with stand.atomic():
        (job_id,) = stand.put()
        (seen,) = together(stand, lambda broker: broker.states([job_id]))
        assert seen == {}
    assert stand.claim_one().job_id == job_id


def test_rolled_back_ack_keeps_the_lease(stand: Stand) -> None:
    stand.put()
    delivery = stand.claim_one()
    with rolled_back(stand):
        assert stand.broker.settle([delivery.lease]) == set()
        assert stand.broker.settle([delivery.lease]) == {delivery.lease}
    assert stand.where(delivery.job_id) == "running"
    assert stand.broker.settle([delivery.lease]) == set()


@pytest.mark.parametrize("delay_seconds", [0.0, 10.0], ids=["now", "later"])
def test_rolled_back_release_keeps_the_lease(stand: Stand, delay_seconds: float) -> None:
    stand.put()
    delivery = stand.claim_one()
    with rolled_back(stand):
        assert stand.broker.settle(again=[Return(delivery.lease, delay_seconds)]) == set()
    assert stand.where(delivery.job_id) == "running"
    assert stand.broker.extend([delivery.lease], lease_seconds=LEASE_SECONDS) == set()


def test_rolled_back_withdrawal_keeps_the_job(stand: Stand) -> None:
    (job_id,) = stand.put()
    with rolled_back(stand):
        assert stand.broker.withdraw([job_id]) == {job_id}
    assert stand.where(job_id) == "ready"


def test_whole_life_of_a_job_inside_one_transaction_works(stand: Stand) -> None:
    """A user's TestCase does this."""
    with rolled_back(stand):
        stand.put(2)
        stand.put(run_after=stand.now() - 1)
        first, second, third = stand.claim()
        assert stand.broker.extend([first.lease], lease_seconds=LEASE_SECONDS) == set()
        stand.broker.settle(again=[Return(first.lease, 0.02, attempts=1), Return(second.lease)])
        assert stand.broker.settle([third.lease]) == set()
        found: list[Any] = []
        while len(found) < 2:  # the database's clock advances inside a transaction
            found += stand.claim()
        assert {delivery.attempt for delivery in found} == {1, 2}
    assert stand.broker.sizes() == {}


@pytest.mark.postgres
@pytest.mark.mariadb
def test_concurrent_claims_and_rescues_do_not_wait(stand: Stand) -> None:
    """Rows that another transaction has taken are skipped. SQLite has one writer at a time."""
    put = set(stand.put(6))
    over = {delivery.job_id for delivery in stand.claim(3, lease_seconds=-1)}
    with rolled_back(stand):
        taken = {delivery.job_id for delivery in stand.claim(2) + stand.rescue(2)}
        assert len(taken) == 4
        (others,) = together(
            stand,
            lambda broker: (
                broker.claim(
                    ClaimRequest(6, holder=stand.holder, lease_seconds=60, queues=["default"])
                )
                + broker.claim_expired(ClaimRequest(6, holder=stand.holder, lease_seconds=60))
            ),
        )
        found = {delivery.job_id for delivery in others}
        assert found - over == put - over - taken
        assert (
            found & over <= over - taken
        )  # MariaDB locks all rows that it sorts, so the rest is found later


@pytest.mark.postgres
@pytest.mark.mariadb
def test_extend_ack_and_release_do_not_wait_for_other_rows(stand: Stand) -> None:
    """A statement that scans a small table would wait for every locked row."""
    stand.put(8)
    ours, theirs = stand.claim(4), stand.claim(4)
    with rolled_back(stand):
        stand.broker.settle([delivery.lease for delivery in ours])

        def use_theirs(broker: Broker) -> set[Lease]:
            return (
                broker.extend([one.lease for one in theirs], lease_seconds=LEASE_SECONDS)
                | broker.settle([one.lease for one in theirs[:2]])
                | broker.settle(again=[Return(one.lease) for one in theirs[2:]])
            )

        (stale,) = together(stand, use_theirs)
        assert stale == set()


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_acked", [False, True])
def test_locked_lease_is_extended_or_stale_after_the_other_transaction_ends(
    is_acked: bool,
) -> None:
    """``extend`` must not answer before, because the holder relies on a longer lease."""
    stand = OrmStand()
    (job_id,) = stand.put()
    delivery = stand.claim_one()
    before = Claimed.objects.get(pk=job_id).leased_until_us
    with session() as other, session() as worker:
        other.begin()
        other.do(lambda: list(Claimed.objects.select_for_update()))
        if is_acked:
            other.do(lambda: stand.another().settle([delivery.lease]))
        extending = worker.start(
            lambda: stand.another().extend([delivery.lease], lease_seconds=2 * LEASE_SECONDS)
        )
        wait([extending], timeout=0.5)  # gives it time to answer too early
        other.commit()
        stale = extending.result(PATIENCE_SECONDS)
    if is_acked:
        assert stale == {delivery.lease}
    else:
        assert stale == set()
        assert Claimed.objects.get(pk=job_id).leased_until_us > before + MICROSECONDS


@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_commit_that_group_replication_refuses_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Error 3101 comes only from a server of a group, so the test raises it."""
    tries: list[int] = []
    commit = connection._commit

    def refuse_first() -> None:
        if len(tries) > 1:
            return commit()
        with connection.wrap_database_errors:
            raise connection.Database.OperationalError(3101, "Plugin instructed the server")

    def write() -> None:
        with transaction.atomic():
            tries.append(1)

    monkeypatch.setattr(connection, "_commit", refuse_first)
    repeat_if_aborted("default", write)
    assert len(tries) == 2
    tries.clear()
    with pytest.raises(OperationalError) as refused:
        write()
    assert is_locked_out(refused.value)
