"""The part of upkeep that deletes unused rows, such as those of released locks and free unique
keys.

Such rows do no harm, but their number grows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

from stoker.models import Begun, LockKey, LogChunk, Note, Relayed, Schedule, Tick, UniqueKey
from stoker.models.begun import KEPT_SECONDS
from stoker.models.outbox import RELAYED_SECONDS

AT_ONCE = 500
OFTEN_ENOUGH_SECONDS = 3600.0
UNUSED_LOCK_SECONDS = 24 * 3600.0
TICKS_SECONDS = 60.0
LOGS_SECONDS = 30.0
PAGES = 20
"""Maximum number of pages of keys per run. Keys in use are read as well, and may be many."""


class Leftovers:
    """The unused rows of one store.

    Args:
        beat: called after each batch, as a heartbeat.
    """

    def __init__(self, alias: str, beat: Callable[[], None]) -> None:
        self._alias = alias
        self._beat = beat
        self._locks_at = 0.0
        self._keys_at = 0.0
        self._ticks_at = 0.0
        self._relayed_at = time.monotonic() + OFTEN_ENOUGH_SECONDS
        """Time of the next run. The first run is not at the start, so that repeated relays are
        still recognised if no cluster has run for long."""
        self._begun_at = 0.0
        self._last_key: UUID | None = None
        self._logs_at = 0.0
        self._notes_at = 0.0
        self._last_note: UUID | None = None

    def forget_locks(self) -> int:
        """Delete named locks that have been free for a day. Return their number."""
        now = time.monotonic()
        if now < self._locks_at:
            return 0
        self._locks_at = now + OFTEN_ENOUGH_SECONDS
        forgotten = 0
        locks = LockKey.objects.using(self._alias)
        while count := locks.forget(UNUSED_LOCK_SECONDS, AT_ONCE):
            forgotten += count
            self._beat()
        return forgotten

    def forget_relayed(self) -> int:
        """Delete the records of relayed outbox rows that can no longer be relayed twice. Return
        their number."""
        now = time.monotonic()
        if now < self._relayed_at:
            return 0
        self._relayed_at = now + OFTEN_ENOUGH_SECONDS
        forgotten = 0
        relayed = Relayed.objects.using(self._alias)
        while count := relayed.forget(RELAYED_SECONDS, AT_ONCE):
            forgotten += count
            self._beat()
        return forgotten

    def forget_begun(self) -> int:
        """Delete the records of started at-most-once jobs, long after the jobs ended. Return their
        number."""
        now = time.monotonic()
        if now < self._begun_at:
            return 0
        self._begun_at = now + OFTEN_ENOUGH_SECONDS
        forgotten = 0
        begun = Begun.objects.using(self._alias)
        while count := begun.forget(KEPT_SECONDS, AT_ONCE):
            forgotten += count
            self._beat()
        return forgotten

    def forget_logs(self, *, often: bool) -> int:
        """Delete log lines whose retention has ended. Return the number of deleted chunks.

        Args:
            often: run more often, because the setting ``LOGS`` is on.
        """
        now = time.monotonic()
        if now < self._logs_at:
            return 0
        self._logs_at = now + (LOGS_SECONDS if often else OFTEN_ENOUGH_SECONDS)
        forgotten = 0
        chunks = LogChunk.objects.using(self._alias)
        while count := chunks.forget(AT_ONCE):
            forgotten += count
            self._beat()
        return forgotten

    def forget_notes(self) -> int:
        """Delete progress notes of jobs that have ended, in pages. Return their number."""
        if time.monotonic() < self._notes_at:
            return 0
        forgotten = 0
        notes = Note.objects.using(self._alias)
        for _ in range(PAGES):
            count, self._last_note = notes.forget(self._last_note, AT_ONCE)
            forgotten += count
            self._beat()
            if self._last_note is None:
                self._notes_at = time.monotonic() + OFTEN_ENOUGH_SECONDS
                break
        return forgotten

    def forget_keys(self) -> int:
        """Delete unique keys whose job has ended. Return their number.

        Each run continues after the previous one. An hour after the last page it starts again.
        """
        if time.monotonic() < self._keys_at:
            return 0
        forgotten = 0
        keys = UniqueKey.objects.using(self._alias)
        for _ in range(PAGES):
            count, self._last_key = keys.forget(self._last_key, AT_ONCE)
            forgotten += count
            self._beat()
            if self._last_key is None:
                self._keys_at = time.monotonic() + OFTEN_ENOUGH_SECONDS
                break
        return forgotten

    def forget_ticks(self, keep: int) -> int:
        """Delete all but the newest ``keep`` ticks of each schedule. Return their number."""
        if time.monotonic() < self._ticks_at:
            return 0
        self._ticks_at = time.monotonic() + TICKS_SECONDS
        forgotten = 0
        schedules = Schedule.objects.using(self._alias).values_list("pk", flat=True)
        for schedule_id in list(schedules):
            ticks = Tick.objects.using(self._alias)
            while count := ticks.forget(schedule_id, keep, AT_ONCE):
                forgotten += count
                self._beat()
        return forgotten
