"""Relays of the outboxes in databases: jobs on their way to a broker outside the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy

from django.db import Error, connections

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.jobs.relay import RelayRefused, relay_from
from stoker.signals import tell
from stoker.store.engines import engine_for

OUTBOX_SECONDS = 1.0
"""Pause between two reads of an outbox. An idle cluster on Redis used a quarter of its processor
time to read it twice a second; the process that enqueues a job relays it at once."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 10.0
"""First and longest pause between two reads of an outbox while its database or the broker fails,
and between two log lines about jobs that cannot be relayed."""


class GrowingPause:
    """The pause after a failure. It doubles with each further one."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ends_at = 0.0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._ends_at

    def note(self, *, has_failed: bool) -> None:
        doubled = max(FIRST_PAUSE_SECONDS, 2 * self.seconds)
        self.seconds = min(LONGEST_PAUSE_SECONDS, doubled) if has_failed else 0.0
        self._ends_at = time.monotonic() + self.seconds


class OutboxRelay:
    """Relays the outbox of one database, for this thread. Every cluster does so, without the upkeep
    lease.

    While the database or the broker fails, the outbox is read after growing pauses. A job that
    cannot be relayed delays no others; only the log lines about it have growing pauses.

    Args:
        settings: the backend's.
        alias: of the database.
        beat: called often, as a heartbeat.
    """

    def __init__(self, settings: Settings, alias: str, beat: Callable[[], None]) -> None:
        self._settings = settings
        self._alias = alias
        self._beat = beat
        self._pause, self._log_pause = GrowingPause(), GrowingPause()

    def relay_if_due(self) -> None:
        if not self._pause.is_over:
            return
        self._beat()
        try:
            relay_from(self._settings, self._alias, self._beat)
            self._log_pause.note(has_failed=False)
        except RelayRefused as error:
            if self._log_pause.is_over:
                self._tell(error)
                self._log_pause.note(has_failed=True)
        except Exception as error:  # noqa: BLE001 - a failure here must not stop the cluster
            self._tell(error)
            self._pause.note(has_failed=True)
            with suppress(Error):
                connections.close_all()  # those of this thread
            return
        self._pause.note(has_failed=False)

    def _tell(self, error: Exception) -> None:
        tell("upkeep_failed", step=f"outbox of {self._alias!r}", error=error)


class Relays:
    """One thread for each other database that may have an outbox of this backend.

    Such a database may be unreachable, or accept connections and never answer. That must not delay
    the scheduler, upkeep or other relays. So each database has its own thread and connections,
    deadlines, and growing pauses while it fails.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=[alias], name=f"outbox {alias}", daemon=True)
            for alias in broker_for(settings).outboxes()
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
        connection = connections[alias]  # belongs to this thread alone
        connection.settings_dict = deepcopy(connection.settings_dict)
        connection.settings_dict["AUTOCOMMIT"] = True  # else atomic() would not commit
        engine_for(connection).limit_calls(connection, self._settings.database_seconds)
        outbox = OutboxRelay(self._settings, alias, lambda: None)
        while not self._is_over.wait(OUTBOX_SECONDS):
            outbox.relay_if_due()
        connections.close_all()  # those of this thread
