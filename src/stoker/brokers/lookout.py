"""How a cluster sleeps on a transport: a thread waits there for messages, and brings them along.

It is sent out by a claim that has found nothing, so it never takes what nobody has room for. What
it has brought is for the next claim; if none comes soon, others shall have it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from stoker.exceptions import BrokerUnavailable

from .transport import Parcel, Transport
from .wake import Wake

KEEP_SECONDS = 1.0
"""How long what was brought waits for a claim."""
AWAY_SECONDS = 2.0


class Errand(NamedTuple):
    """What to wait for."""

    queues: Sequence[str]
    limit: int
    passed_over: Collection[str]


class Lookout(Wake):
    """One thread, which waits for messages whenever it is sent out.

    Args:
        transport: nobody else's.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._turn = threading.Condition()
        self._thread: threading.Thread | None = None
        self._errand: Errand | None = None
        self._brought: list[Parcel] = []
        self._is_over = False

    # -- for claims -------------------------------------------------------------------------------

    def send_out(self, errand: Errand) -> None:
        """Wait for this from now on, until some of it has come."""
        with self._turn:
            if self._is_over:
                return
            self._errand = errand
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)
                self._thread.start()
            self._turn.notify()

    def is_out(self, errand: Errand) -> bool:
        """Whether it waits for just this."""
        with self._turn:
            return self._errand is not None and self._errand._replace(limit=0) == errand._replace(
                limit=0
            )

    def take(self) -> list[Parcel]:
        """What it has brought."""
        with self._turn:
            brought, self._brought = self._brought, []
            self._turn.notify()
        return brought

    # -- for sleepers -----------------------------------------------------------------------------

    def fileno(self) -> int | None:
        return None if self._is_over else self._read

    def is_due(self) -> bool:
        with suppress(BlockingIOError):
            return not self._is_over and bool(os.read(self._read, 4096))
        return False

    def close(self) -> None:
        """What it has brought is for others. A request that still waits is left to itself."""
        with self._turn:
            if self._is_over:
                return
            self._is_over = True
            self._errand = None
            os.close(self._read)
            os.close(self._write)
            self._turn.notify()
        if self._thread is None:
            self._transport.close()

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while errand := self._next_errand():
                self._look_out(errand)
        finally:
            self._transport.close()

    def _next_errand(self) -> Errand | None:
        with self._turn:
            self._turn.wait_for(lambda: self._errand is not None or self._is_over)
            return self._errand

    def _look_out(self, errand: Errand) -> None:
        try:
            parcels = self._transport.receive(
                errand.queues,
                errand.limit,
                passed_over=errand.passed_over,
                wait_seconds=self._transport.wait_seconds,
            )
        except BrokerUnavailable:  # the next claim will find that out, too
            self._forget(errand)
            time.sleep(AWAY_SECONDS)
            return
        if parcels:
            self._bring(parcels)

    def _forget(self, errand: Errand) -> None:
        with self._turn:
            if self._errand == errand:
                self._errand = None

    def _bring(self, parcels: list[Parcel]) -> None:
        with self._turn:
            self._errand = None
            if not self._is_over:
                self._brought = parcels
                with suppress(BlockingIOError):
                    os.write(self._write, b"!")
                self._turn.wait_for(lambda: not self._brought or self._is_over, KEEP_SECONDS)
                parcels, self._brought = self._brought, []
        if parcels:
            self._transport.give_back(parcels)
