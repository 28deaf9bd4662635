"""Relays from the outboxes of other databases than the store's.

Such a database may be unreachable, or accept connections and never answer. That must not delay the
scheduler, upkeep or other relays. So each database has its own thread and connections, deadlines,
and growing pauses while it fails.
"""

from __future__ import annotations

import threading
import time
from copy import deepcopy

from django.db import connections

from stoker.brokers.adapters import outboxes_of
from stoker.conf import Settings
from stoker.jobs.relay import relay_from
from stoker.signals import tell
from stoker.store.engines import engine_for

LOOK_SECONDS = 0.5
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 10.0


class Relays:
    """One thread for each other database that may have an outbox of this backend."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=[alias], name=f"outbox {alias}", daemon=True)
            for alias in outboxes_of(settings)
            if alias != settings.database
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float) -> None:
        """Stop the threads. A database that does not answer is abandoned after this time."""
        self._is_over.set()
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, alias: str) -> None:
        connection = connections[alias]  # this thread's; project code in others has its own
        connection.settings_dict = deepcopy(connection.settings_dict)
        engine_for(connection).limit_calls(connection, self._settings.database_seconds)
        pause_seconds = 0.0
        while not self._is_over.wait(pause_seconds or LOOK_SECONDS):
            try:
                relay_from(self._settings, alias, lambda: None)
                pause_seconds = 0.0
            except Exception as error:  # noqa: BLE001 - a failure here must not stop the cluster
                tell("upkeep_failed", step=f"outbox of {alias!r}", error=error)
                doubled = max(FIRST_PAUSE_SECONDS, 2 * pause_seconds)
                pause_seconds = min(LONGEST_PAUSE_SECONDS, doubled)
                connections.close_all()  # those of this thread
        connections.close_all()
