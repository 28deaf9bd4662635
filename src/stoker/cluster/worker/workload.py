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
from typing import Any, NamedTuple

from stoker.brokers.contract import Delivery
from stoker.cluster.board import MOST_UNRECORDED
from stoker.cluster.wire import Closed, Job, Report, Stream

FLUSH_SECONDS = 0.002


class BegunJob(NamedTuple):
    """A job that has its slot."""

    number: int
    delivery: Delivery
    permit_ns: int


_number_of = itemgetter(0)


class Workload:
    """One worker's jobs, reports and line."""

    def __init__(self) -> None:
        self.on_change: Callable[[], object] = lambda: None
        """Called when there is a new line or it is time to leave, in whichever thread that is."""
        self.is_leaving = False
        self._queue: deque[Job] = deque()
        self._jobs: dict[int, Job] = {}
        """Number -> job, from its coming until it is recorded or skipped."""
        self._reports: dict[int, Report] = {}
        """Sent or to be sent, and not yet recorded."""
        self._inherited: set[int] = set()
        """Numbers of jobs that the worker before this one had finished: they are not recorded yet,
        and the board lists them."""
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
        """The line to the pusher; None while there is none."""
        return self._line

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, runs, or is to be reported."""
        return not self._jobs

    def follow(self) -> Stream | None:
        """The line to the pusher, for the one who reads it from now on, and ``lose``s it when it
        is broken; None while there is none."""
        with self._lock:
            if self._line is not None:
                self._followed = self._line
            return self._line

    def wait_for_line(self) -> Stream | None:
        """Wait for a connection to read; return None when it is time to exit."""
        while not self.is_leaving:
            self._changed.wait()
            line = self.follow()
            if line is not None:
                return line
        return None

    # -- jobs -------------------------------------------------------------------------------------

    def take_in(self, line: Stream, frames: Iterable[Any]) -> None:
        """Store what the pusher sent. Frames from an earlier pusher's connection are ignored, as
        their jobs may belong to another worker now."""
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
        """Whether a job is to be started now. None is while too many reports are not recorded."""
        return bool(self._queue) and len(self._reports) < MOST_UNRECORDED

    def is_unrecorded(self, number: int) -> bool:
        """Return whether this job is over and its report is not recorded yet."""
        return number in self._reports or number in self._inherited

    def next(self) -> Job | None:
        """The job that waits longest, to be started now."""
        with self._lock:
            return self._queue.popleft() if self._queue else None

    def skip(self, number: int) -> None:
        """It was recalled, and has not been started."""
        with self._lock:
            self._jobs.pop(number, None)
            self._skipped.append(number)

    def finish(self, number: int, report: Report) -> None:
        """It is over; ``flush`` sends the report."""
        with self._lock:
            self._reports[number] = report
            if not self._unsent:
                self._unsent_since = time.monotonic()
            self._unsent.append(report)

    def flush(self, *, older_than_seconds: float = 0.0) -> None:
        """Send reports, if the first has waited that long."""
        has_waited = time.monotonic() - self._unsent_since >= older_than_seconds
        if not self._skipped and not (self._unsent and has_waited):
            return
        with self._lock:
            self._send_unsent(older_than_seconds)

    # -- the line ---------------------------------------------------------------------------------

    def meet(self, stream: Stream) -> None:
        """A new pusher: tell it all that we have. Whoever reads the old line is called off it."""
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
        """The line is broken. What came over it stays ours, for the next pusher to hear of."""
        with self._lock:
            self._drop(line)
            line.close()

    def leave(self) -> None:
        """Start no more jobs: return the unstarted ones, and report the running ones."""
        with self._lock:
            self.is_leaving = True
            while self._queue:
                self._jobs.pop(self._queue.popleft()[0], None)
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
        """Wait up to ``within_seconds`` until every report is recorded. Other processes keep the
        rest."""
        until = time.monotonic() + within_seconds
        self.flush()
        while self._reports and (left := until - time.monotonic()) > 0:
            line = self._line
            if line is None:
                time.sleep(0.01)
                continue
            try:
                if line.waits(left):
                    self.take_in(line, line.receive(block=False))
            except Closed:
                self.lose(line)

    def forget(self) -> None:
        """Drop jobs and connection in a child forked by a task, which must not act as a worker."""
        self._lock = threading.Lock()
        self.is_leaving = True
        self._queue.clear()
        if self._line is not None:
            self._line.close()
            self._line = None

    def _send_unsent(self, older_than_seconds: float = 0.0) -> None:
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
        except Closed:  # its reader, if there is one, will find out, and close it
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
