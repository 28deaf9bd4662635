"""A lock that this process has taken: its owner, and its lease by this process's own clock."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID
from weakref import WeakSet

from stoker.locks.stores.contract import LockStore
from stoker.signals import tell
from stoker.values.forks import after_fork

RENEWALS_PER_LEASE = 3
LONGEST_PAUSE_SECONDS = 1.0
"""Maximum pause between a failed renewal and the next one."""
CALL_SECONDS = 5
"""Time-out of one renewal, in seconds. It is short, because the renewals of other locks wait for
it."""
TOO_LATE = "its lease ended before it was renewed"


@dataclass(frozen=True, slots=True)
class LockTerms:
    """The arguments that a lock was created with."""

    name: str
    key: str
    lease_seconds: float
    wait_seconds: float | None
    steal_after_seconds: float | None
    find_store: Callable[[], LockStore]

    @property
    def margin_seconds(self) -> float:
        """Remaining lease below which a renewal is overdue and the lock may be lost soon."""
        return self.lease_seconds / RENEWALS_PER_LEASE


class Holding:
    """A lock that was taken, and its state.

    This process counts the lease from before its request, so the lease ends here before it ends in
    the store. Once it has ended here, a later renewal in the store does not revive it.

    Args:
        asked_at: value of ``now()`` just before the request.
        is_renewed: False for a lock that no other connection can see; its lease does not end.
    """

    def __init__(
        self, terms: LockTerms, owner: UUID, fence: int, asked_at: float, is_renewed: bool
    ) -> None:
        self.terms = terms
        self.owner = owner
        self.fence = fence
        self.is_renewed = is_renewed
        self._pid = os.getpid()
        self._is_released = False
        self._lost_because = ""
        self._has_complained = False
        self._start_lease(asked_at)

    @property
    def is_ours(self) -> bool:
        """Whether this process took the lock. A forked child must not touch its parent's locks."""
        return self._pid == os.getpid()

    @property
    def is_over(self) -> bool:
        """Whether the lock was released or is known to be lost."""
        return self._is_released or bool(self._lost_because)

    @property
    def is_alive(self) -> bool:
        return self.is_ours and not self.is_over and now() < self._ends_at

    @property
    def is_certain(self) -> bool:
        """Whether the lock is held and its lease will not end soon."""
        return self.is_alive and now() < self._ends_at - self.terms.margin_seconds

    @property
    def seconds_left(self) -> float:
        """Seconds until the lease ends."""
        return max(0.0, self._ends_at - now())

    @property
    def why_over(self) -> str:
        """Reason for error messages; empty while the lock is held."""
        if self.is_alive:
            return ""
        if not self.is_ours:
            return "another process took it, and this process is a copy of that one"
        if self._is_released:
            return "it was released"
        return self._lost_because or TOO_LATE

    def end(self) -> bool:
        """Stop renewing the lease. Return whether the lock was held until now."""
        was_alive = self.is_alive
        if not was_alive and not self.is_over and self.is_ours:
            self._lose(TOO_LATE)
        self._is_released = True
        return was_alive

    def renew(self) -> None:
        """Renew the lease. If the lock turns out to be lost, mark it as lost."""
        asked_at = now()
        if asked_at >= self._ends_at:
            self._lose(TOO_LATE)
            return
        try:
            store = self.terms.find_store()
            store.give_up_after(CALL_SECONDS)
            is_renewed = store.renew(self.terms.key, self.owner, self.terms.lease_seconds)
        except Exception as error:  # noqa: BLE001 - caches and drivers raise what they like
            self._put_off(error)
            return
        if is_renewed:
            self._has_complained = False
            self._start_lease(asked_at)
        else:
            self._lose("the store no longer has it, or it has another holder")

    def _start_lease(self, asked_at: float) -> None:
        lease_seconds = self.terms.lease_seconds
        self._ends_at = asked_at + lease_seconds if self.is_renewed else math.inf
        self.renew_at = asked_at + lease_seconds / RENEWALS_PER_LEASE

    def _put_off(self, error: Exception) -> None:
        pause = min(LONGEST_PAUSE_SECONDS, self.terms.lease_seconds / 10)
        self.renew_at = now() + pause
        if not self._has_complained:
            self._has_complained = True
            tell("lock_not_renewed", name=self.terms.name, error=error, seconds=self.seconds_left)

    def _lose(self, because: str) -> None:
        if not self._is_released:  # otherwise it was released during the renewal
            self._lost_because = because
            tell("lock_lost", name=self.terms.name, because=because)


class Renewal:
    """The held locks of one process, and the thread that renews them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: WeakSet[Holding] = WeakSet()
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None

    def watch(self, holding: Holding) -> None:
        """Start renewing this lock."""
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="stoker lock renewal", daemon=True)
                thread.start()  # this may fail: then the next lock tries it again
                self._thread = thread
            self._held.add(holding)
            if holding.renew_at < self._wakes_at:
                self._changed.notify()

    def forget(self, holding: Holding) -> None:
        """Stop renewing this lock."""
        with self._changed:
            self._held.discard(holding)

    def renew_due(self) -> None:
        """Renew the locks that are due."""
        with self._changed:
            due = [one for one in self._held if one.renew_at <= now() and not one.is_over]
        for holding in due:
            holding.renew()
            if holding.is_over:
                self.forget(holding)
        for holding in due:
            with suppress(Exception):  # whatever the driver says: the next call connects anew
                holding.terms.find_store().rest()

    def seconds_to_next(self) -> float | None:
        """Return the seconds until the next renewal, or None if no lock is held."""
        moments = [holding.renew_at for holding in self._held if not holding.is_over]
        return max(0.0, min(moments) - now()) if moments else None

    def _run(self) -> None:
        while True:
            with self._changed:
                pause = self.seconds_to_next()
                self._wakes_at = math.inf if pause is None else now() + pause
                if pause != 0:
                    self._changed.wait(pause)
                self._wakes_at = -math.inf
            self.renew_due()


renewal = Renewal()
"""The renewal thread of this process."""


def _begin_anew() -> None:
    global renewal
    renewal = Renewal()


# A child has none of its parent's threads, and none of its locks either.
after_fork(_begin_anew)


_COUNTS_SLEEP: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Return monotonic seconds. On Linux this clock runs while the machine is suspended, so a lease
    ends while a laptop is closed."""
    if _COUNTS_SLEEP is None:
        return time.monotonic()
    return time.clock_gettime(_COUNTS_SLEEP)
