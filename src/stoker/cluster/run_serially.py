"""One job after another, in the main thread: the default way of a worker."""

from __future__ import annotations

from stoker.lifecycle.opened import Opened

from .channel import Closed, Stream
from .connections import tidy_connections
from .worker import FLUSH_SECONDS, Worker


class SerialRunner:
    """CONCURRENCY = 1."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._workload = worker.workload

    def run(self) -> None:
        while (line := self._workload.wait_for_line()) is not None:
            try:
                self._serve(line)
            except Closed:
                self._workload.lose(line)

    def _serve(self, line: Stream) -> None:
        workload = self._workload
        while not workload.is_leaving:
            tidy_connections()  # some may have grown old while there was nothing to do
            while workload.has_next:
                workload.flush(older_than_seconds=FLUSH_SECONDS)
                self._run_next()
                if self._worker.should_be_replaced():
                    workload.leave()
            workload.flush()
            workload.take_in(line, line.receive(block=True))

    def _run_next(self) -> None:
        worker = self._worker
        begun = worker.begin(0)
        if begun is None:
            return
        opened = worker.executor.open(begun.delivery)
        if isinstance(opened, Opened):
            if worker.leave_if_late(0, begun):
                return
            worker.limit(0, begun, opened)
            attempted = worker.executor.run_opened(opened)
        else:
            attempted = opened
        tidy_connections()
        worker.end(0, begun.number, attempted)
