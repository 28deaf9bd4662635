"""Locks across forks, threads and garbage collection."""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from stoker.exceptions import LockLost
from stoker.locks.lock import lock

from tests.servers.process import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

KEPT_SECONDS = 5
"""A lease that must not end, even if the machine is busy for a while."""


def rest(seconds: float) -> bool:
    """Sleep, and return whether this process got processor time throughout."""
    until, longest = time.monotonic() + seconds, 0.0
    while (now := time.monotonic()) < until:
        time.sleep(0.05)
        longest = max(longest, time.monotonic() - now)
    return longest < KEPT_SECONDS / 4


def in_a_child(story: object) -> None:
    """Run a function in a forked child, and fail if it fails."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            parents = []  # kept: deleting a connection closes its session
            for connection in connections.all(initialized_only=True):
                parents.append(connection.connection)
                connection.connection = None
            story()  # type: ignore[operator] # a function
            code = 0
        except BaseException:  # noqa: BLE001 - it must not come out at the top of pytest
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_cannot_use_its_parents_lock(name: str) -> None:
    held = lock(name)

    def child() -> None:
        assert not held.is_held
        with pytest.raises(LockLost, match="another process took it"):
            held.check()
        assert not held.release()
        assert not held.acquire()

    with held:
        in_a_child(child)
        assert held.is_held
        assert not lock(name).acquire()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_renews_its_own_lock(name: str) -> None:
    def is_renewed() -> bool:
        held = lock(name, lease=KEPT_SECONDS)
        assert held.acquire(wait=60)
        had_time = rest(KEPT_SECONDS + 0.4)
        assert held.release() or not had_time
        return had_time

    def child() -> None:
        assert wait_until(is_renewed, 180)

    with lock(f"{name} of the parent"):
        in_a_child(child)


def test_one_thread_renews_all_locks(name: str) -> None:
    before = threading.active_count()

    def are_renewed() -> bool:
        held = [lock(f"{name} {number}", lease=KEPT_SECONDS) for number in range(10)]
        assert all(one.acquire(wait=60) for one in held)
        assert threading.active_count() <= before + 1
        had_time = rest(KEPT_SECONDS + 0.4)
        lost = [one for one in held if not one.is_held]
        lost += [one for one in held if not one.release()]
        assert not (had_time and lost)
        return had_time

    assert wait_until(are_renewed, 180)


# The collector may also find a cache of another thread's, whose connection Redis still has open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_garbage_collected_lock_is_not_renewed(name: str) -> None:
    """A request that failed between acquire() and release() must not hold it for ever."""
    lost, began = lock(name, lease=1), time.monotonic()
    assert lost.acquire()
    del lost
    gc.collect()
    newcomer = lock(name)
    # On a machine that has much else to do its lease may be over by now.
    assert not newcomer.acquire() or time.monotonic() - began >= 1
    assert newcomer.is_held or newcomer.acquire(wait=120)


def test_renewing_thread_closes_its_connection(name: str) -> None:
    """An open one would prevent dropping a test database and count against the server's limit."""
    opened: list[BaseDatabaseWrapper] = []

    def note(connection: BaseDatabaseWrapper, **_: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            opened.append(connection)

    connection_created.connect(note)
    try:
        with lock(name, lease=KEPT_SECONDS) as held:
            assert wait_until(lambda: bool(opened), 60)
            held.check()
        assert wait_until(lambda: all(one.connection is None for one in opened), 60)
    finally:
        connection_created.disconnect(note)
