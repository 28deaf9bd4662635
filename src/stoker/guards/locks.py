"""``stoker.lock()``: one holder at a time, whatever process or host it is in."""

from __future__ import annotations

from functools import partial

from .holding import Terms
from .lock_keys import key_of, refuse_bad_name
from .lock_stores.choice import store_for
from .named_lock import NamedLock
from .pauses import Seconds, checked_if_given, checked_seconds

SHORTEST_LEASE_SECONDS = 1.0


def lock(
    name: str,
    *,
    wait: Seconds | None = 0.0,
    lease: Seconds = 30.0,
    steal_after: Seconds | None = None,
    cache: str | None = None,
    backend: str = "default",
) -> NamedLock:
    """A lock that one holder at a time can have, over all processes and hosts::

        with stoker.lock(f"feed:{feed_id}") as held:
            ...

        async with stoker.lock("report", wait=5):
            ...

    Its lease is renewed in the background for as long as the holder's process lives, so it never
    ends under a holder that is only slow; when the process dies, the lock is free one lease later.

    Args:
        name: any string that is not empty; what begins with "stoker:" is Stoker's own.
        wait: seconds (or a timedelta) to wait while another has it; 0 = do not, None = for ever.
        lease: seconds for which the lock outlives its holder; at least 1.
        steal_after: take the lock from a living holder that has had it for so many seconds.
            It learns of that at its next renewal, after a third of its lease at most.
        cache: keep the lock in this cache of ``CACHES`` instead of the database.
        backend: the entry of ``TASKS`` whose database keeps the lock, where no cache is named.

    Returns:
        An object for ``with``, ``async with``, ``acquire()`` and ``release()``. It may be used
        again and again, but is had once at a time: two objects of one name exclude one another,
        in the same thread too.

    Raises:
        TypeError, ValueError: when an argument cannot be used.
    """
    refuse_bad_name(name)
    return NamedLock(
        Terms(
            name=name,
            key=key_of(name),
            lease_seconds=checked_seconds("lease", lease, SHORTEST_LEASE_SECONDS),
            wait_seconds=checked_if_given("wait", wait),
            steal_after_seconds=checked_if_given("steal_after", steal_after),
            find_store=partial(store_for, cache, backend),
        )
    )
