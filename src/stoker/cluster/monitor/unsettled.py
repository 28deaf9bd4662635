"""Recorded jobs whose leases a broker outside the store has still to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from uuid import UUID

from stoker.brokers.contract import LeaseId, Leases, PartlyUnavailable, Return
from stoker.brokers.dispatch import Dispatch
from stoker.signals import tell

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 5.0
"""First and longest pause before jobs on a server that did not answer are settled again."""


class Unsettled:
    """Recorded jobs whose leases are not yet settled with the broker outside the store.

    Those of one call may be on their way to the broker while more are added. If one of several
    servers does not answer, its jobs stay here, and do not delay those of the others.
    """

    def __init__(self, broker: Dispatch) -> None:
        self._broker = broker
        self._begun: list[int] = []
        """Delivery numbers of the call that the broker has not answered yet."""
        self._end: Callable[[], object] | None = None
        """Function that waits for the broker's answer to that call."""
        self._pause_seconds = self._try_at = 0.0
        """Pause after a call that one of several servers did not answer, and its end."""
        self._start_anew()

    def _start_anew(self) -> None:
        self._numbers: list[tuple[int, LeaseId]] = []
        self._job_ids: list[str] = []
        self._lease_ids: list[LeaseId] = []
        self._again: list[Return] = []
        self._failed: set[UUID] = set()
        self._left = 0
        """Number of these jobs whose server did not answer the last call."""

    def __len__(self) -> int:
        """Return the number of jobs to settle now: during the pause, without those whose server did
        not answer."""
        count = len(self._job_ids) + len(self._again)
        return count - self._left if self._left and time.monotonic() < self._try_at else count

    @property
    def has_begun(self) -> bool:
        """Whether the broker has not answered a call yet."""
        return self._end is not None

    def put(self, over: Leases, again: Sequence[Return], failed: Collection[UUID]) -> None:
        """Add jobs to ack and release in the next call."""
        self._job_ids += over.job_ids
        self._lease_ids += over.lease_ids
        self._again += again
        self._failed |= set(failed)

    def note(self, numbers: Sequence[tuple[int, LeaseId]]) -> None:
        """Add delivery numbers with their lease ids. They are reported to the pusher once the
        broker has settled the jobs."""
        self._numbers += numbers

    def begin(self) -> None:
        """Send the jobs to the broker. If that fails, they stay here."""
        over = Leases(self._job_ids, self._lease_ids)
        numbers, again, failed = self._numbers, self._again, self._failed
        try:
            self._end = self._broker.begin_settle(over, again, failed)
        except PartlyUnavailable as error:
            self._end = lambda: None
            self._start_anew()
            left = {lease.lease_id for lease in error.leases}
            places = [place for place, one in enumerate(over.lease_ids) if one in left]
            self.put(
                over.take(places), [one for one in again if one.lease.lease_id in left], failed
            )
            self._left = len(places) + len(self._again)
            self.note([one for one in numbers if one[1] in left])
            self._begun = [number for number, lease_id in numbers if lease_id not in left]
            self._pause(error)
        else:
            self._begun = [number for number, _ in numbers]
            self._start_anew()
            self._pause_seconds = self._try_at = 0.0

    def _pause(self, error: PartlyUnavailable) -> None:
        if time.monotonic() >= self._try_at:  # otherwise the call was made for other jobs
            doubled = max(FIRST_PAUSE_SECONDS, 2 * self._pause_seconds)
            self._pause_seconds = min(doubled, LONGEST_PAUSE_SECONDS)
            self._try_at = time.monotonic() + self._pause_seconds
            tell("broker_unreachable", error=str(error), seconds=self._pause_seconds)

    def end(self) -> list[int]:
        """Wait until the broker has settled the jobs, and return the numbers of their deliveries.
        If that fails, the next call of this method sends them again."""
        if self._end is not None:
            self._end()
        self._end = None
        return self._begun

    def forget_numbers(self) -> None:
        """Drop the delivery numbers to report, because the new pusher does not know them."""
        self._numbers = []
        self._begun = []
