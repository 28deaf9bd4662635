"""The monitor: records outcomes, many in one transaction, and tells the pusher which are recorded.
If the store refuses an outcome, the monitor records a failure with the reason instead. Nothing is
acked before it is recorded.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from django.db import DatabaseError, DataError

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import Lease, LeaseId
from stoker.cluster import board as place
from stoker.cluster.board import lease_clock_ns
from stoker.cluster.callbacks import Callbacks
from stoker.cluster.channel import Closed, Stream
from stoker.cluster.process import Child
from stoker.cluster.wire import (
    Reported,
    as_failed,
    id_bytes_of,
    in_ascii,
    is_large,
    lease_id_of,
    open_batch,
    open_report,
)
from stoker.exceptions import BrokerError, NotMigrated, PackageError
from stoker.jobs.failures import tell_failure, tell_stale
from stoker.jobs.faults import fault_of
from stoker.jobs.outcomes import Failed, Tallies
from stoker.jobs.record import LeftOut, Recorder
from stoker.logs.writer import LogWriter
from stoker.signals import call_project_with, tell
from stoker.store.engines.sessions import Patience
from stoker.store.locked_jobs import locked_jobs
from stoker.store.statements import set_deadlines
from stoker.store.transactions import (
    is_conflict,
    is_locked_out,
    is_text_refused,
    may_be_too_large,
    may_pass,
)
from stoker.values.ids import id_of

from .unsettled import Unsettled

BATCH = 1000
LINGER_SECONDS = 0.004
"""How long a batch waits for more outcomes while the monitor is busy and workers have jobs."""
BUSY_BATCH = 20
"""The monitor is busy if the last batch had this size or more."""
SETTLED_TOGETHER = 800
"""Number of recorded jobs that are settled together with a broker outside the store while the
monitor is busy."""
BEAT_SECONDS = 1.0
FAREWELL_SECONDS = 3.0
"""How long queued calls of project code may take when the monitor ends."""

TRIES = 5
CAREFUL_SECONDS = 10.0
LONGEST_LOCKED_PAUSE = 5.0
"""The longest pause before an outcome whose rows are locked is retried."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0


class Aside(NamedTuple):
    """An outcome that could not be recorded and will be retried."""

    due: float
    pause_seconds: float
    reported: Reported
    is_held_up: bool = False
    """Whether the outcome is not itself the reason: other transactions have locked its rows, or a
    broker outside the store does not answer."""


class Refused(Exception):
    """The store refuses this batch, and would refuse it again."""


class NotRecorded(Exception):
    """The store answered with an error of its own, such as a missing permission, a damaged page or
    a sequence that is behind its table. It may record this batch later."""


CAUSED_BY_OUTCOME = (Refused, PackageError, ValueError, TypeError, OverflowError)
"""Errors after which no retry helps: the store, its driver or the codec refuses a value."""


class Unanswered(Exception):
    """A broker outside the store has not recorded a part of a batch (``left_out``). If ``is_away``,
    it is unreachable, and otherwise it answers but refuses."""

    def __init__(self, left_out: LeftOut, *, is_away: bool) -> None:
        super().__init__(str(left_out))
        self.left_out = left_out
        self.is_away = is_away


def main(child: Child) -> None:
    monitor = Monitor(child)
    monitor.run()
    monitor.broker.close()


class Monitor:
    """One cluster's monitor."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.settings = child.plan.settings
        set_deadlines(self.settings, keeps_statements=True)
        self.broker = broker_for(self.settings)
        self.patience = Patience(self.settings, self.broker, self._beat)
        """Makes the calls to the store."""
        has_two = self.broker.broker is not None and self.broker.store is not None
        self.of_broker = (
            Patience(self.settings, self.broker, self._beat) if has_two else self.patience
        )
        """Makes the calls to a broker outside the store."""
        self.tallies = Tallies(self.settings)
        self.unsettled = Unsettled(self.broker)
        self.recorder = Recorder(
            self.settings, self.broker, self.tallies, self.unsettled.put, lease_clock_ns
        )
        self.logs = LogWriter(self.settings)
        self.callbacks = Callbacks(self._beat)
        self.selector = selectors.DefaultSelector()
        self.pusher: Stream | None = None
        self.pending: list[Reported] = []
        self.aside: list[Aside] = []
        self.is_over = False
        self._first_at = 0.0
        self._last_batch = 0
        self._has_all = False
        """Whether all jobs of all workers had been reported when the last report arrived."""
        self._tell_waiting_at = 0.0
        """From this monotonic time, outcomes that wait for the broker are logged again."""
        self._careful_until = 0.0
        """Up to this monotonic time, each batch starts with a search for locked rows, because
        waiting for a lock takes a second."""

    def run(self) -> None:
        call_project_with(self.callbacks.put)
        self.selector.register(self.child.control, selectors.EVENT_READ, self._read_control)
        while not self.is_over:
            self._beat()
            for key, _ in self.selector.select(self._sleep_seconds()):
                key.data()
            while self._is_due():
                self._record()
                self._settle(at_least=SETTLED_TOGETHER)
            self._record_aside()
            self._settle(at_least=SETTLED_TOGETHER if self.pending else 1)
            self._write_logs()
            self.callbacks.look()
            if self.tallies.are_due:
                self.patience.call(self.tallies.write)
        call_project_with(None)
        self._settle()
        if not self.patience.is_waiting:
            self.logs.write_all()
        self.callbacks.close(FAREWELL_SECONDS)
        self.patience.call(self.tallies.write)

    def _write_logs(self) -> None:
        """Write the log lines of jobs if they are due and no outcome waits, or if they are many."""
        while (self.logs.is_full or (self.logs.is_due and not self.pending)) and (
            not self.patience.is_waiting
        ):
            self.patience.check_old_connection()
            self.logs.write()
            self._beat()

    def _beat(self) -> None:
        self.child.board[place.MONITOR_BEAT_NS] = time.monotonic_ns()

    def _sleep_seconds(self) -> float:
        if self.pending:
            return max(0.0, self._first_at + LINGER_SECONDS - time.monotonic())
        unsettled = len(self.unsettled) or self.unsettled.has_begun
        waits = self.aside or unsettled or self.logs.has_waiting
        return FIRST_PAUSE / 4 if waits else BEAT_SECONDS

    def _is_due(self) -> bool:
        if not self.pending:
            return False
        lingers = self._last_batch >= BUSY_BATCH and not self._has_all
        if len(self.pending) >= BATCH or not lingers:
            return True
        return time.monotonic() - self._first_at >= LINGER_SECONDS

    def _read_control(self) -> None:
        for message, descriptor in self.child.control.receive(block=False):
            match message:
                case ("pusher",):
                    assert descriptor is not None
                    self._meet_pusher(Stream(socket.socket(fileno=descriptor)))
                case ("exit",):
                    self.is_over = True

    def _meet_pusher(self, stream: Stream) -> None:
        """Connect to a new pusher. It resends every report that it does not know to be recorded."""
        self._drop_pusher()
        self.pusher = stream
        self.pending.clear()
        self.aside.clear()
        self.unsettled.forget_numbers()
        self.selector.register(stream, selectors.EVENT_READ, self._read_pusher)

    def _drop_pusher(self) -> None:
        if self.pusher is not None:
            self.selector.unregister(self.pusher)
            self.pusher.close()
            self.pusher = None

    def _read_pusher(self) -> None:
        assert self.pusher is not None
        try:
            frames = self.pusher.receive(block=False)
        except Closed:
            self._drop_pusher()
            return
        if frames and not self.pending:
            self._first_at = time.monotonic()
        for word, reported in frames:
            if word in ("reports", "last_reports"):
                self.pending += reported
                self._has_all = word == "last_reports"
            elif word == "logs":
                self.logs.add(reported)
            else:
                self.tallies.add(open_batch(reported))

    def _record(self) -> None:
        batch, self.pending = self.pending[:BATCH], self.pending[BATCH:]
        self._last_batch = len(batch)
        self._first_at = time.monotonic()
        free: Sequence[Reported] = batch
        if time.monotonic() < self._careful_until:
            free, locked = self._parted_by_locks(batch)
            self._put_aside(locked, FIRST_PAUSE)
        if free:
            self._finish(free)

    def _record_aside(self) -> None:
        """Retry the outcomes that were put aside: refused ones one by one, the others together."""
        now = time.monotonic()
        due = [one for one in self.aside if one.due <= now]
        if not due:
            return
        self.aside = [one for one in self.aside if one.due > now]
        held_up = [one for one in due if one.is_held_up]
        for start in range(0, len(held_up), BATCH):
            self._record_unlocked(held_up[start : start + BATCH])
        for one in due:
            if not one.is_held_up:
                pause_seconds = min(2 * one.pause_seconds, LONGEST_PAUSE)
                self._finish([one.reported], pause_seconds)

    def _record_unlocked(self, waiting: Sequence[Aside]) -> None:
        pause_seconds = min(2 * waiting[0].pause_seconds, LONGEST_LOCKED_PAUSE)
        free, locked = self._parted_by_locks([one.reported for one in waiting])
        self._put_aside(locked, pause_seconds)
        if free:
            self._finish(free, pause_seconds)

    def _finish(
        self,
        batch: Sequence[Reported],
        pause_seconds: float = FIRST_PAUSE,
        *,
        asks_for_locks: bool = True,
    ) -> None:
        """Record a batch, and put aside the outcomes whose rows are locked, that need a broker that
        does not answer, or that the store refuses. Refused outcomes are found by halving the
        batch."""
        error = self._try(batch)
        if isinstance(error, Unanswered):
            batch, error = self._without_unanswered(batch, error, pause_seconds), None
        if error is not None and len(batch) > 1:
            if asks_for_locks and is_locked_out(error):
                free, locked = self._parted_by_locks(batch)
                if locked:
                    self._put_aside(locked, pause_seconds)
                    if free:
                        self._finish(free, pause_seconds, asks_for_locks=False)
                    return
            middle = len(batch) // 2
            self._finish(batch[:middle], pause_seconds, asks_for_locks=False)
            self._finish(batch[middle:], pause_seconds, asks_for_locks=False)
            return
        if error is not None:
            (one,) = batch
            if is_locked_out(error):
                self._put_aside(batch, pause_seconds)
                return
            if not self._is_recorded_as_failure(one, error):
                tell("record_put_off", job_id=open_report(*one).delivery.job_id, error=error)
                due = time.monotonic() + pause_seconds
                self.aside.append(Aside(due, pause_seconds, one))
                return
        self._confirm(batch)

    def _parted_by_locks(
        self, batch: Sequence[Reported]
    ) -> tuple[Sequence[Reported], Sequence[Reported]]:
        """Split a batch into the outcomes that can be recorded now and those whose rows are locked.
        If the store does not answer, all count as recordable."""
        job_ids = [id_of(int.from_bytes(id_bytes_of(job))) for _, job in batch]
        self.patience.sleep(self._beat)
        answer = self.patience.call(lambda: locked_jobs(self.settings.database, job_ids))
        if answer is None or not answer.value:
            return batch, ()
        sides: tuple[list[Reported], list[Reported]] = ([], [])
        for reported, job_id in zip(batch, job_ids, strict=True):
            sides[job_id in answer.value].append(reported)
        return sides

    def _put_aside(self, locked: Sequence[Reported], pause_seconds: float) -> None:
        if locked:
            tell("records_wait", count=len(locked))
            now = time.monotonic()
            self._careful_until = now + CAREFUL_SECONDS
            self._hold_up(locked, pause_seconds)

    def _hold_up(self, waiting: Sequence[Reported], pause_seconds: float) -> None:
        due = time.monotonic() + pause_seconds
        self.aside += [Aside(due, pause_seconds, one, is_held_up=True) for one in waiting]

    def _without_unanswered(
        self, batch: Sequence[Reported], error: Unanswered, pause_seconds: float
    ) -> Sequence[Reported]:
        """Put the outcomes aside that the broker did not settle, and return the others. If the
        broker answers now, retry the large ones alone, because their size may be the reason."""
        tell_stale(error.left_out.stale)
        done, waiting, doubtful = list[Reported](), list[Reported](), list[Reported]()
        for reported, lease in zip(batch, open_batch(batch).leases, strict=True):
            if lease not in error.left_out.leases:
                done.append(reported)
            else:
                tries = not error.is_away and is_large(reported)
                (doubtful if tries else waiting).append(reported)
        self._hold_up(waiting, pause_seconds)
        now = time.monotonic()
        if waiting and now >= self._tell_waiting_at and not self.of_broker.is_waiting:
            self._tell_waiting_at = now + pause_seconds
            tell("broker_unreachable", error=str(error), seconds=pause_seconds)
        for one in doubtful:
            self._finish([one], pause_seconds)
        return done

    def _try(self, batch: Sequence[Reported]) -> Exception | None:
        """Record a batch and return None, or the error if the store works but refuses it. An error
        that may pass is retried a few times only, as the batch itself may cause it. A locked row is
        not retried here; a deadlock is. Only the store has to answer: a batch that also needs a
        broker outside it returns Unanswered."""
        failures, record = 0, partial(self._record_or_refuse, batch)
        if self.patience.is_waiting:
            self.patience.sleep(self._beat)
        while failures < TRIES:
            try:
                answer = self.patience.call(record)
            except Exception as error:  # noqa: BLE001 - one bad outcome must not hold up the others
                return error
            if answer is not None:
                if answer.value:
                    tell_stale(answer.value)
                return None
            failure, has_met_a_lock = self.patience.last_error, self.patience.has_met_a_lock
            self.patience.sleep(self._beat)
            if has_met_a_lock and not is_conflict(failure):
                return failure
            if not has_met_a_lock:
                record = partial(self._record_or_refuse, batch, is_again=True)
            failures += self.patience.call((self.broker.store or self.broker).ping) is not None
        return self.patience.last_error

    def _record_or_refuse(self, batch: Sequence[Reported], *, is_again: bool = False) -> set[Lease]:
        """Record a batch.

        Raises:
            Refused: no retry can help.
            NotRecorded: a later retry may help.
            Unanswered: a broker outside the store did not answer for some of the outcomes.
            LeftOut: it did not answer for a large outcome, which was sent alone.
        """
        try:
            return self.recorder.record(open_batch(batch), is_again=is_again)
        except LeftOut as error:
            is_away = self._is_away(batch, error.leases)
            if is_away or len(batch) > 1 or not is_large(batch[0]):
                raise Unanswered(error, is_away=is_away) from error
            raise
        except (BrokerError, NotMigrated, DatabaseError) as error:
            if isinstance(error, DataError) or is_text_refused(error):
                raise Refused(error) from error
            if isinstance(error, DatabaseError) and not may_pass(error):
                raise NotRecorded(error) from error
            raise

    def _is_away(self, batch: Sequence[Reported], left_out: Collection[Lease]) -> bool:
        """Return whether the broker is unreachable, or the one of its servers that has left out a
        large outcome."""
        assert self.broker.broker is not None
        if self.of_broker.call(self.broker.broker.ping) is None:
            return True
        leases = zip(batch, open_batch(batch).leases, strict=True)
        large = [one for reported, one in leases if one in left_out and is_large(reported)]
        return not self.broker.broker.answers_for(large)

    def _is_recorded_as_failure(self, reported: Reported, error: Exception) -> bool:
        """Record the outcome with its texts in ASCII if the database cannot store one of their
        characters, or a failure in its place if the store will always refuse it. Return whether
        that worked. After any other error change nothing, because it may pass."""
        if is_text_refused(error) and self._try([in_ascii(reported)]) is None:
            return True
        attempted = open_report(*reported)
        may_be_too_long = isinstance(error, LeftOut) or may_be_too_large(error)
        is_too_large = may_be_too_long and is_large(reported)
        if not (is_too_large or isinstance(error, CAUSED_BY_OUTCOME)):
            return False
        is_wrapped = isinstance(error, Refused | LeftOut)
        cause = error.__cause__ if is_wrapped and error.__cause__ else error
        failed = Failed(fault_of(cause))
        if self._try([as_failed(reported, failed)]) is not None:
            return False
        tell("record_failed", job_id=attempted.delivery.job_id, error=cause)
        tell_failure(self.settings, replace(attempted, outcome=failed))
        return True

    def _settle(self, at_least: int = 1) -> None:
        """Settle recorded jobs with a broker outside the store, many in one call. Then tell the
        pusher. If the broker is unreachable, do both later.

        Args:
            at_least: the minimum number of jobs. With fewer no call begins. If it is more than 1,
                more outcomes may follow, which are recorded before the answer is awaited.
        """
        if len(self.unsettled) >= at_least and self._end_settling():
            self.of_broker.call(self.unsettled.begin)
        if at_least == 1:
            self._end_settling()

    def _end_settling(self) -> bool:
        """Wait for the broker's answer to the last call, and tell the pusher. Return False if the
        broker did not answer."""
        if not self.unsettled.has_begun:
            return True
        settled = self.of_broker.call(self.unsettled.end)
        if settled is not None:
            self._tell_pusher(settled.value)
        return settled is not None

    def _confirm(self, batch: Sequence[Reported]) -> None:
        """Tell the pusher that these outcomes are recorded, as soon as their leases are settled.
        Those of leases in the store are already."""
        if len(self.unsettled):
            sides: tuple[list[tuple[int, LeaseId]], list[tuple[int, LeaseId]]] = ([], [])
            for report, job in batch:
                lease_id = lease_id_of(job)
                sides[self.broker.is_inside(lease_id)].append((report[0], lease_id))
            self.unsettled.note(sides[False])
            self._tell_pusher([number for number, _ in sides[True]])
        else:
            self._tell_pusher([report[0] for report, _ in batch])

    def _tell_pusher(self, numbers: Sequence[int]) -> None:
        if self.pusher is None or not numbers:
            return
        try:
            self.pusher.send(("recorded", numbers))
        except Closed:
            self._drop_pusher()
