"""Behaviour of locks that is the same in every place that can keep them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.core.cache import caches
from django.db import OperationalError

from stoker.exceptions import ConfigurationError, LockBusy, LockLost
from stoker.locks.lock import key_of, lock
from stoker.locks.stores.cache import FENCE_PREFIX, PREFIX
from stoker.models import LockKey

from tests.app.models import Ledger
from tests.locks.hammer import strike
from tests.locks.holder import write_fenced
from tests.locks.places import STEALING_PLACES, WITHOUT_STEALING, Place
from tests.locks.processes import Other, started
from tests.servers.process import wait_until

LEASE_SECONDS = 1.0
"""The shortest possible lease, for holders that are to lose the lock."""
KEPT_SECONDS = 6.0
"""For holders that are to keep the lock, even on a busy machine."""
PATIENCE_SECONDS = 120.0
PROCESSES = 4
TURNS = 100
"""Number of turns of all processes together."""


def test_held_lock_is_refused_to_another(place: Place, name: str) -> None:
    one, another = place.lock(name), place.lock(name)
    with one as held:
        assert held is one
        assert held.is_held
        assert not another.acquire()
        with pytest.raises(LockBusy, match="Another holder has the lock 'test"), another:
            pass
        assert not another.is_held
    assert not one.is_held
    with another:
        assert another.fence > one.fence


def test_locks_with_similar_names_are_separate(place: Place, name: str) -> None:
    names = [name, name.upper(), f"{name} ", "ä" * 300 + name, "🔒" + name, f"{name}\n"]
    held = [place.lock(one) for one in names]
    assert [one.acquire() for one in held] == [True] * len(names)
    assert [one.release() for one in held] == [True] * len(names)


def test_second_release_returns_false(place: Place, name: str) -> None:
    held = place.lock(name)
    assert held.acquire()
    assert held.release()
    assert not held.release()
    assert held.acquire()
    assert held.release()


def test_waiting_process_gets_the_released_lock(place: Place, name: str, other: Other) -> None:
    with place.lock(name):
        other.say("acquire", name=name, wait=PATIENCE_SECONDS)
        time.sleep(0.2)
    assert other.hear() is not None


def test_wait_raises_lock_busy_after_its_time(place: Place, name: str) -> None:
    with place.lock(name):
        began = time.monotonic()
        with pytest.raises(LockBusy, match=r"was not free within 0\.3 s"):
            place.lock(name, wait=0.3).__enter__()
        assert time.monotonic() - began >= 0.3


def test_many_processes_never_hold_the_lock_at_once(
    place: Place, name: str, other: Other, tmp_path: Path
) -> None:
    """They start while a killed holder's lease runs, so all compete for the same ended entry."""
    (tmp_path / "counter").write_text("0 0")
    other.do("acquire", name=name, lease=LEASE_SECONDS)
    with ExitStack() as stack:
        hammers = [stack.enter_context(started(strike, place)) for _ in range(PROCESSES)]
        other.kill()
        for hammer in hammers:
            hammer.say("strike", name=name, folder=str(tmp_path), least=TURNS)
        reports = [hammer.hear() for hammer in hammers]
    assert [fault for report in reports for fault in report["faults"]] == []
    count, last_fence = map(int, (tmp_path / "counter").read_text().split())
    assert count == sum(report["turns"] for report in reports)
    assert count >= TURNS
    with place.lock(name) as held:
        assert held.fence > last_fence


def test_lock_of_a_killed_holder_is_free_after_its_lease(
    others: dict[Place, Other], name: str
) -> None:
    fences = {}
    for place, other in others.items():
        fences[place] = other.do("acquire", name=name, lease=LEASE_SECONDS)
        other.kill()
    for place, fence in fences.items():
        with place.lock(name, wait=PATIENCE_SECONDS) as newcomer:
            assert newcomer.fence > fence, place


def pause_between_writes(other: Other) -> None:
    """Pause a process, but not while it renews its lease: SQLite would stay locked."""
    other.pause()
    while not _is_writable():
        other.resume()
        other.pause()


def _is_writable() -> bool:
    try:
        Ledger.objects.filter(pk=0).update(note="")
    except OperationalError:
        return False
    return True


def test_paused_holder_loses_the_lock_and_cannot_write(
    others: dict[Place, Other], name: str
) -> None:
    """This is what the fence is for: a process that was stopped for longer than its lease, as a
    virtual machine can be, resumes and does not know it."""
    old_fences, newcomers = {}, {}
    for place, other in others.items():
        Ledger.objects.create(job_id=place.name, attempt=1, worker="", started_ns=0)
        old_fences[place] = other.do("acquire", name=name, lease=LEASE_SECONDS)
        assert other.do("write", note="the first"), place
        pause_between_writes(other)
    for place, old_fence in old_fences.items():
        newcomers[place] = newcomer = place.lock(name, wait=PATIENCE_SECONDS)
        assert newcomer.acquire(), place
        assert newcomer.fence > old_fence, place
        assert write_fenced(place, newcomer.fence, "the newcomer"), place
    for place, other in others.items():
        other.resume()
        assert not other.do("is_held"), place
        assert "is not held any more" in other.do("check")  # so its own clock or the store told it
        assert not other.do("write", note="the one that was paused"), place
        assert not other.do("release"), place
        assert other.do("acquire", name=name, wait=0) is None, place
        assert newcomers[place].is_held, place
        assert Ledger.objects.get(job_id=place.name).note == "the newcomer", place
        assert newcomers[place].release(), place


def test_lease_is_renewed_while_the_holder_lives(others: dict[Place, Other], name: str) -> None:
    for place, other in others.items():
        assert other.do("acquire", name=name, lease=KEPT_SECONDS), place
    # Longer than any store keeps the entry of a lease that is not renewed.
    until = time.monotonic() + KEPT_SECONDS + 1.4
    newcomers = {place: place.lock(name) for place in others}
    while time.monotonic() < until:
        assert [place.name for place, one in newcomers.items() if one.acquire()] == []
        time.sleep(0.1)
    for place, other in others.items():
        assert other.do("check") == "", place
        assert other.do("release"), place
        assert newcomers[place].acquire(), place
        assert newcomers[place].release(), place


def test_steal_after_takes_the_lock_from_a_slow_holder(
    others: dict[Place, Other], name: str
) -> None:
    slow = {place: other for place, other in others.items() if place.can_steal}
    fences = {
        place: other.do("acquire", name=name, lease=KEPT_SECONDS) for place, other in slow.items()
    }
    thieves = {place: place.lock(name, steal_after=0.5) for place in slow}
    for place, thief in thieves.items():
        assert not place.lock(name, steal_after=600).acquire(), place
        assert thief.acquire(wait=PATIENCE_SECONDS), place
        assert thief.fence > fences[place], place
    wait_until(lambda: not held_by(slow), PATIENCE_SECONDS)
    assert held_by(slow) == []
    for place, other in slow.items():
        assert "has another holder" in other.do("check"), place
        assert not other.do("release"), place
        assert thieves[place].is_held, place
        assert thieves[place].release(), place


@pytest.mark.parametrize("place", [WITHOUT_STEALING], indirect=True)
@pytest.mark.sqlite
@pytest.mark.redis
def test_steal_after_on_an_unsupported_cache_is_refused(place: Place, name: str) -> None:
    with pytest.raises(ConfigurationError, match="`steal_after` does not work in the cache"):
        place.lock(name, steal_after=1).acquire()


@pytest.mark.sqlite
def test_lock_in_an_unknown_cache_is_refused_with_the_names_of_caches() -> None:
    told = "The lock's cache 'nope' is not in CACHES, which has: .*'default'"
    with pytest.raises(ConfigurationError, match=told):
        lock("a name", cache="nope").acquire()


@pytest.mark.parametrize("place", STEALING_PLACES, indirect=True)
def test_stolen_lock_is_not_stolen_again(place: Place, name: str) -> None:
    with place.lock(name):
        time.sleep(0.1)
        assert place.lock(name, steal_after=0.05).acquire()
        assert not place.lock(name, steal_after=600).acquire()


def test_lock_deleted_from_the_store_is_lost(places: list[Place], name: str) -> None:
    """For example by a flushed or full cache, or a deleted row."""
    held = {place: place.lock(name, lease=KEPT_SECONDS) for place in places}
    for place, one in held.items():
        assert one.acquire(), place
        forget_all(place, name)
    wait_until(lambda: not any(one.is_held for one in held.values()), PATIENCE_SECONDS)
    assert [place.name for place, one in held.items() if one.is_held] == []
    for place, one in held.items():
        with pytest.raises(LockLost, match="the store no longer has it"):
            one.check()
        assert not one.release(), place
        newcomer = place.lock(name)
        assert newcomer.acquire(), place
        assert newcomer.fence > one.fence, place
        assert newcomer.release(), place


def test_lock_deleted_and_taken_by_another_stays_with_the_other(place: Place, name: str) -> None:
    held, newcomer = place.lock(name), place.lock(name)
    assert held.acquire()
    forget_all(place, name)
    assert newcomer.acquire()
    assert not held.release()
    assert not place.lock(name).acquire()
    assert newcomer.release()


def held_by(others: dict[Place, Other]) -> list[str]:
    """Return the names of the places whose locks these processes still hold."""
    return [place.name for place, other in others.items() if other.do("is_held")]


def forget_all(place: Place, name: str) -> None:
    """Delete the lock and its counter, as a flush does."""
    if place.cache is None:
        LockKey.objects.filter(name=key_of(name)).delete()
        return
    for prefix in (PREFIX, FENCE_PREFIX):
        assert caches[place.cache].delete(prefix + key_of(name))
