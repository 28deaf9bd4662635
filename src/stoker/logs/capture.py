"""Gather in a worker what its jobs log and print.

The context variable ``current`` tells which job a line belongs to, in threads and coroutines, too.
Lines without a job are not gathered. Nothing here takes a lock while a task runs: a time-out may be
raised in the task at any point.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from stoker.conf import Settings
from stoker.exceptions import TaskTimeout
from stoker.jobs.faults import storable
from stoker.jobs.received import package_as_sealed
from stoker.jobs.running import Running, current
from stoker.setting_values import LogKeeping
from stoker.store.written import parts_of
from stoker.tasks.arguments import HIDDEN, hidden_pattern

from .lines import Chunk, StoredLine, pack_lines

SEND_SECONDS = 0.5
"""Maximum number of seconds that a line waits in the worker while its job runs."""
LINE_CHARACTERS = 8000
SEARCHED_CHARACTERS = 4 * LINE_CHARACTERS
"""How much of a line is searched for hidden arguments, before the rest of it is dropped."""
EVERYTHING = re.compile(".+", re.DOTALL)
SOURCE_CHARACTERS = 100
CHUNK_CHARACTERS = 32_768
MOST_WAITING = 10_000
"""Maximum number of lines that wait while no pusher is connected."""
OWN = "stoker"
"""Source of the line that says how many lines were dropped."""


class _GatheredAttempt:
    """A running attempt, and how many more lines and bytes of its log are kept."""

    __slots__ = ("bytes_left", "dropped", "lines_left", "running", "secrets", "unfinished")

    def __init__(self, running: Running, keeping: LogKeeping) -> None:
        self.running = running
        self.lines_left = keeping.max_lines
        self.bytes_left = keeping.max_bytes
        self.dropped = 0
        self.unfinished: dict[str, str] = {}
        """Stream -> text that was printed after the last line feed."""
        self.secrets: re.Pattern[str] | None = None
        """Pattern of the hidden arguments; None = not determined yet."""


class Capture:
    """The log lines of this process's jobs, until they are sent to the pusher."""

    def __init__(self, settings: Settings, keeping: LogKeeping) -> None:
        self._keeping = keeping
        self._settings = settings
        self._attempts: dict[UUID, _GatheredAttempt] = {}
        self._lines: deque[tuple[bytes, int, StoredLine]] = deque()
        self._taken_at = 0.0

    def install(self) -> None:
        """Capture what jobs in this process log and print from now on."""
        root = logging.getLogger()
        level = logging.getLevelNamesMapping()[self._keeping.level]
        if root.level > level:
            _keep_as_before(root.level)
            root.setLevel(level)
        root.addHandler(_Gatherer(self, level))
        if sys.stdout is not None:  # they are None in a process that was started without them
            sys.stdout = Printed(sys.stdout, "stdout", self)
        if sys.stderr is not None:
            sys.stderr = Printed(sys.stderr, "stderr", self)

    def begin(self, running: Running) -> None:
        """Gather the lines of this attempt."""
        self._attempts[running.job_id] = _GatheredAttempt(running, self._keeping)

    def end(self, job_id: UUID) -> None:
        """End the log of an attempt, if it has one. Later lines of it are not gathered."""
        attempt = self._attempts.get(job_id)
        if attempt is None:
            return
        for source, text in attempt.unfinished.items():
            if text:
                self._add(attempt, time.time(), "", source, text)
        del self._attempts[job_id]
        if attempt.dropped:
            sentence = f"{attempt.dropped} more lines were dropped."
            self._append(attempt, time.time(), "WARNING", OWN, sentence)

    def put(self, at: float, level: str, source: str, text: str) -> None:
        """Add a line of the job that runs in this context. Ignore it if no job runs."""
        attempt = self._attempt()
        if attempt is not None:
            self._add(attempt, at, level, source, text)

    def put_printed(self, source: str, text: str) -> None:
        """Add the complete lines that the current job prints. An incomplete line is kept until
        its line feed."""
        attempt = self._attempt()
        if attempt is None:
            return
        *whole, rest = (attempt.unfinished.get(source, "") + text).split("\n")
        if len(rest) > LINE_CHARACTERS:
            whole, rest = [*whole, rest], ""
        attempt.unfinished[source] = rest
        for line in whole:  # of a progress bar, keep only the last state
            self._add(attempt, time.time(), "", source, line.rstrip("\r").rpartition("\r")[2])

    @property
    def is_due(self) -> bool:
        """Whether there are lines that have waited for ``SEND_SECONDS``."""
        return bool(self._lines) and time.monotonic() - self._taken_at >= SEND_SECONDS

    def take(self) -> list[Chunk]:
        """Remove and return the waiting lines. Only one thread at a time may call it."""
        self._taken_at = time.monotonic()
        by_attempt: dict[tuple[bytes, int], list[StoredLine]] = {}
        while self._lines:
            job_id, number, line = self._lines.popleft()
            by_attempt.setdefault((job_id, number), []).append(line)
        return [
            (*attempt, pack_lines(part))
            for attempt, lines in by_attempt.items()
            for part in parts_of(lines, len(lines), CHUNK_CHARACTERS, lambda line: len(line.text))
        ]

    def _attempt(self) -> _GatheredAttempt | None:
        running = current.get()
        return None if running is None else self._attempts.get(running.job_id)

    def _add(
        self, attempt: _GatheredAttempt, at: float, level: str, source: str, text: str
    ) -> None:
        size = 0
        if attempt.lines_left > 0:
            # A secret that the limit cuts in two would not be found afterwards.
            text = self._pattern(attempt).sub(HIDDEN, text[:SEARCHED_CHARACTERS])
            text = storable(text, LINE_CHARACTERS)
            size = len(text.encode())
        is_full = attempt.lines_left <= 0 or attempt.bytes_left < size
        if is_full or len(self._lines) >= MOST_WAITING:
            attempt.dropped += 1
            attempt.lines_left = 0  # a gap in the middle would be misleading
            return
        attempt.lines_left -= 1
        attempt.bytes_left -= size
        self._append(attempt, at, level, source, text)

    def _pattern(self, attempt: _GatheredAttempt) -> re.Pattern[str]:
        if attempt.secrets is None:
            attempt.secrets = EVERYTHING  # to open the arguments may write lines, too
            try:
                attempt.secrets = self._secrets_of(attempt.running)
            except BaseException:  # a time-out may be raised here, as in the task
                attempt.secrets = None
                raise
        return attempt.secrets

    def _secrets_of(self, running: Running) -> re.Pattern[str]:
        package = package_as_sealed(self._settings, running)
        return hidden_pattern(running.found.task, package, self._settings.redact)

    def _append(
        self, attempt: _GatheredAttempt, at: float, level: str, source: str, text: str
    ) -> None:
        delivery = attempt.running.delivery
        line = StoredLine(int(at * 1000), level, storable(source, SOURCE_CHARACTERS), text)
        self._lines.append((delivery.job_id.bytes, delivery.attempt, line))


class _Gatherer(logging.Handler):
    """Captures log records, except Stoker's own events, which the job's timeline shows."""

    def __init__(self, capture: Capture, level: int) -> None:
        super().__init__(level)
        self._capture = capture

    def createLock(self) -> None:  # noqa: N802 - logging's own name
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Gather a record without taking a lock."""
        if current.get() is None or hasattr(record, "stoker_event"):
            return False
        try:
            text = self.format(record)
            # Code that makes its own records may leave the level and the name out.
            self._capture.put(record.created, str(record.levelname), str(record.name), text)
        except TaskTimeout:
            raise
        except Exception:  # noqa: BLE001 - as in every handler
            self.handleError(record)
        return True


class Printed:
    """Replaces a stream, and also captures the text that jobs write to it."""

    def __init__(self, stream: Any, source: str, capture: Capture) -> None:
        self._stream = stream
        self._source = source
        self._capture = capture

    def write(self, text: str) -> int:
        written: int = self._stream.write(text)
        self._capture.put_printed(self._source, text)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _keep_as_before(root_level: int) -> None:
    """Give the project's handlers the previous level of the root logger, because a lower level of
    the logger would send them more records."""

    def got_before(record: logging.LogRecord) -> bool:
        logger = logging.getLogger(str(record.name))
        while logger.parent is not None:
            if logger.level:
                return True
            logger = logger.parent
        return record.levelno >= root_level

    known = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    for logger in known:
        for handler in getattr(logger, "handlers", ()):  # some are only placeholders
            handler.addFilter(got_before)
