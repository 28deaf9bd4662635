"""Whether leases that seem to have ended may be taken over now."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from stoker.brokers.contract import Broker
from stoker.conf import Settings
from stoker.signals import tell
from stoker.store.engines.sessions import LONGEST_PAUSE_SECONDS
from stoker.store.written import MICROSECONDS, database_now_us

JUMP_SHARE = 0.1
"""A clock that gained more than this share of a lease since the last check was set ahead."""


class WatchedClocks:
    """Detects that a server's clock was set ahead. Leases of live clusters would then seem to have
    ended.

    Live clusters extend their leases within one lease by the monotonic clock, or stop their jobs.

    Args:
        what: whose clock it is, for the log.
        read: returns server -> seconds since 1970 on its clock, for the servers that answer.
        lease_seconds: of the cluster.
    """

    def __init__(
        self, what: str, read: Callable[[], Mapping[str, float]], lease_seconds: float
    ) -> None:
        self._what = what
        self._read = read
        self._lease_seconds = lease_seconds
        self._seen: dict[str, tuple[float, float]] = {}
        """Server -> our monotonic time before it was asked, and its time."""
        self._good_at = 0.0

    def can_be_trusted(self) -> bool:
        """Return whether leases that have ended on these clocks have really ended."""
        asked_at = time.monotonic()
        clocks = self._read()
        answered_at = time.monotonic()
        for server, now in clocks.items():
            seen_at, seen = self._seen.get(server, (answered_at, now))
            ahead_seconds = now - seen - (answered_at - seen_at)
            if ahead_seconds > self._lease_seconds * JUMP_SHARE:
                pause_seconds = self._lease_seconds
                tell(
                    "clock_set_ahead",
                    what=self._what,
                    seconds=ahead_seconds,
                    pause_seconds=pause_seconds,
                )
                self._good_at = answered_at + pause_seconds
            self._seen[server] = asked_at, now
        return answered_at >= self._good_at


def database_clock(settings: Settings) -> WatchedClocks:
    """Return the clock by which leases in the store end."""

    def read() -> dict[str, float]:
        return {settings.database: database_now_us(settings.database) / MICROSECONDS}

    return WatchedClocks("database", read, settings.lease_seconds)


def broker_clock(settings: Settings, broker: Broker | None) -> WatchedClocks:
    """Return the clocks by which leases at the broker outside the store end, if there is one."""
    return WatchedClocks("broker", broker.clocks if broker else dict, settings.lease_seconds)


def release_seconds(settings: Settings) -> float:
    """Return how long after an outage a living cluster may take to extend or release its leases: a
    pause, and a call that the outage has left without an answer. At most a lease."""
    return min(settings.lease_seconds, LONGEST_PAUSE_SECONDS + settings.database_seconds)


class Outages:
    """Gives living clusters time after an outage of the store or a broker. They extend or release
    the leases that ended meanwhile, and such a release does not count as an attempt.

    Args:
        seconds: length of that time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._away: set[Broker] = set()
        self._over_at: dict[Broker, float] = {}

    def note(self, place: Broker) -> None:
        """Record that the store or broker did not answer. A further outage within the time after
        the last one does not prolong that time, so that it ends."""
        if time.monotonic() >= self._over_at.get(place, 0.0):
            self._away.add(place)

    def are_over(self, place: Broker) -> bool:
        """Return whether living clusters have had time since the last outage of this store or
        broker.

        Raises:
            BrokerUnavailable: it does not answer yet.
        """
        if place in self._away:
            place.ping()
            self._away.remove(place)
            self._over_at[place] = time.monotonic() + self._seconds
        return time.monotonic() >= self._over_at.get(place, 0.0)
