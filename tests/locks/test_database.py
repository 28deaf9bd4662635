"""Locks in the database: transactions, users' test cases, the lock table."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase

from stoker.brokers.adapters import broker_for
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler.scheduler import Upkeep
from stoker.conf import settings_for
from stoker.exceptions import LockBusy, NotMigrated
from stoker.locks.lock import key_of, lock, store_for
from stoker.locks.stores import database as database_cache
from stoker.locks.stores.contract import LockClaim
from stoker.locks.stores.database import DatabaseCacheLocks
from stoker.models import LockKey
from stoker.models.lock import NOBODY, LockQuerySet

from tests.guards.sessions import PATIENCE_SECONDS, session, wait_until_waiting
from tests.integration.test_deadlines import end_session
from tests.locks.places import TABLE, Place

on_the_database = pytest.mark.parametrize("place", ["database", "database cache"], indirect=True)


@on_the_database
def test_lock_inside_atomic_is_refused(place: Place, name: str) -> None:
    held = place.lock(name)
    with (
        transaction.atomic(),
        pytest.raises(TransactionManagementError, match="Take the lock first"),
        held,
    ):
        pass
    assert not held.is_held
    with held, transaction.atomic():
        assert held.is_held


@on_the_database
def test_lock_inside_manual_transaction_is_refused(place: Place, name: str) -> None:
    connection.set_autocommit(False)
    try:
        with pytest.raises(TransactionManagementError, match="others would not see it"):
            place.lock(name).acquire()
    finally:
        connection.rollback()
        connection.set_autocommit(True)


@pytest.mark.postgres
@pytest.mark.mariadb
@on_the_database
def test_lock_is_released_although_the_server_has_closed_the_connection(
    place: Place, name: str
) -> None:
    with place.lock(name):
        end_session()
    with place.lock(name):
        pass


@pytest.mark.postgres
@pytest.mark.mariadb
@on_the_database
@pytest.mark.parametrize("verb", ["take", "renew", "drop"])
def test_contended_lock_works_under_repeatable_read(place: Place, name: str, verb: str) -> None:
    """Otherwise the server refuses a statement that waited for a row which another transaction has
    changed."""
    store, key, owner = store_for(place.cache, "default"), key_of(name), uuid.uuid4()
    assert store.take(LockClaim(key, owner, 60))
    calls: dict[str, Callable[[], object]] = {
        "take": lambda: store.take(LockClaim(key, uuid.uuid4(), 60, steal_after_seconds=0)),
        "renew": lambda: store.renew(key, owner, 60),
        "drop": lambda: store.drop(key, owner),
    }
    table, column = ("stoker_lock", "fence") if place.cache is None else (TABLE, "expires")
    with session() as other:
        other.read_repeatably()
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(f"UPDATE {table} SET {column} = {column}")
            answer = other.start(calls[verb])
            wait_until_waiting()
        assert answer.result(PATIENCE_SECONDS)


@pytest.mark.sqlite
@pytest.mark.redis
@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_redis_lock_inside_a_transaction_is_allowed(place: Place, name: str) -> None:
    with transaction.atomic(), place.lock(name) as held:
        assert held.is_held


@pytest.mark.sqlite
@pytest.mark.redis
@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_redis_client_that_repeats_a_request_gets_the_lock(place: Place, name: str) -> None:
    """redis-py repeats a request if its answer was lost."""
    store = store_for(place.cache, "default")
    claim = LockClaim(key_of(name), uuid.uuid4(), 30)
    first, again = store.take(claim), store.take(claim)
    assert first is not None
    assert again is not None
    assert again > first
    assert store.take(LockClaim(claim.key, uuid.uuid4(), 30)) is None


class InATestCase(TestCase):
    """A user's TestCase runs in a transaction that is never committed."""

    def test_lock_inside_a_test_case_works_and_never_expires(self) -> None:
        with lock("in a test", lease=1) as held:
            held.check()
            assert held._holding is not None
            assert held._holding.seconds_left == float("inf")
            with pytest.raises(LockBusy), lock("in a test"):
                pass
        with lock("in a test"):
            pass

    def test_lock_inside_atomic_in_a_test_case_is_refused(self) -> None:
        with transaction.atomic(), pytest.raises(TransactionManagementError):
            lock("in a test").acquire()


@pytest.mark.django_db(transaction=True)
def test_missing_lock_table_raises_not_migrated(name: str) -> None:
    table, away = LockKey._meta.db_table, "stoker_lock_away"
    with connection.schema_editor() as editor:
        editor.alter_db_table(LockKey, table, away)
    try:
        with pytest.raises(NotMigrated, match=r"manage\.py migrate"):
            lock(name).acquire()
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(LockKey, away, table)


@pytest.mark.parametrize("place", ["database cache"], indirect=True)
def test_database_cache_takes_renews_steals_and_drops_locks(
    place: Place, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is waited for: entries are written as if they had ended already."""
    store, key = DatabaseCacheLocks("database cache"), key_of(name)
    one, two, three = (uuid.uuid4() for _ in range(3))
    first = store.take(LockClaim(key, one, 30))
    assert first is not None
    assert store.take(LockClaim(key, two, 30)) is None
    assert store.take(LockClaim(key, two, 30, steal_after_seconds=60)) is None
    assert store.renew(key, one, 30)
    assert not store.renew(key, two, 30)
    second = store.take(LockClaim(key, two, 30, steal_after_seconds=0))
    assert second is not None
    assert second > first
    assert not store.renew(key, one, 30)
    assert not store.drop(key, one)
    assert store.drop(key, two)
    with monkeypatch.context() as patch:
        patch.setattr(database_cache, "whole", lambda _: -5)
        third = store.take(LockClaim(key, one, 30))
        assert third is not None
        assert third > second
    assert not store.renew(key, one, 30)
    fourth = store.take(LockClaim(key, three, 30))
    assert fourth is not None
    assert fourth > third


@pytest.mark.parametrize("place", ["database cache"], indirect=True)
def test_expired_lock_in_the_database_cache_is_taken_by_one_claimant(
    place: Place, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two claimants see at once that it has ended. Django's own `add` would let both in."""
    store, key = DatabaseCacheLocks("database cache"), key_of(name)
    monkeypatch.setattr(database_cache, "whole", lambda _: -5)
    assert store.take(LockClaim(key, uuid.uuid4(), 1))
    monkeypatch.undo()
    ended = store._look(key)
    assert ended[1]
    assert store.take(LockClaim(key, uuid.uuid4(), 30))
    monkeypatch.setattr(store, "_look", lambda _: ended)
    assert store.take(LockClaim(key, uuid.uuid4(), 30)) is None


@pytest.mark.parametrize("place", ["database cache"], indirect=True)
def test_lock_expired_only_by_the_readers_clock_is_not_taken(
    place: Place, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder's clock is behind ours, so the holder may renew it after we looked."""
    store, key = DatabaseCacheLocks("database cache"), key_of(name)
    holder = uuid.uuid4()
    assert store.take(LockClaim(key, holder, 30))
    value, has_ended = store._look(key)
    assert not has_ended
    monkeypatch.setattr(store, "_look", lambda _: (value, True))
    assert store.take(LockClaim(key, uuid.uuid4(), 30)) is None
    assert store.renew(key, holder, 30)


# -- the table ------------------------------------------------------------------------------------


@pytest.fixture
def ids() -> tuple[uuid.UUID, uuid.UUID]:
    return uuid.uuid4(), uuid.uuid4()


@pytest.mark.django_db
def test_fencing_number_rises_only_when_the_owner_changes(ids: tuple[uuid.UUID, uuid.UUID]) -> None:
    """Upkeep takes its lock again this way; its owner is a cluster."""
    ours, theirs = ids
    assert LockKey.objects.take("x", ours, 60)
    fence = LockKey.objects.get().fence
    assert LockKey.objects.take("x", ours, 60)
    assert LockKey.objects.get().fence == fence
    assert not LockKey.objects.take("x", theirs, 60)
    LockKey.objects.update(leased_until_us=1)
    assert LockKey.objects.take("x", theirs, 60)
    assert LockKey.objects.get().fence == fence + 1
    assert not LockKey.objects.drop("x", ours)
    assert LockKey.objects.drop("x", theirs)
    assert LockKey.objects.take("x", ours, 60)


@pytest.mark.django_db
def test_ended_lease_is_not_renewed(ids: tuple[uuid.UUID, uuid.UUID]) -> None:
    ours, theirs = ids
    assert LockKey.objects.acquire("x", ours, 60)
    assert not LockKey.objects.renew("x", theirs, 60)
    assert LockKey.objects.renew("x", ours, 60)
    LockKey.objects.update(leased_until_us=1)
    assert not LockKey.objects.renew("x", ours, 60)


@pytest.mark.django_db
def test_dropped_lock_is_not_renewed(ids: tuple[uuid.UUID, uuid.UUID]) -> None:
    """A late renewal that waited for the row must not revive the lock."""
    ours, _ = ids
    assert LockKey.objects.acquire("x", ours, 60)
    assert LockKey.objects.drop("x", ours)
    assert LockKey.objects.get().owner == NOBODY
    LockKey.objects.update(leased_until_us=2**62)
    assert not LockKey.objects.renew("x", ours, 60)
    assert not LockKey.objects.drop("x", ours)


@pytest.mark.django_db
def test_released_lock_is_free_after_the_clock_was_set_back(
    ids: tuple[uuid.UUID, uuid.UUID],
) -> None:
    ours, theirs = ids
    fence = LockKey.objects.acquire("x", ours, 60)
    assert fence is not None
    assert LockKey.objects.drop("x", ours)
    LockKey.objects.update(leased_until_us=2**62, taken_at_us=2**62)
    assert LockKey.objects.acquire("x", theirs, 60) == fence + 1
    LockKey.objects.update(leased_until_us=2**62)
    assert LockKey.objects.acquire("x", ours, 60) is None, "it has an owner"


@pytest.mark.django_db
def test_unused_locks_are_deleted_and_fences_keep_growing(ids: tuple[uuid.UUID, uuid.UUID]) -> None:
    ours, theirs = ids
    fences = [LockKey.objects.acquire(name, ours, 60) for name in ("x", "y")]
    LockKey.objects.filter(name="x").update(leased_until_us=1)
    assert LockKey.objects.forget(3600, limit=10) == 1
    assert LockKey.objects.get().name == "y"
    later = LockKey.objects.acquire("x", theirs, 60)
    assert later is not None
    assert fences[0] is not None
    assert later > fences[0]


@pytest.mark.django_db
def test_lock_that_upkeep_deletes_meanwhile_is_taken(
    ids: tuple[uuid.UUID, uuid.UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = ids
    assert LockKey.objects.acquire("nightly", ours, 60)
    LockKey.objects.update(leased_until_us=1)
    take_over = LockQuerySet._take_over

    def take_over_late(locks: LockQuerySet, *arguments: Any) -> bool:
        LockKey.objects.forget(3600, limit=10)
        return take_over(locks, *arguments)

    monkeypatch.setattr(LockQuerySet, "_take_over", take_over_late)
    assert LockKey.objects.acquire("nightly", theirs, 60) is not None


@pytest.mark.django_db
def test_upkeep_deletes_locks_unused_for_a_day(ids: tuple[uuid.UUID, uuid.UUID]) -> None:
    ours, _ = ids
    for name in ("held", "just released", "old"):
        assert LockKey.objects.acquire(name, ours, 60)
    assert LockKey.objects.drop("just released", ours)
    LockKey.objects.filter(name="old").update(leased_until_us=1)
    settings = settings_for()
    upkeep = Upkeep(Plan(), settings, broker_for(settings), beat=lambda: None)
    assert upkeep.leftovers.forget_locks() == 1
    assert set(LockKey.objects.values_list("name", flat=True)) == {"held", "just released"}
    LockKey.objects.update(leased_until_us=1)
    assert upkeep.leftovers.forget_locks() == 0, "once an hour is enough"
