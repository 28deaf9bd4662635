"""The pusher's line to the monitor: reports go out, the numbers of those recorded come back."""

from __future__ import annotations

import selectors
from collections.abc import Iterable

from .channel import Closed, Stream, set_interest
from .flights import Flight
from .roster import Roster
from .wire import Reported, is_recorded, pack_for_monitor


class MonitorLine:
    """The monitor, as the pusher sees it. Reports are kept in the books until they are recorded, so
    a new monitor is sent again what the one before it may not have recorded."""

    def __init__(self, selector: selectors.BaseSelector, roster: Roster) -> None:
        self._selector = selector
        self._roster = roster
        self._stream: Stream | None = None

    def meet(self, stream: Stream, reported: Iterable[Flight]) -> None:
        """A new monitor is there."""
        self._drop()
        self._stream = stream
        self._selector.register(stream, selectors.EVENT_READ, self._serve)
        self.pass_on(reported)

    def pass_on(self, flights: Iterable[Flight]) -> None:
        """Send the reports of these flights; without a monitor they wait for the next one. What the
        worker itself has recorded is closed here, and only counted there."""
        reports: list[Reported] = []
        counted: list[Reported] = []
        for flight in flights:
            report = flight.report
            if report is not None:
                some = counted if is_recorded(report) else reports
                some.append((report, pack_for_monitor(flight.job)))
        if self._stream is not None and (reports or counted):
            for frame in (("reports", reports), ("counted", counted)):
                if frame[1]:
                    self._stream.queue(frame)
            self._serve(selectors.EVENT_WRITE)
        self._roster.recorded(report[0] for report, _ in counted)

    def _serve(self, events: int) -> None:
        stream = self._stream
        if stream is None:
            return
        try:
            if events & selectors.EVENT_READ:
                while frames := stream.receive(block=False):
                    for _, numbers in frames:
                        self._roster.recorded(numbers)
            stream.flush()
        except Closed:
            self._drop()
            return
        set_interest(self._selector, stream)

    def _drop(self) -> None:
        if self._stream is not None:
            self._selector.unregister(self._stream)
            self._stream.close()
            self._stream = None
