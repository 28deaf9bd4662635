"""Keeping the leases of everything this cluster holds, prefetched jobs included.

A lease is extended when a third of it is gone. When that fails for too long, the board's fence
lets the sentinel stop the jobs before the first lease ends.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from stoker.brokers.base import Broker, Extension
from stoker.conf import Settings

from . import board as place
from .board import Board, lease_clock
from .flights import Flight, Flights
from .patience import Patience
from .watch import fence_margin_ns

LOCKED_SHARE = 24
"""A lease that another transaction holds is tried again after this part of its time."""


class Leases:
    """The times of all leases held here, on the lease clock."""

    def __init__(self, settings: Settings, broker: Broker, flights: Flights, board: Board) -> None:
        self._lease_seconds = settings.lease_seconds
        self._broker = broker
        self._flights = flights
        self._board = board
        self._margin_seconds = (
            fence_margin_ns(settings) / 1e9 + 2 * self._lease_seconds / LOCKED_SHARE
        )
        self._check_at = 0.0

    def include(self, asked_at: float) -> None:
        """A claim made at that moment was granted."""
        self._set_fence(min(asked_at, self._fenced_from() or asked_at))

    @property
    def next_check(self) -> float:
        """When leases are to be looked at; monotonic seconds."""
        return time.monotonic() + self._check_at - lease_clock()

    def extend_due(self, patience: Patience) -> list[Flight]:
        """Extend what needs it. Returns the flights whose lease is lost, or is about to end because
        another transaction holds it."""
        now = lease_clock()
        if now < self._check_at:
            return []
        old = [one for one in self._flights if now - one.leased_at >= self._lease_seconds / 3]
        pause_seconds = self._lease_seconds / 6
        lost: list[Flight] = []
        if old:
            answer = patience.call(
                lambda: self._broker.extend_unlocked(
                    [flight.delivery.lease for flight in old], lease_seconds=self._lease_seconds
                )
            )
            if answer is None:
                return []
            if answer.value.locked:
                pause_seconds = self._lease_seconds / LOCKED_SHARE
            lost = self._note(old, answer.value, now)
        self._check_at = now + pause_seconds
        self._set_fence(self._flights.oldest_lease())
        return lost

    def _note(self, old: Sequence[Flight], extension: Extension, now: float) -> list[Flight]:
        """Returns those that are lost. What is reported may just have been recorded, and its lease
        be gone for that reason: the monitor will say."""
        lost: list[Flight] = []
        for flight in old:
            flight.is_locked = flight.delivery.lease in extension.locked
            is_lost = flight.delivery.lease in extension.stale
            if flight.is_locked:
                left_seconds = flight.leased_at + self._lease_seconds - now
                is_lost = left_seconds <= self._margin_seconds
            else:
                flight.leased_at = now
            if is_lost and flight.report is None:
                lost.append(flight)
        return lost

    def _fenced_from(self) -> float | None:
        fence_ns = self._board[place.FENCE_NS]
        return fence_ns / 1e9 - self._lease_seconds if fence_ns else None

    def _set_fence(self, leased_at: float | None) -> None:
        ends_at = 0.0 if leased_at is None else leased_at + self._lease_seconds
        self._board[place.FENCE_NS] = round(ends_at * 1e9)
