"""Taking and releasing locks on a store in memory."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from stoker.exceptions import LockBusy, LockLost, LockMisused, StokerError, TaskTimeout
from stoker.locks.lock import NamedLock, lock

from tests.unit.guards.stores import Clock, MemoryLocks, terms

pytestmark = pytest.mark.unit

Told = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def held(store: MemoryLocks, clock: Clock) -> NamedLock:
    return NamedLock(terms(store))


@pytest.fixture
def waiter(store: MemoryLocks, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> NamedLock:
    """A lock that waits three seconds; sleeping advances the clock."""
    monkeypatch.setattr(time, "sleep", clock.turn)
    return NamedLock(terms(store, wait_seconds=3))


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lease": 0.5}, "The lease of a lock is 0.5, but it must be a number of seconds, at leas"),
        (
            {"lease": None},
            "The lease of a lock is None, but it must be a number of s",
        ),
        ({"lease": float("inf")}, "The lease of a lock is inf, but it must be"),
        ({"lease": 3e10}, "The lease of a lock is 30000000000.0, .* at most 100,000,000"),
        ({"steal_after": timedelta.max}, "The steal_after of a lock is .* at most 100,000,000"),
        ({"wait": -1}, "The wait of a lock is -1, but it must be a number of seconds, at least 0"),
        ({"wait": "soon"}, "The wait of a lock is 'soon', but it must be a number of seconds"),
        ({"wait": True}, "The wait of a lock is True, but"),
        ({"steal_after": -1}, "The steal_after of a lock is -1, but it must be"),
        ({"wait": float("nan")}, "The wait of a lock is nan, but it must be"),
    ],
)
def test_invalid_times_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        lock("import", **options)


def test_times_can_be_timedeltas() -> None:
    made = lock("import", wait=timedelta(minutes=1), lease=timedelta(seconds=90), steal_after=None)
    assert (made._terms.wait_seconds, made._terms.lease_seconds) == (60, 90)


def test_invalid_name_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        lock("")


def test_making_a_lock_does_not_need_its_cache() -> None:
    """A module can make locks at import, before the settings are complete."""
    assert lock("import", cache="not there").name == "import"


# -- taking ---------------------------------------------------------------------------------------


def test_lock_is_held_only_inside_the_block(held: NamedLock, store: MemoryLocks) -> None:
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


def test_lock_that_was_never_taken_has_no_fence(held: NamedLock) -> None:
    assert not held.is_held
    assert not held.release()
    with pytest.raises(LockMisused, match="has no fence before it is taken"):
        held.fence  # noqa: B018 - a property that raises
    with pytest.raises(LockLost, match="it was not taken"):
        held.check()


def test_busy_lock_raises_a_timeout_error(held: NamedLock, store: MemoryLocks) -> None:
    store.owners["import"] = uuid4()
    with pytest.raises(LockBusy, match=r"^Another holder has the lock 'import'\.$") as caught, held:
        pass
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, StokerError)


def test_taking_the_same_object_twice_is_refused(held: NamedLock) -> None:
    with held:
        with pytest.raises(LockMisused, match="is held by this object already"):
            held.acquire()
        with pytest.raises(LockMisused, match="make another object"), held:
            pass
        assert held.is_held
    assert held.acquire()


def test_waiting_twice_with_the_same_object_is_refused(held: NamedLock, store: MemoryLocks) -> None:
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


def test_wait_asks_the_store_again_until_its_time_is_over(
    waiter: NamedLock, store: MemoryLocks, clock: Clock
) -> None:
    store.owners["import"] = uuid4()
    began = clock.now()
    with pytest.raises(LockBusy, match="and it was not free within 3 s"), waiter:
        pass
    assert clock.now() - began == pytest.approx(3)
    # 10 ms at first, a quarter of a second later.
    assert 14 < len(store.calls) < 40


def test_wait_returns_when_the_lock_is_free(
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


def test_wait_given_to_acquire_overrides_the_default(
    waiter: NamedLock, store: MemoryLocks, clock: Clock
) -> None:
    store.owners["import"] = uuid4()
    assert not waiter.acquire(wait=0)
    assert store.calls == ["take"]
    assert not waiter.acquire(wait=timedelta(seconds=1))
    assert clock.now() == pytest.approx(1001)
    with pytest.raises(ValueError, match="The wait of a lock is -2, but"):
        waiter.acquire(wait=-2)


def test_interrupted_take_is_undone(held: NamedLock, store: MemoryLocks) -> None:
    """The answer may be lost, or the task's time-out be raised just then."""
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
def test_acquire_answered_after_the_lease_returns_whether_the_lock_is_held(
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


# -- releasing ------------------------------------------------------------------------------------


def test_failing_block_releases_the_lock(held: NamedLock, store: MemoryLocks) -> None:
    with pytest.raises(ZeroDivisionError), held:
        raise ZeroDivisionError
    assert store.owners == {}


def test_release_leaves_the_lock_of_another_alone(
    held: NamedLock, store: MemoryLocks, clock: Clock
) -> None:
    assert held.acquire()
    newcomer = store.owners["import"] = uuid4()
    clock.turn(31)
    assert not held.release()
    assert store.owners == {"import": newcomer}


def test_lost_lock_can_be_taken_again_by_the_same_object(
    held: NamedLock, store: MemoryLocks, clock: Clock, told: Told
) -> None:
    assert held.acquire()
    clock.turn(31)
    store.owners.clear()
    assert held.acquire()
    assert held.is_held
    assert [name for name, _ in told] == ["lock_lost"]


def test_unreachable_store_at_the_release_raises_nothing(
    held: NamedLock, store: MemoryLocks, told: Told
) -> None:
    with held:
        store.faults = [OSError("no route")]
    assert not held.is_held
    assert [name for name, _ in told] == ["lock_not_released"]


class Careless(MemoryLocks):
    """A store that cannot compare and delete in one step."""

    drops_only_its_own = False


def test_time_out_of_the_task_during_the_release_is_raised(
    held: NamedLock, store: MemoryLocks, told: Told
) -> None:
    """It is raised only once: a task that went on would run until it is killed."""
    late = TaskTimeout("The task took longer than 5 s.")
    with pytest.raises(TaskTimeout), held:
        store.faults = [late]
    assert not held.is_held
    assert told == [("lock_not_released", {"name": "import", "because": late})]


def test_time_out_of_the_task_while_a_take_is_undone_is_raised(
    held: NamedLock, store: MemoryLocks
) -> None:
    store.faults = [OSError("no route"), TaskTimeout("The task took longer than 5 s.")]
    with pytest.raises(TaskTimeout):
        held.acquire()


@pytest.mark.parametrize(
    ("after_seconds", "is_dropped", "events"),
    [(19, True, []), (21, False, ["lock_not_released"]), (31, False, ["lock_lost"])],
)
def test_lock_that_may_have_ended_is_not_deleted_without_compare_and_delete(
    after_seconds: float, is_dropped: bool, events: list[str], clock: Clock, told: Told
) -> None:
    """A lock that may have ended is not deleted, because another may hold it by then."""
    store = Careless()
    held = NamedLock(terms(store))
    assert held.acquire()
    clock.turn(after_seconds)
    assert held.release() == is_dropped
    assert (store.owners == {}) == is_dropped
    assert ("drop" in store.calls) == is_dropped
    assert [name for name, _ in told] == events
