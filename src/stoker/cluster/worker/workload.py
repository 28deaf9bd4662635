"""The jobs and reports of a worker, and its connection to the pusher.

The main thread runs jobs; the companion thread reconnects when the pusher has died. Both use one
lock, so each step is atomic: ``meet`` tells a new pusher exactly what this worker has, and nothing
is read from an old connection afterwards. So no job is held by two workers.

Reports are kept until the pusher confirms that they are recorded, so that no other process's death
loses one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

from stoker.cluster.board import MOST_UNRECORDED
from stoker.cluster.channel import Closed, Stream
from stoker.cluster.wire import Job, Report
from stoker.logs.capture import Capture

FLUSH_SECONDS = 0.002
SILENT_SECONDS = 2.0
"""A pusher whose loop has not turned for this time may hang. If it is killed, the reports that it
has not read are lost."""
LOOK_SECONDS = 0.5
"""Pause between checks of the pusher's loop by a worker that is leaving."""

_number_of = itemgetter(0)


class Workload:
    """One worker's jobs, reports and connection to the pusher.

    Args:
        new_pusher_seconds: how long to wait for a new pusher before the worker exits.
    """

    def __init__(self, new_pusher_seconds: float) -> None:
        self._new_pusher_seconds = new_pusher_seconds
        self.on_change: Callable[[], object] = lambda: None
        """Called, in any thread, when there is a new connection or the worker must exit."""
        self.is_leaving = False
        self.expects_pusher = True
        """Whether a pusher that has died is replaced. Not if the whole cluster ends."""
        self.oldest_beat_ns: Callable[[], int] = time.monotonic_ns
        """Returns when the pusher's loop last turned, or another loop that is killed with it."""
        self.logs: Capture | None = None
        """Captures what jobs log and print; None = it is not kept."""
        self._queue: deque[Job] = deque()
        self._jobs: dict[int, Job] = {}
        """Number -> job, from its arrival until it is recorded or skipped."""
        self._reports: dict[int, Report] = {}
        """Number -> report that is not recorded yet, sent or not."""
        self._inherited: set[int] = set()
        """Numbers of unrecorded jobs that the previous worker with this number had finished. The
        board lists them."""
        self._unsent: list[Report] = []
        self._unsent_since = 0.0
        self._skipped: list[int] = []
        self._line: Stream | None = None
        self._followed: Stream | None = None
        """The connection that a thread is reading, and will close."""
        self._lock = threading.Lock()
        self._changed = threading.Event()

    @property
    def line(self) -> Stream | None:
        """The connection to the pusher, or None."""
        return self._line

    @property
    def is_idle(self) -> bool:
        """Return whether no job waits or runs, and no report is to be sent."""
        return not self._jobs

    @property
    def is_over(self) -> bool:
        """Return whether the worker is leaving and has nothing to wait for."""
        return self.is_leaving and self.is_idle

    def follow(self) -> Stream | None:
        """Return the connection to the pusher, or None. From now on the caller reads from it,
        and calls ``lose`` when it breaks."""
        with self._lock:
            if self._line is not None:
                self._followed = self._line
            return self._line

    def wait_for_line(self) -> Stream | None:
        """Wait for a connection to read. Return None when the worker must exit."""
        while not self.is_leaving:
            self._changed.wait()
            line = self.follow()
            if line is not None:
                return line
        return None

    # -- jobs -------------------------------------------------------------------------------------

    def take_in(self, line: Stream, frames: Iterable[Any]) -> None:
        """Store the jobs and messages in the pusher's frames. Frames from an earlier pusher's
        connection are ignored, as their jobs may belong to another worker now."""
        with self._lock:
            for kind, content in frames:
                if kind == "recorded":
                    for number in content:
                        self._reports.pop(number, None)
                        self._jobs.pop(number, None)
                    self._inherited.difference_update(content)
                elif kind == "unrecorded":
                    self._inherited.update(content)
                elif line is self._line and not self.is_leaving:
                    self._jobs.update(zip(map(_number_of, content), content, strict=True))
                    self._queue.extend(content)

    @property
    def has_next(self) -> bool:
        """Return whether a job may start now. No job starts while too many reports are
        unrecorded."""
        return bool(self._queue) and len(self._reports) < MOST_UNRECORDED

    def is_unrecorded(self, number: int) -> bool:
        """Return whether this job has ended and its report is not recorded yet."""
        return number in self._reports or number in self._inherited

    def has(self, number: int) -> bool:
        """Return whether this job waits or runs here."""
        return number in self._jobs and number not in self._reports

    def next(self) -> Job | None:
        """Return the job that has waited longest, to start it now."""
        # Without the lock, which this needs not: another thread may only have emptied the queue.
        try:
            return self._queue.popleft()
        except IndexError:
            return None

    def skip(self, number: int) -> None:
        """Remove a recalled job that has not started."""
        with self._lock:
            self._jobs.pop(number, None)
            self._skipped.append(number)

    def finish(self, number: int, report: Report) -> None:
        """Remove a finished job, and keep its report for ``flush``."""
        with self._lock:
            self._reports[number] = report
            if not self._unsent:
                self._unsent_since = time.monotonic()
            self._unsent.append(report)

    def flush(self, *, older_than_seconds: float = 0.0) -> None:
        """Send the reports, if the oldest has waited that long."""
        has_waited = time.monotonic() - self._unsent_since >= older_than_seconds
        has_logs = self.logs is not None and self.logs.is_due
        if not self._skipped and not (self._unsent and has_waited) and not has_logs:
            return
        with self._lock:
            self._send_unsent(older_than_seconds)

    # -- the line ---------------------------------------------------------------------------------

    def meet(self, stream: Stream) -> None:
        """Connect to a new pusher, and send it all jobs and reports. Stop reading from the old
        connection."""
        with self._lock:
            has = [(job, self._reports.get(number)) for number, job in self._jobs.items()]
            try:
                stream.send(("hello", has))
            except Closed:
                stream.close()
                return
            old, self._line = self._line, stream
            self._unsent.clear()
            self._skipped.clear()
            self._inherited.clear()
            if self.is_leaving:
                self._say_leaving()
            if old is not None:
                self._call_off(old)
            self._changed.set()
        self.on_change()

    def lose(self, line: Stream) -> None:
        """Close a broken connection. The jobs that came over it stay here, and are reported to
        the next pusher."""
        with self._lock:
            self._drop(line)
            line.close()

    def leave(self) -> None:
        """Start no more jobs: return the unstarted ones, and report the running ones."""
        with self._lock:
            self.is_leaving = True
            while (job := self.next()) is not None:
                self._jobs.pop(job[0], None)
            self._send_unsent()
            self._say_leaving()
        self._changed.set()
        self.on_change()

    def stop_reading(self) -> None:
        """Make the thread that reads the connection stop."""
        with self._lock:
            if self._line is not None:
                self._line.stop_reading()

    def wait_until_recorded(self, within_seconds: float) -> None:
        """Wait up to ``within_seconds`` until every report is recorded. The pusher keeps the rest.
        The time begins when there is a pusher that reads, because no other process has the
        reports. This time, and the time for a new pusher, do not pass while this process is
        suspended, because the other processes may be suspended with it."""
        left, left_for_pusher = within_seconds, self._new_pusher_seconds
        self.flush()
        while self._reports and left > 0:
            looked_at = time.monotonic()
            if (line := self._line) is None:
                time.sleep(0.01)
            else:
                self._read(line, min(left, LOOK_SECONDS))
            passed = min(time.monotonic() - looked_at, LOOK_SECONDS)
            left, left_for_pusher = left - passed, left_for_pusher - passed
            has_no_reader = self._line is None or self._is_pusher_silent()
            if self.expects_pusher and has_no_reader and left_for_pusher > 0:
                left = within_seconds

    def _read(self, line: Stream, within_seconds: float) -> None:
        try:
            if line.waits(within_seconds):
                self.take_in(line, line.receive(block=False))
        except Closed:
            self.lose(line)

    def _is_pusher_silent(self) -> bool:
        return time.monotonic_ns() - self.oldest_beat_ns() > SILENT_SECONDS * 1e9

    def forget(self) -> None:
        """Drop jobs and connection in a child forked by a task, which must not act as a worker."""
        self._lock = threading.Lock()
        self.is_leaving = True
        self._queue.clear()
        if self._line is not None:
            self._line.close()
            self._line = None

    def _send_unsent(self, older_than_seconds: float = 0.0) -> None:
        if self.logs is not None and self._line is not None and (chunks := self.logs.take()):
            self._send(("logs", chunks))
        if self._skipped and self._line is not None:
            skipped, self._skipped = self._skipped, []
            self._send(("skipped", skipped))
        waited_seconds = time.monotonic() - self._unsent_since
        if self._unsent and waited_seconds >= older_than_seconds and self._line is not None:
            reports, self._unsent = self._unsent, []
            self._send(("reports", reports))

    def _say_leaving(self) -> None:
        self._send(("leaving", [number for number in self._jobs if number not in self._reports]))

    def _send(self, message: Any) -> None:
        if self._line is None:
            return
        try:
            self._line.send(message)
        except Closed:  # its reader, if there is one, notices and closes it
            line = self._line
            self._drop(line)
            if line is not self._followed:
                line.close()

    def _call_off(self, line: Stream) -> None:
        """Abandon a connection: its reader notices and closes it; without a reader it is closed
        here."""
        if line is self._followed:
            line.stop_reading()
        else:
            line.close()

    def _drop(self, line: Stream) -> None:
        if self._line is line:
            self._line = None
            if not self.is_leaving:
                self._changed.clear()
