"""Locks in coroutines: waiting does not block the loop, cancelling leaves no lock behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from stoker.exceptions import LockBusy

from tests.locks.places import Place

T = TypeVar("T")

pytestmark = pytest.mark.parametrize(
    "place",
    ["database", pytest.param("redis", marks=[pytest.mark.sqlite, pytest.mark.redis])],
    indirect=True,
)


def run(story: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new loop, and close the connections of its thread."""

    async def whole() -> T:
        try:
            return await story
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(whole())


def test_two_coroutines_hold_the_lock_one_after_the_other(place: Place, name: str) -> None:
    seen: list[str] = []

    async def hold(who: str, seconds: float) -> None:
        async with place.lock(name, wait=120) as held:
            held.check()
            seen.append(f"{who} in")
            await asyncio.sleep(seconds)
            seen.append(f"{who} out")

    async def both() -> None:
        await asyncio.gather(hold("one", 0.1), hold("two", 0.1))

    run(both())
    assert [line.partition(" ")[2] for line in seen] == ["in", "out", "in", "out"]


def test_busy_lock_raises_lock_busy(place: Place, name: str) -> None:
    async def both() -> None:
        async with place.lock(name):
            with pytest.raises(LockBusy):
                async with place.lock(name, wait=0.05):
                    pass
            assert not await place.lock(name).aacquire()
        assert await place.lock(name).aacquire()

    run(both())


def test_waiting_for_a_lock_does_not_block_the_loop(place: Place, name: str) -> None:
    async def both() -> None:
        other = place.lock(name, wait=120)
        async with place.lock(name):
            waiting = asyncio.ensure_future(other.aacquire())
            for _ in range(10):
                await asyncio.sleep(0.005)
            assert not waiting.done()
        assert await waiting
        assert await other.arelease()

    run(both())


@pytest.mark.parametrize("after_seconds", [0, 0.0005, 0.002, 0.005, 0.02, 0.05])
def test_cancelled_wait_leaves_the_lock_free(place: Place, name: str, after_seconds: float) -> None:
    """Even if it is cancelled just as the store grants the lock."""

    async def story() -> None:
        for _ in range(5):
            waiting = asyncio.ensure_future(place.lock(name, wait=None).aacquire())
            await asyncio.sleep(after_seconds)
            was_in_time = waiting.cancel()
            try:
                await waiting
            except asyncio.CancelledError:
                newcomer = place.lock(name)
                assert await newcomer.aacquire()
                assert await newcomer.arelease()
            else:
                assert not was_in_time
                return

    run(story())


def test_cancelled_holder_releases_the_lock(place: Place, name: str) -> None:
    async def hold(is_held: asyncio.Event) -> None:
        async with place.lock(name):
            is_held.set()
            await asyncio.sleep(3600)

    async def story() -> None:
        is_held = asyncio.Event()
        holding = asyncio.ensure_future(hold(is_held))
        await asyncio.wait_for(is_held.wait(), 120)
        assert not await place.lock(name).aacquire()
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
        assert await place.lock(name).aacquire()

    run(story())
