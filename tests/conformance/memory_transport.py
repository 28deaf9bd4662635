"""A transport inside the process, to test what all transports have in common."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from stoker.brokers.contract import Capabilities
from stoker.brokers.transport import Parcel, Transport, as_body, as_message
from stoker.conf import Settings
from stoker.models.job import Message


@dataclass
class Kept:
    """A message and the time from which it can be received."""

    queue: str
    body: bytes
    due: float


class MemoryTransport(Transport):
    """Delivers first in, first out; a message that is not dropped is delivered again later."""

    capabilities = Capabilities(priority=False, max_delay_seconds=3600.0)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.kept: dict[int, Kept] = {}
        self.released = 0
        self._numbers = itertools.count()
        self._lead = 0.0
        self._lock = threading.Lock()

    def another(self) -> Self:
        """Return this transport; the process has only one."""
        return self

    def now(self) -> float:
        """Return the time of its clock, which tests can advance."""
        return time.time() + self._lead

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self._lead += seconds

    def send(self, messages: Sequence[Message]) -> None:
        new = [Kept(one.queue, as_body(one), one.run_after or 0.0) for one in messages]
        with self._lock:
            self.kept |= {next(self._numbers): one for one in new}

    def receive(
        self, queues: Sequence[str], limit: int, *, wait_seconds: float = 0.0
    ) -> list[Parcel]:
        until = time.monotonic() + wait_seconds
        while not (found := self._receive(queues, limit)):
            if time.monotonic() >= until:
                break
            time.sleep(0.01)
        return found

    def extend(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        for parcel in parcels:
            self.kept[parcel.receipt].due = self.now() + self.parcel_seconds
        return list(parcels)

    def _receive(self, queues: Sequence[str], limit: int) -> list[Parcel]:
        with self._lock:
            now = self.now()
            found = [
                (number, one)
                for number, one in self.kept.items()
                if one.due <= now and (not queues or one.queue in queues)
            ][:limit]
            for _, one in found:
                one.due = now + self.parcel_seconds
        return [Parcel(as_message(one.body, one.queue), number) for number, one in found]

    def drop(self, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            self.kept.pop(parcel.receipt, None)

    def release(self, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            self.kept[parcel.receipt].due = 0.0
        self.released += len(parcels)

    def counts(self) -> dict[str, int]:
        return Counter(one.queue for one in self.kept.values())

    def purge(self, queue: str) -> int:
        with self._lock:
            numbers = [number for number, one in self.kept.items() if one.queue == queue]
            for number in numbers:
                del self.kept[number]
        return len(numbers)

    def ping(self) -> None:
        """Return; it is always reachable."""

    def info(self) -> dict[str, Any]:
        return {"broker": "memory://", "server": "this process"}

    def close(self) -> None:
        """Do nothing; there is no connection."""
