"""Wake pushers by a channel of Redis."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stoker.exceptions import BrokerUnavailable
from stoker.store.wake import Wake

from .connection import FAILURES

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 30.0
"""First and longest pause before the next try to connect."""


class RedisWake(Wake):
    """Listen for wake-ups on a connection of its own.

    Args:
        connect: returns a client that is used only here.
    """

    def __init__(self, connect: Callable[[], Any], channel: str) -> None:
        self._connect = connect
        self._client: Any = None
        self._channel = channel
        self._listening: Any = None
        self._try_again_at = 0.0
        self._pause_seconds = 0.0
        self._has_listened = False
        self._was_deaf = False
        """Whether a wake-up may have been missed between two connections."""
        self._listen()

    def fileno(self) -> int | None:
        self._listen()
        connection = None if self._listening is None else self._listening.connection
        socket = getattr(connection, "_sock", None)
        return None if socket is None else int(socket.fileno())

    def is_due(self) -> bool:
        self._listen()
        missed, self._was_deaf = self._was_deaf, False
        if self._listening is None:
            return False
        heard = False
        try:
            while (message := self._listening.get_message(timeout=0)) is not None:
                heard = heard or message["type"] == "message"
        except FAILURES:
            self._hang_up()
            return True
        return heard or missed

    def close(self) -> None:
        self._hang_up()
        self._try_again_at = float("inf")

    def _listen(self) -> None:
        if self._listening is not None or time.monotonic() < self._try_again_at:
            return
        try:
            self._client = self._connect()
            self._listening = self._client.pubsub()
            self._listening.subscribe(self._channel)
        except (BrokerUnavailable, *FAILURES):
            self._hang_up()
        else:
            self._was_deaf = self._has_listened
            self._has_listened = True
            self._pause_seconds = 0.0

    def _hang_up(self) -> None:
        """Close the connection, and the client, which would connect to the same node of a Redis
        cluster again. The next try is after a growing pause."""
        self._pause_seconds = min(
            max(FIRST_PAUSE_SECONDS, 2 * self._pause_seconds), LONGEST_PAUSE_SECONDS
        )
        self._try_again_at = time.monotonic() + self._pause_seconds
        for one in (self._listening, self._client):
            if one is not None:
                with suppress(*FAILURES):
                    one.close()
        self._listening = self._client = None
