"""The part of upkeep that deletes unused rows, such as those of released locks and free unique
keys.

Such rows do no harm, but their number grows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from uuid import UUID

from stoker.brokers.adapters import held_by_brokers
from stoker.conf import Settings
from stoker.jobs.backends import backends_with
from stoker.models import Begun, LockKey, LogChunk, Note, Relayed, Schedule, Tick, UniqueKey
from stoker.models.begun import KEPT_SECONDS
from stoker.models.outbox import RELAYED_SECONDS

AT_ONCE = 500
OFTEN_ENOUGH_SECONDS = 3600.0
UNUSED_LOCK_SECONDS = 24 * 3600.0
TICKS_SECONDS = 60.0
LOGS_SECONDS = 30.0
PAGES = 20
"""Maximum number of pages per run. Rows in use are read as well, and may be many."""


class Leftovers:
    """The unused rows of one store.

    Args:
        beat: called after each batch, as a heartbeat.
    """

    def __init__(self, alias: str, beat: Callable[[], None]) -> None:
        self._alias = alias
        self._beat = beat
        # The first run is not at the start, so that repeated relays are still recognised if no
        # cluster has run for long.
        self._due = {"relayed": time.monotonic() + OFTEN_ENOUGH_SECONDS}
        """Rows -> time of the next run."""
        self._last: dict[str, UUID] = {}
        """Rows that are read in pages -> the last key of the page before."""

    def forget_locks(self) -> int:
        """Delete named locks that have been free for a day. Return their number."""
        locks = LockKey.objects.using(self._alias)
        return self._forget("locks", partial(locks.forget, UNUSED_LOCK_SECONDS, AT_ONCE))

    def forget_relayed(self) -> int:
        """Delete the records of relayed outbox rows that can no longer be relayed twice. Return
        their number."""
        relayed = Relayed.objects.using(self._alias)
        return self._forget("relayed", partial(relayed.forget, RELAYED_SECONDS, AT_ONCE))

    def forget_begun(self) -> int:
        """Delete the records of started at-most-once jobs, long after the jobs ended. Return their
        number.

        Raises:
            BrokerUnavailable: it is unknown whether some of the jobs have ended.
        """
        if not self._is_due("begun", OFTEN_ENOUGH_SECONDS):
            return 0
        forgotten = 0
        at_brokers = partial(held_by_brokers, self._alias)
        for count in Begun.objects.using(self._alias).forget(KEPT_SECONDS, AT_ONCE, at_brokers):
            forgotten += count
            self._beat()
        return forgotten

    def forget_logs(self, *, often: bool) -> int:
        """Delete log lines whose retention has ended. Return the number of deleted chunks.

        Args:
            often: run more often, because the setting ``LOGS`` is on.
        """
        chunks = LogChunk.objects.using(self._alias)
        pause = LOGS_SECONDS if often else OFTEN_ENOUGH_SECONDS
        return self._forget("logs", partial(chunks.forget, AT_ONCE), pause)

    def forget_notes(self) -> int:
        """Delete progress notes of jobs that have ended, in pages. Return their number."""
        return self._forget_in_pages("notes", Note.objects.using(self._alias).forget)

    def forget_keys(self) -> int:
        """Delete unique keys whose job has ended, in pages. Return their number."""
        return self._forget_in_pages("keys", UniqueKey.objects.using(self._alias).forget)

    def forget_ticks(self, settings: Settings) -> int:
        """Delete the ticks of each schedule beyond the ``KEEP_TICKS`` of its backend, in pages of
        schedules. Return their number.

        Args:
            settings: for the schedules of backends that are not in ``TASKS`` any more.
        """
        ticks = Tick.objects.using(self._alias)
        schedules = Schedule.objects.using(self._alias).order_by("pk").values_list("pk", "backend")
        keep = {one.alias: one.keep_ticks for one in backends_with(settings)}

        def page(after: UUID | None, limit: int) -> tuple[int, UUID | None]:
            rows = list((schedules if after is None else schedules.filter(pk__gt=after))[:limit])
            numbers = ticks.numbers_of([schedule_id for schedule_id, _ in rows])
            forgotten = 0
            for schedule_id, alias in rows:
                most = keep.get(alias, settings.keep_ticks)
                if numbers.get(schedule_id, 0) > most:
                    forgotten += self._repeat(partial(ticks.forget, schedule_id, most, AT_ONCE))
            return forgotten, rows[-1][0] if len(rows) == limit else None

        return self._forget_in_pages("ticks", page, TICKS_SECONDS)

    def _forget(
        self, rows: str, batch: Callable[[], int], pause_seconds: float = OFTEN_ENOUGH_SECONDS
    ) -> int:
        return self._repeat(batch) if self._is_due(rows, pause_seconds) else 0

    def _is_due(self, rows: str, pause_seconds: float) -> bool:
        """Return whether it is time for the next run, and begin the pause after it."""
        now = time.monotonic()
        if now < self._due.get(rows, 0.0):
            return False
        self._due[rows] = now + pause_seconds
        return True

    def _repeat(self, batch: Callable[[], int]) -> int:
        """Call ``batch``, which returns the number of rows it deleted, until it deletes none."""
        forgotten = 0
        while count := batch():
            forgotten += count
            self._beat()
        return forgotten

    def _forget_in_pages(
        self,
        rows: str,
        page: Callable[[UUID | None, int], tuple[int, UUID | None]],
        pause_seconds: float = OFTEN_ENOUGH_SECONDS,
    ) -> int:
        """Read a number of pages, after those of the previous run. After the last page and a pause,
        begin with the first one."""
        if time.monotonic() < self._due.get(rows, 0.0):
            return 0
        forgotten, last = 0, self._last.pop(rows, None)
        for _ in range(PAGES):
            count, last = page(last, AT_ONCE)
            forgotten += count
            self._beat()
            if last is None:
                self._due[rows] = time.monotonic() + pause_seconds
                return forgotten
            self._last[rows] = last
        return forgotten
