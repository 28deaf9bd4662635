"""Waiting in several SQS queues at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from stoker.exceptions import BrokerUnavailable

from .transport import Parcel


class Polls:
    """Long polls, a thread for each. The first that brings something ends the wait, and the others
    go on for the next one. What they bring when nobody waits is for others.

    Args:
        receive: waits in one queue for so many messages, for so many seconds.
        give_back: lets others have what came.
    """

    def __init__(
        self,
        receive: Callable[[str, int, float], list[Parcel]],
        give_back: Callable[[Sequence[Parcel]], None],
        at_once: int,
    ) -> None:
        self._receive = receive
        self._give_back = give_back
        self._at_once = at_once
        self._turn = threading.Condition()
        self._under_way: set[str] = set()
        self._brought: list[Parcel] = []
        self._failures: list[BrokerUnavailable] = []
        self._is_waiting = False

    def wait(self, names: Sequence[str], seconds: float) -> list[Parcel]:
        """What the first of them brings.

        Raises:
            BrokerUnavailable: one of them could not be asked.
        """
        until = time.monotonic() + seconds
        with self._turn:
            self._is_waiting = True
            self._failures.clear()
            while not (self._brought or self._failures) and time.monotonic() < until:
                for name in names:
                    if name not in self._under_way:
                        self._under_way.add(name)
                        arguments = (name, seconds)
                        threading.Thread(target=self._poll, args=arguments, daemon=True).start()
                self._turn.wait(max(0.0, until - time.monotonic()))
            self._is_waiting = False
            brought, self._brought = self._brought, []
            if self._failures and not brought:
                raise self._failures[0]
            return brought

    def _poll(self, name: str, seconds: float) -> None:
        parcels: list[Parcel] = []
        failures: list[BrokerUnavailable] = []
        try:
            parcels = self._receive(name, self._at_once, seconds)
        except BrokerUnavailable as error:
            failures.append(error)
        with self._turn:
            self._under_way.discard(name)
            if self._is_waiting:
                self._failures += failures
                self._brought += parcels
                parcels = []
                self._turn.notify()
        if parcels:
            self._give_back(parcels)
