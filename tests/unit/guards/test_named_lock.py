"""Taking and giving back, on a store in memory."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from stoker.exceptions import LockBusy, LockLost, LockMisused, StokerError
from stoker.locks.lock import NamedLock, lock

from tests.unit.guards.stores import Clock, MemoryLocks, terms

pytestmark = pytest.mark.unit

Told = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def held(store: MemoryLocks, clock: Clock) -> NamedLock:
    return NamedLock(terms(store))


@pytest.fixture
def waiter(store: MemoryLocks, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> NamedLock:
    """Waits three seconds; the clock is turned instead of sleeping."""
    monkeypatch.setattr(time, "sleep", clock.turn)
    return NamedLock(terms(store, wait_seconds=3))


# -- what it is made with -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lease": 0.5}, "The lease of a lock is 0.5, but it must be a number of seconds, at leas"),
        (
            {"lease": None},
            "The lease of a lock is None, but it must be a number of s",
        ),
        ({"lease": float("inf")}, "The lease of a lock is inf, but it must be"),
        ({"wait": -1}, "The wait of a lock is -1, but it must be a number of seconds, at least 0"),
        ({"wait": "soon"}, "The wait of a lock is 'soon', but it must be a number of seconds"),
        ({"wait": True}, "The wait of a lock is True, but"),
        ({"steal_after": -1}, "The steal_after of a lock is -1, but it must be"),
        ({"wait": float("nan")}, "The wait of a lock is nan, but it must be"),
    ],
)
def test_times_that_cannot_be_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        lock("import", **options)


def test_times_may_be_timedeltas() -> None:
    made = lock("import", wait=timedelta(minutes=1), lease=timedelta(seconds=90), steal_after=None)
    assert (made._terms.wait_seconds, made._terms.lease_seconds) == (60, 90)


def test_the_name_is_looked_at() -> None:
    with pytest.raises(ValueError, match="empty"):
        lock("")


def test_making_one_asks_nobody() -> None:
    """A module may make its locks when it is imported, before the settings are complete."""
    assert lock("import", cache="not there").name == "import"


# -- taking ---------------------------------------------------------------------------------------


def test_it_is_held_inside_only(held: NamedLock, store: MemoryLocks) -> None:
    assert repr(held) == "<NamedLock 'import'>"
    with held as same:
        assert same is held
        assert repr(held) == "<NamedLock 'import', held>"
        held.check()
        assert held.fence == 1
    assert store.owners == {}
    assert held.fence == 1
    with pytest.raises(LockLost, match="not held any more: it was released"):
        held.check()


def test_before_it_is_taken(held: NamedLock) -> None:
    assert not held.is_held
    assert not held.release()
    with pytest.raises(LockMisused, match="has no fence before it is taken"):
        held.fence  # noqa: B018 - a property that raises
    with pytest.raises(LockLost, match="it was not taken"):
        held.check()


def test_a_busy_lock_is_a_timeout(held: NamedLock, store: MemoryLocks) -> None:
    store.owners["import"] = uuid4()
    with pytest.raises(LockBusy, match=r"^Another has the lock 'import'\.$") as caught, held:
        pass
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, StokerError)


def test_the_same_object_cannot_take_it_twice(held: NamedLock) -> None:
    with held:
        with pytest.raises(LockMisused, match="is held by this object already"):
            held.acquire()
        with pytest.raises(LockMisused, match="make another object"), held:
            pass
        assert held.is_held
    assert held.acquire()


def test_the_same_object_cannot_wait_twice(held: NamedLock, store: MemoryLocks) -> None:
    store.owners["import"] = uuid4()

    async def both() -> Any:
        return await asyncio.gather(
            held.aacquire(wait=0.02), held.aacquire(wait=0), return_exceptions=True
        )

    first, second = asyncio.run(_with_a_true_clock(both))
    assert first is False
    assert isinstance(second, LockMisused)
    assert "is being taken by this object already" in str(second)


async def _with_a_true_clock(story: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stoker.locks.holding.now", time.monotonic)
        return await story()


def test_who_waits_looks_again_until_the_time_is_over(
    waiter: NamedLock, store: MemoryLocks, clock: Clock
) -> None:
    store.owners["import"] = uuid4()
    began = clock.now()
    with pytest.raises(LockBusy, match="and it was not free within 3 s"), waiter:
        pass
    assert clock.now() - began == pytest.approx(3)
    # 10 ms at first, a quarter of a second later on.
    assert 14 < len(store.calls) < 40


def test_who_waits_gets_it_when_it_is_free(
    waiter: NamedLock, store: MemoryLocks, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.owners["import"] = uuid4()

    def sleep(seconds: float) -> None:
        clock.turn(seconds)
        if clock.now() > 1001:
            store.owners.clear()

    monkeypatch.setattr(time, "sleep", sleep)
    with waiter:
        assert 1001 < clock.now() < 1001.5


def test_a_wait_given_later_counts(waiter: NamedLock, store: MemoryLocks, clock: Clock) -> None:
    store.owners["import"] = uuid4()
    assert not waiter.acquire(wait=0)
    assert store.calls == ["take"]
    assert not waiter.acquire(wait=timedelta(seconds=1))
    assert clock.now() == pytest.approx(1001)
    with pytest.raises(ValueError, match="The wait of a lock is -2, but"):
        waiter.acquire(wait=-2)


def test_what_may_have_been_taken_is_given_back(held: NamedLock, store: MemoryLocks) -> None:
    """The answer was lost, or the time of the task was over at that very moment."""
    taken = store.take

    def take_and_fail(claim: Any) -> int | None:
        taken(claim)
        raise KeyboardInterrupt

    store.take = take_and_fail  # type: ignore[method-assign] # for this test
    with pytest.raises(KeyboardInterrupt):
        held.acquire()
    assert store.owners == {}
    assert not held.is_held
    store.take = taken  # type: ignore[method-assign] # as above
    assert held.acquire()


@pytest.mark.parametrize("is_ours_yet", [True, False])
def test_an_answer_that_came_after_a_lease_is_asked_for_again(
    held: NamedLock, store: MemoryLocks, clock: Clock, is_ours_yet: bool
) -> None:
    taken = store.take

    def take_slowly(claim: Any) -> int | None:
        fence = taken(claim)
        clock.turn(31)
        if not is_ours_yet:
            store.owners.clear()
        return fence

    store.take = take_slowly  # type: ignore[method-assign] # for this test
    assert held.acquire() == is_ours_yet
    assert held.is_held == is_ours_yet


# -- giving back ----------------------------------------------------------------------------------


def test_it_is_given_back_when_the_block_fails(held: NamedLock, store: MemoryLocks) -> None:
    with pytest.raises(ZeroDivisionError), held:
        raise ZeroDivisionError
    assert store.owners == {}


def test_what_another_has_is_left_alone(held: NamedLock, store: MemoryLocks, clock: Clock) -> None:
    assert held.acquire()
    newcomer = store.owners["import"] = uuid4()
    clock.turn(31)
    assert not held.release()
    assert store.owners == {"import": newcomer}


def test_a_lost_lock_may_be_taken_again_by_the_same_object(
    held: NamedLock, store: MemoryLocks, clock: Clock, told: Told
) -> None:
    assert held.acquire()
    clock.turn(31)
    store.owners.clear()
    assert held.acquire()
    assert held.is_held
    assert [name for name, _ in told] == ["lock_lost"]


def test_a_store_that_does_not_answer_spoils_nothing_that_was_done(
    held: NamedLock, store: MemoryLocks, told: Told
) -> None:
    with held:
        store.faults = [OSError("no route")]
    assert not held.is_held
    assert [name for name, _ in told] == ["lock_not_released"]


class Careless(MemoryLocks):
    """Cannot compare and delete in one step."""

    drops_only_its_own = False


@pytest.mark.parametrize(
    ("after_seconds", "is_dropped", "events"),
    [(19, True, []), (21, False, ["lock_not_released"]), (31, False, ["lock_lost"])],
)
def test_a_store_that_cannot_compare_is_asked_only_in_good_time(
    after_seconds: float, is_dropped: bool, events: list[str], clock: Clock, told: Told
) -> None:
    """A lock that may have ended is left to end: it could be another's when it is deleted."""
    store = Careless()
    held = NamedLock(terms(store))
    assert held.acquire()
    clock.turn(after_seconds)
    assert held.release() == is_dropped
    assert (store.owners == {}) == is_dropped
    assert ("drop" in store.calls) == is_dropped
    assert [name for name, _ in told] == events
