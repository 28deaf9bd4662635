"""Whether leases that seem to have ended may be taken over now."""

from __future__ import annotations

import time

from stoker.brokers.contract import Broker
from stoker.conf import Settings
from stoker.signals import tell
from stoker.store.engines.sessions import LONGEST_PAUSE_SECONDS
from stoker.store.written import MICROSECONDS, database_now_us

JUMP_SHARE = 0.1
"""A clock that gained more than this share of a lease since the last check was set ahead."""


class DatabaseClock:
    """Detects that the database's clock was set ahead. Leases of live clusters would then seem to
    have ended.

    Live clusters extend their leases within one lease by the monotonic clock, or stop their jobs.

    Args:
        alias: of the database.
        lease_seconds: of the cluster.
    """

    def __init__(self, alias: str, lease_seconds: float) -> None:
        self._alias = alias
        self._lease_seconds = lease_seconds
        self._seen: tuple[float, int] | None = None
        self._good_at = 0.0

    def can_be_trusted(self) -> bool:
        """Return whether leases that have ended on the database's clock have really ended."""
        asked_at = time.monotonic()
        now_us = database_now_us(self._alias)
        answered_at = time.monotonic()
        if self._seen is not None:
            seen_at, seen_us = self._seen
            ahead_seconds = (now_us - seen_us) / MICROSECONDS - (answered_at - seen_at)
            if ahead_seconds > self._lease_seconds * JUMP_SHARE:
                tell("clock_set_ahead", seconds=ahead_seconds, pause_seconds=self._lease_seconds)
                self._good_at = answered_at + self._lease_seconds
        self._seen = asked_at, now_us
        return answered_at >= self._good_at


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
